"""A block and its pool as one on a CPU: fewer values pass the ReLU, and not a bit changes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from esper.kasmina import Population, PopulationConfig
from esper.kasmina.hosts.cnn import CNNHost, ConvBlock
from esper.kasmina.layers.layers import MaxPool2d
from esper.leyline import SeedStage
from support import batch, bring_to, make_population

SIX = ("r0c0", "r1c0", "r0c1", "r1c1", "r0c2", "r1c2")
STAGES = (None, SeedStage.TRAINING, SeedStage.BLENDING, SeedStage.FOSSILIZED)


def grown(stages: tuple[SeedStage | None, ...], joined: bool) -> Population:
    """Two members; the first has a seed in each slot for which a stage is given."""
    population = make_population(2, "loop", slots=SIX)
    for slot, stage in zip(SIX, stages, strict=True):
        if stage is not None:
            bring_to(population, stage, [0], slot, "conv_light")
    population.begin_step()
    assert set(population.network.fused_pairs) == {0, 2, 4}
    if not joined:
        population.network.fused_pairs.clear()
    return population


@pytest.mark.slow
@settings(max_examples=15)
@given(stages=st.tuples(*[st.sampled_from(STAGES)] * 6), seed=st.integers(0, 99))
def test_joined_segments_train_bit_for_bit_as_one_after_the_other(stages, seed):
    one, two = grown(stages, joined=True), grown(stages, joined=False)
    for step in range(2):
        x, target = batch(2, seed=seed + step)
        reported, wanted = one.train_batch(x, target), two.train_batch(x, target)
        assert torch.equal(reported.loss_E, wanted.loss_E)
        assert torch.equal(reported.host_grad_norm_E, wanted.host_grad_norm_E)
    assert torch.equal(one.network.host.flat_EP, two.network.host.flat_EP)
    for key, bank in one.network.banks.items():
        assert torch.equal(bank.flat_EP, two.network.banks[key].flat_EP)


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
def test_a_joint_passes_on_what_is_broken_and_what_is_equal(value: float):
    """All values alike: ties go to the first place either way; what is not finite stays so."""
    torch.manual_seed(0)
    block, pool = ConvBlock(2, 4, 3), MaxPool2d()
    joint = block.fused_with(pool)
    assert joint is not None
    x = torch.full((2, 2, 4, 4), value, requires_grad=True)
    torch.testing.assert_close(joint(x), pool(block(x)), equal_nan=True, rtol=0, atol=0)
    those, these = (
        torch.autograd.grad(way(x).sum(), [x, block.conv.weight, block.norm.bias])
        for way in (joint, lambda h: pool(block(h)))
    )
    for a, b in zip(these, those, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True, rtol=0, atol=0)


HOOKS = (
    "register_forward_hook",
    "register_forward_pre_hook",
    "register_full_backward_hook",
    "register_full_backward_pre_hook",
)


@pytest.mark.parametrize("kind", HOOKS)
@pytest.mark.parametrize("watched", ["block", "norm", "pool"])
def test_a_hook_is_told_of_every_row_whenever_it_came(kind: str, watched: str):
    """Also one that came after a batch was computed with both as one, until it goes."""
    population = make_population(2, "loop")
    x, target = batch(2)
    population.train_batch(x, target)
    block, pool = (segment.module for segment in population.network.segments[:2])
    module = {"block": block, "norm": block.get_submodule("norm"), "pool": pool}[watched]
    calls: list[object] = []
    handle = getattr(module, kind)(lambda hooked, *_: calls.append(hooked))
    population.train_batch(x, target)
    assert calls == [module] * 2
    handle.remove()
    assert set(population.network.usable_fused_pairs()) == {0, 2, 4}
    population.train_batch(x, target)
    assert len(calls) == 2


def test_only_a_block_of_ours_and_its_pool_are_joined():
    class Own(ConvBlock):
        """A user's, which may compute something else."""

    host = CNNHost(n_blocks=2, pool_layers=1)
    first, pool, second, nothing, _ = host.segments()
    assert isinstance(first, ConvBlock)
    assert isinstance(second, ConvBlock)
    assert first.fused_with(pool) is not None
    assert second.fused_with(nothing) is None
    assert Own(3, 8, 3).fused_with(pool) is None


class Widened(CNNHost):
    """A user's: the first block has a part more."""

    def __init__(self) -> None:
        super().__init__(in_channels=1, n_blocks=2)
        self.blocks[0].add_module("more", nn.Conv2d(8, 8, 1))


def test_a_block_with_a_part_more_stays_by_itself():
    config = PopulationConfig(executor="loop")
    population = Population(Widened, ["r0c1"], ["conv_light"], 2, 0, "cpu", config)
    assert set(population.network.fused_pairs) == {2}
    assert population.train_batch(*batch(2)).loss_E.isfinite().all()


def test_a_forward_that_a_user_put_in_place_is_called():
    host = CNNHost(n_blocks=2)
    first, pool = host.segments()[:2]
    assert isinstance(first, ConvBlock)
    for changed in (first, pool):
        changed.forward = changed.forward  # type: ignore[method-assign]
        assert first.fused_with(pool) is None
        del changed.forward
    assert first.fused_with(pool) is not None
