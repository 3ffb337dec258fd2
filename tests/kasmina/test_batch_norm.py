"""Batch norm under vmap is torch's, row by row, in float32 and in half precision."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from esper.kasmina import Population, PopulationConfig
from esper.kasmina.executors.vmap import vmap_module
from esper.kasmina.snapshot import MemberSnapshots
from esper.leyline import InjectionSpec

ROWS, BATCH, CHANNELS, CLASSES = 3, 12, 4, 3
HALF = torch.bfloat16
KINDS = {
    "plain": {},
    "mean_of_all_batches": {"momentum": None},
    "no_statistics": {"track_running_stats": False},
    "no_weights": {"affine": False},
    "neither": {"affine": False, "track_running_stats": False},
}


def rows_of(norm: nn.Module) -> tuple[dict[str, Tensor], list[nn.Module]]:
    """Stacked state of three norms with values of their own, and the norms themselves."""
    draws = torch.Generator().manual_seed(0)
    alone = [copy.deepcopy(norm) for _ in range(ROWS)]
    for one in alone:
        for value in one.state_dict().values():
            if value.is_floating_point():
                value.copy_(torch.rand(value.shape, generator=draws) + 0.5)
    names = alone[0].state_dict()
    return {n: torch.stack([one.state_dict()[n] for one in alone]) for n in names}, alone


def sample(space: tuple[int, ...], dtype: torch.dtype, seed: int = 1) -> Tensor:
    draws = torch.Generator().manual_seed(seed)
    x = torch.randn(ROWS, BATCH, CHANNELS, *space, generator=draws)
    return (3.0 * x + 1.0).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("space", [(), (5,), (5, 5)])
def test_rows_compute_as_torchs_norm_alone(space, kind, training, dtype):
    """Output, all gradients and running statistics, over two batches."""
    build = nn.BatchNorm2d if len(space) == 2 else nn.BatchNorm1d
    norm = build(CHANNELS, **KINDS[kind]).train(training)
    state, alone = rows_of(norm)
    for value in state.values():
        value.requires_grad_(value.is_floating_point() and kind == "plain")
    running = {n: v.detach().clone() for n, v in state.items() if "running" in n or "num" in n}
    loose = {"rtol": 3e-2, "atol": 3e-2} if dtype == HALF else {"rtol": 1e-5, "atol": 1e-5}
    for seed in (1, 2):
        x = sample(space, dtype, seed).requires_grad_()
        out = vmap_module(norm, state | running, x, 0)
        towards = sample(space, torch.float32, seed + 5)
        (out.float() * towards).sum().backward()
        assert out.dtype == dtype
        for row, one in enumerate(alone):
            x_alone = x[row].detach().requires_grad_()
            wanted = one(x_alone)
            (wanted.float() * towards[row]).sum().backward()
            torch.testing.assert_close(out[row], wanted, **loose)
            torch.testing.assert_close(x.grad[row], x_alone.grad, **loose)
            for name, value in one.named_buffers():
                assert running[name].dtype == value.dtype
                torch.testing.assert_close(running[name][row], value, rtol=1e-5, atol=1e-5)
    if kind == "plain":
        for row, one in enumerate(alone):
            for name, parameter in one.named_parameters():
                scale = float(parameter.grad.abs().max())
                close = {"rtol": loose["rtol"], "atol": loose["atol"] * scale}
                torch.testing.assert_close(state[name].grad[row], parameter.grad, **close)


def test_a_norm_of_a_shared_batch_gathers_each_rows_statistics():
    norm = nn.BatchNorm2d(CHANNELS).train()
    state, alone = rows_of(norm)
    x = sample((3, 3), torch.float32)[0]
    out = vmap_module(norm, state, x, None)
    for row, one in enumerate(alone):
        torch.testing.assert_close(out[row], one(x))
        torch.testing.assert_close(state["running_var"][row], one.running_var)


def test_a_users_own_norm_computes_as_written():
    class Doubled(nn.BatchNorm1d):
        def forward(self, x: Tensor) -> Tensor:
            return 2.0 * super().forward(x)

    norm = Doubled(CHANNELS).train()
    state, alone = rows_of(norm)
    x = sample((), torch.float32)
    out = vmap_module(norm, state, x, 0)
    torch.testing.assert_close(out[1], alone[1](x[1]))
    assert "forward" not in vars(norm)


def test_the_module_is_as_before_even_after_an_error():
    norm = nn.BatchNorm2d(CHANNELS)
    with pytest.raises(ValueError, match="4D"):
        vmap_module(norm, rows_of(norm)[0], sample((), torch.float32), 0)
    x = sample((2, 2), torch.float32)[0]
    same = functional_call(norm, dict(norm.state_dict()), (x,))
    assert "forward" not in vars(norm)
    assert same.shape == x.shape


class NormedHost(nn.Module):
    """Convolution, batch norm of a kind, ReLU; linear, batch norm, head."""

    topology = "cnn"
    kind = "plain"

    def __init__(self) -> None:
        super().__init__()
        settings = KINDS[self.kind]
        # A host is probed with one sample: a norm of vectors then needs running statistics.
        heads = {**settings, "track_running_stats": True}
        norm = nn.BatchNorm2d(CHANNELS, **settings)
        self.first = nn.Sequential(nn.Conv2d(1, CHANNELS, 3, padding=1), norm, nn.ReLU())
        self.head = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, 5),
            nn.BatchNorm1d(5, **heads), nn.ReLU(), nn.Linear(5, CLASSES),
        )  # fmt: skip

    def segments(self) -> tuple[nn.Module, ...]:
        return self.first, self.head

    def injection_specs(self) -> tuple[InjectionSpec, ...]:
        return (InjectionSpec("r0c0", CHANNELS, 0, "after_block"),)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.first(x))
        return out


def populations(kind: str) -> dict[str, Population]:
    host = type("Host", (NormedHost,), {"kind": kind})
    made = {}
    for executor in ("vmap", "loop"):
        config = PopulationConfig(executor=executor, host_lr=0.005)
        made[executor] = Population(host, ["r0c0"], ["conv_light"], ROWS, config=config)
    return made


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    draws = torch.Generator().manual_seed(5)
    return [
        (
            torch.randn(ROWS, BATCH, 1, 6, 6, generator=draws),
            torch.randint(CLASSES, (ROWS, BATCH), generator=draws),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize(
    ("kind", "half"), [("plain", True), ("no_statistics", True), *[(kind, False) for kind in KINDS]]
)
def test_vmap_trains_a_host_with_batch_norm_as_loop_does(kind, half):
    """A shadow row runs beside, and one member has finished: its statistics do not move."""
    made = populations(kind)
    losses, states = [], []
    for population in made.values():
        population.germinate([0], "r0c0", "conv_light")
        population.begin_step()
        with torch.autocast("cpu", HALF, enabled=half):
            for index, (x, y) in enumerate(batches(4)):
                active = torch.tensor([True, True, index < 2])
                population.set_active(active)
                batch = population.train_batch(x, y)
                if index == 1:
                    finished = {n: v[2].clone() for n, v in population.network.host.fixed.items()}
        for name, value in population.network.host.fixed.items():
            assert torch.equal(value[2], finished[name]), f"{name} of the finished member moved"
            assert value.dtype in (torch.float32, torch.int64)
        population.set_active(None)
        losses.append(batch.loss_E[:2])
        x, _ = batches(1)[0]
        with torch.no_grad(), torch.autocast("cpu", HALF, enabled=half):
            states.append((population.network.host.fixed, population.forward(x).float()))
    close = {"rtol": 3e-2, "atol": 3e-2} if half else {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(*losses, **close)
    (fixed_vmap, out_vmap), (fixed_loop, out_loop) = states
    torch.testing.assert_close(out_vmap, out_loop, rtol=close["rtol"], atol=2 * close["atol"])
    for name, value in fixed_vmap.items():
        torch.testing.assert_close(value, fixed_loop[name], **close, msg=name)


def test_a_rollback_brings_back_the_statistics():
    for population in populations("mean_of_all_batches").values():
        first, again = batches(2)
        population.train_batch(*first)
        saved = MemberSnapshots(population)
        saved.take(np.ones(ROWS, dtype=np.bool_))
        fixed = population.network.host.fixed
        before = {name: value.clone() for name, value in fixed.items()}
        population.train_batch(*again)
        after = {name: value.clone() for name, value in fixed.items()}
        saved.restore(np.array([True, False, True]))
        for name, value in fixed.items():
            assert not torch.equal(before[name][0], after[name][0]), name
            assert torch.equal(value[[0, 2]], before[name][[0, 2]]), name
            assert torch.equal(value[1], after[name][1]), name
