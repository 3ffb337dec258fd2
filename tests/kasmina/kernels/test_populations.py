"""A population trained by our kernels is the one that torch trains, padding and masks included."""

from __future__ import annotations

import pytest
import torch

from esper.kasmina import LifecycleConfig, Population, PopulationConfig
from esper.kasmina.lifecycle.gates import GateConfig
from esper.kasmina.ops import fused
from esper.leyline import BlendStyle, SeedStage
from kernel_support import DEVICE, HALF, require_kernels
from support import KINDS, batch, bring_to

require_kernels()

BLUEPRINTS = ("norm", "depthwise", "conv_small", "conv_light", "conv_heavy", "attention")
MEMBERS = 6


def grown() -> Population:
    """Six members with seeds of all blueprints, in all blend styles and several stages."""
    made = KINDS["cnn"]
    config = PopulationConfig(
        executor="vmap", lifecycle=LifecycleConfig(gates=GateConfig(min_training_steps=1))
    )
    population = Population(made.host, made.slots, BLUEPRINTS, MEMBERS, 0, DEVICE, config)
    for member, blueprint in enumerate(BLUEPRINTS):
        style = BlendStyle(member % 3)
        bring_to(population, SeedStage.BLENDING, [member], "r0c0", blueprint, style=style)
        other = (member + 2) % MEMBERS
        bring_to(population, SeedStage.FOSSILIZED, [other], "r0c1", blueprint, style=style)
    population.germinate([0, 3, 5], "r0c2", "attention")
    population.germinate([1], "r0c2", "conv_light")
    population.begin_step()
    return population


def train(population: Population, padded: bool, active: list[bool] | None) -> Population:
    for seed in range(2):
        x, target = (part.to(DEVICE) for part in batch(MEMBERS, seed))
        if active is not None:
            mask = torch.tensor(active, device=DEVICE)
            population.set_active(mask)
            x[~mask] = torch.nan  # nobody reads it
        population.train_rows(population.train_plan(padded=padded), x, target)
    return population


@pytest.fixture
def sick_memory(monkeypatch):
    """Whatever is allocated holds NaN: nobody may read what was not written."""
    for name in ("empty", "empty_like", "empty_strided"):
        allocate = getattr(torch, name)

        def allocated(*args, allocate=allocate, **settings):
            out = allocate(*args, **settings)
            return out.fill_(torch.nan) if out.is_floating_point() else out

        monkeypatch.setattr(torch, name, allocated)


@pytest.mark.skipif(HALF is not torch.float32, reason="compares float32, by the interpreter")
@pytest.mark.parametrize("active", [None, [True, True, False, True, False, True]])
def test_kernels_train_what_torch_trains(active, monkeypatch, sick_memory):
    expected = train(grown(), False, active)
    population = grown()
    monkeypatch.setattr(fused, "half_type", lambda x: torch.float32)
    found = train(population, True, active)
    stores = [(found.network.host, expected.network.host)]
    stores += [(bank, expected.network.banks[key]) for key, bank in found.network.banks.items()]
    stores += [(gate, expected.network.gates[key]) for key, gate in found.network.gates.items()]
    for mine, wanted in stores:
        torch.testing.assert_close(mine.flat_EP, wanted.flat_EP, rtol=1e-4, atol=1e-5)
    assert found.train_plan(padded=True).table.rows > expected.train_plan().table.rows
