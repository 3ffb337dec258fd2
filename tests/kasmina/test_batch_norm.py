"""Batch norm written out in elementary operations is torch's."""

import copy

import pytest
import torch

from esper.kasmina.layers import BatchNorm2d


@pytest.mark.parametrize("training", [True, False])
def test_the_formula_is_torchs_batch_norm(training):
    torch.manual_seed(0)
    ours = BatchNorm2d(3)
    with torch.no_grad():
        ours.weight.copy_(torch.tensor([0.5, 1.5, -1.0]))
        ours.bias.copy_(torch.tensor([0.1, -0.2, 0.3]))
        ours.running_mean.copy_(torch.tensor([1.0, 2.0, 3.0]))
        ours.running_var.copy_(torch.tensor([4.0, 0.5, 1.0]))
    theirs = copy.deepcopy(ours)
    for module in (ours, theirs):
        module.train(training)
    x = (torch.randn(4, 3, 5, 5) * 2 + 1).requires_grad_()
    x2 = x.detach().clone().requires_grad_()
    for _ in range(2):
        out, wanted = ours.by_formula(x), theirs(x2)
        torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-5)
        out.square().sum().backward()
        wanted.square().sum().backward()
    torch.testing.assert_close(x.grad, x2.grad, rtol=1e-4, atol=1e-4)
    for name, value in ours.state_dict().items():
        torch.testing.assert_close(value, theirs.state_dict()[name], msg=name)
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad, rtol=1e-4, atol=1e-4)


def test_the_formula_vmaps_with_running_statistics():
    module = BatchNorm2d(2).train()
    names = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    state = {n: torch.stack([dict(module.state_dict())[n]] * 3) for n in names}
    x = torch.randn(3, 4, 2, 3, 3)

    def one(row, h):
        with torch.no_grad():
            return torch.func.functional_call(_Formula(module), row, (h,))

    class _Formula(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, h):
            return self.inner.by_formula(h)

    rows = {f"inner.{n}": v for n, v in state.items()}
    out = torch.func.vmap(one)(rows, x)
    for row in range(3):
        alone = BatchNorm2d(2).train()
        torch.testing.assert_close(out[row], alone(x[row]), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(rows["inner.running_mean"][row], alone.running_mean)
        torch.testing.assert_close(rows["inner.running_var"][row], alone.running_var)
