"""Kernels compute only the rows that count; the others are finite and have no gradient."""

from __future__ import annotations

import pytest
import torch
from torch.func import vmap

from kernel_support import DEVICE, HALF, close, numbers, require_kernels

require_kernels()

from esper.kasmina.ops.kernel_scope import kernel_scope  # noqa: E402
from esper.kasmina.ops.kernels import convolution, depthwise, layout  # noqa: E402
from esper.kasmina.ops.kernels import excite as excite_module  # noqa: E402
from esper.kasmina.ops.kernels import normalise as normalise_module  # noqa: E402
from esper.kasmina.ops.kernels.convolution import convolve  # noqa: E402
from esper.kasmina.ops.kernels.depthwise import convolve_depthwise  # noqa: E402
from esper.kasmina.ops.kernels.excite import excite, squeeze  # noqa: E402
from esper.kasmina.ops.kernels.normalise import normalise  # noqa: E402
from esper.kasmina.ops.kernels.rows import gather  # noqa: E402

ROWS, CHANNELS = 3, 4
LIVE = torch.tensor([1.0, 0.0, 0.5], device=DEVICE)

KERNELS = {
    "convolution": (lambda x, w: convolve(x, w, HALF), (CHANNELS, CHANNELS, 3, 3)),
    "depthwise": (lambda x, w: convolve_depthwise(x, w, HALF), (CHANNELS, 1, 3, 3)),
    "norm": (lambda x, w: normalise(x, w, w, 1, True), (CHANNELS,)),
    "excite": (lambda x, w: excited(x, w), (1, CHANNELS)),
}


def excited(x, w):
    means, same = squeeze(x)
    return excite(same, means * w)


@pytest.mark.parametrize("name", KERNELS)
def test_a_skipped_row_has_no_gradient_and_the_others_are_as_ever(name):
    """Even if what it would read is NaN."""
    run, shape = KERNELS[name]
    x = numbers((ROWS, 2, CHANNELS, 3, 3)).requires_grad_(True)
    weight = numbers((ROWS, *shape), seed=1, dtype=torch.float32).requires_grad_(True)
    sick = x.detach().clone()
    sick[1] = torch.nan
    sick.requires_grad_(True)
    back = numbers((ROWS, 2, CHANNELS, 3, 3), seed=2)
    results = []
    for live, given in ((None, x), (LIVE, sick)):
        with kernel_scope(live_R=live):
            out = vmap(run)(given, weight)
        results.append((out, *torch.autograd.grad(out, [given, weight], back)))
    for expected, found in zip(*results, strict=True):
        assert torch.equal(found[[0, 2]], expected[[0, 2]])
    out, *gradients = results[1]
    assert out[1].isfinite().all()
    for gradient in gradients:
        assert not gradient[1].any()


@pytest.mark.parametrize("name", KERNELS)
def test_padding_is_not_even_written(name, monkeypatch):
    """Neither the output nor the gradient of the input; parameters have none."""
    run, shape = KERNELS[name]

    def marked(*args: object) -> torch.Tensor:
        return layout.empty_activation(*args).fill_(7.0)

    for module in (convolution, depthwise, excite_module, normalise_module):
        monkeypatch.setattr(module, "empty_activation", marked)
    x = numbers((ROWS, 2, CHANNELS, 3, 3)).requires_grad_(True)
    weight = numbers((ROWS, *shape), seed=1, dtype=torch.float32).requires_grad_(True)
    with kernel_scope(live_R=torch.tensor([1.0, -1.0, 0.0], device=DEVICE)):
        out = vmap(run)(x, weight)
    assert (out[1] == 7.0).all()
    assert not (out[[0, 2]] == 7.0).any()
    back = numbers(out.shape, seed=2)
    back[1] = torch.nan
    dx, dw = torch.autograd.grad(out, [x, weight], back)
    assert (dx[1] == 7.0).all()
    assert not dx[2].any()
    assert not dw[1:].any()


def test_rows_of_unused_seeds_are_zeros():
    h = numbers((3, 2, 4))
    h[2] = torch.nan
    index, alpha = torch.tensor([1, 2], device=DEVICE), torch.tensor([0.5, 0.0], device=DEVICE)
    _, taken = gather(h, [index], [alpha])
    assert torch.equal(taken[0], h[1])
    assert not taken[1].any()


def test_gradients_of_padding_reach_no_row():
    h = numbers((3, 2, 4)).requires_grad_(True)
    index, live = torch.tensor([1, 2], device=DEVICE), torch.tensor([1.0, -1.0], device=DEVICE)
    kept, taken = gather(h, [index], [live])
    back = torch.ones_like(taken)
    back[1] = torch.nan
    (gradient,) = torch.autograd.grad([kept, taken], h, [torch.zeros_like(kept), back])
    assert gradient.tolist() == [[[0.0] * 4] * 2, [[1.0] * 4] * 2, [[0.0] * 4] * 2]


def test_squeeze_and_excite_are_torchs():
    x = numbers((2, 3, 8, 5, 3)).requires_grad_(True)
    factor = numbers((2, 3, 8), seed=1, dtype=torch.float32).requires_grad_(True)
    leaf = x.detach().float().requires_grad_(True)
    means, same = vmap(squeeze)(x)
    out = vmap(excite)(same, factor)
    expected = leaf.mean(dim=(-2, -1)), leaf * factor[..., None, None]
    close(means, expected[0], terms=15)
    close(out, expected[1])
    back = numbers(means.shape, seed=2, dtype=torch.float32), numbers(out.shape, seed=3)
    found = torch.autograd.grad([means, out], [x, factor], back)
    wanted = torch.autograd.grad(expected, [leaf, factor], [b.float() for b in back])
    close(found[0], wanted[0])
    close(found[1], wanted[1], terms=15)
    close(squeeze(x[0])[0], expected[0][0], terms=15)
    close(excite(x[0], factor[0]), expected[1][0])
    alone = torch.autograd.grad(squeeze(x)[0], x, back[0])[0]
    close(alone, torch.autograd.grad(leaf.mean(dim=(-2, -1)), leaf, back[0])[0])
