"""Rows go to their seeds and come back as if indexed, blended and copied by torch."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from esper.kasmina import Population
from esper.kasmina.blueprints.seed_places import Segment
from esper.kasmina.executors import vmap
from esper.kasmina.executors.slot_kernels import apply_slot_by_kernels
from esper.kasmina.hosts.cnn import ConvBlock
from esper.kasmina.layers.layers import MaxPool2d
from esper.kasmina.ops.kernel_scope import Headroom, kernel_scope
from esper.kasmina.stacked.network import FusedRun
from esper.leyline import BlendStyle, SeedStage
from kernel_support import DEVICE, HALF, close, examples, numbers, require_kernels
from support import batch, bring_to, make_population

require_kernels()

from esper.kasmina.ops.kernels.layout import output_activation  # noqa: E402
from esper.kasmina.ops.kernels.rows import gather, join, scatter_add  # noqa: E402


def index(values):
    return torch.tensor(values, device=DEVICE)


def ours(h, source, groups, alphas, seeds, detach, own=False):
    """`own`: add rows in place, to what the join made and to the gradient that comes in."""
    h = join(h, source, detach)
    h, *taken = gather(h, groups, alphas, own)
    updates = [f(part) for f, part in zip(seeds, taken, strict=True)]
    return scatter_add(h, groups, alphas, updates, own)


def torches(h, source, groups, alphas, seeds, detach):
    h = h.float()
    h = torch.cat([h, (h.detach() if detach else h).index_select(0, source)])
    for f, rows, alpha in zip(seeds, groups, alphas, strict=True):
        part = h.index_select(0, rows)
        wide = alpha.view(-1, *[1] * (h.ndim - 1))
        h = h.index_copy(0, rows, part + wide * f(part))
    return h


class Doubled(torch.autograd.Function):
    """A kernel that allocates its output with the headroom asked for, as fused blocks do."""

    @staticmethod
    def forward(ctx, x):
        return output_activation(x.shape, x).copy_(2 * x)

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


@pytest.mark.parametrize("detach", [False, True])
def test_rows_are_joined_without_a_copy_where_room_was_left(detach):
    """Seeds then change the rows in place; outputs and gradients are those of a copying join."""
    source, groups = index([1, 1, 0]), [index([0, 3]), index([4, 2])]
    alphas = [torch.tensor([0.5, 1.0], device=DEVICE)] * 2
    results = []
    for headroom in (Headroom(len(source)), None):
        x = numbers((3, 2, 4, 3, 3)).requires_grad_(True)
        with kernel_scope(headroom=headroom):
            made = Doubled.apply(x)
        whole = None if headroom is None else headroom.whole(made)
        assert (whole is None) == (headroom is None)
        h = join(made, source, detach, whole)
        assert (h.data_ptr() == made.data_ptr()) == (headroom is not None)
        h, *taken = gather(h, groups, alphas, True)
        updates = [torch.square(part) for part in taken]
        out = scatter_add(h, groups, alphas, updates, True)
        out.backward(numbers(out.shape, seed=3).to(out.dtype))
        results.append((out.detach(), x.grad))
    for ours_, copied in zip(*results, strict=True):
        assert torch.equal(ours_, copied)


def test_room_is_only_taken_by_what_was_allocated_with_it():
    headroom, like = Headroom(2), numbers((1, 1, 1, 1, 1))
    with kernel_scope(headroom=headroom):
        h = output_activation((3, 2, 4, 3, 3), like)
        assert headroom.whole(h).shape[0] == 5
        assert headroom.whole(h.clone()) is None
        assert headroom.whole(h[:2]) is None
        assert headroom.whole(h.transpose(3, 4)) is None
        later = output_activation((3, 2, 4, 3, 3), like)
    assert headroom.whole(h) is None
    assert headroom.whole(later) is not None
    assert output_activation((3, 2, 4, 3, 3), like).untyped_storage().nbytes() < (
        later.untyped_storage().nbytes()
    )


@settings(max_examples=examples(12))
@given(
    rows=st.integers(1, 6),
    shape=st.sampled_from([(1, 2, 3, 3), (2, 4, 2, 2), (3, 5)]),
    last=st.booleans(),
    detach=st.booleans(),
    own=st.booleans(),
    data=st.data(),
)
def test_rows_come_back_as_torch_would_bring_them(rows, shape, last, detach, own, data):
    h = numbers((rows, *shape))
    if last and h.ndim == 5:
        h = h.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
    h.requires_grad_(True)
    source = index(data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=4)))
    order = data.draw(st.permutations(range(rows + len(source))))
    cut = data.draw(st.integers(1, len(order)))
    groups = [index(part) for part in (order[:cut], order[cut:]) if part]
    alphas = [torch.linspace(0.0, 1.0, len(g), device=DEVICE) for g in groups]
    seeds = [torch.square, torch.sin][: len(groups)]
    out = ours(h, source, groups, alphas, seeds, detach, own)
    expected = torches(h, source, groups, alphas, seeds, detach)
    close(out, expected)
    back = numbers(expected.shape, seed=3)
    (found,) = torch.autograd.grad(out, h, back.to(out.dtype, copy=True))
    (wanted,) = torch.autograd.grad(expected, h, back.to(HALF).float())
    close(found, wanted)


def test_the_layout_of_a_row_is_kept():
    h = numbers((3, 2, 4, 4, 8)).permute(0, 1, 4, 2, 3)
    out = ours(h, index([1]), [index([0, 3])], [torch.ones(2, device=DEVICE)], [torch.sin], True)
    assert out.stride() == h.stride()


def test_rows_without_a_seed_are_untouched_bit_for_bit():
    h = numbers((4, 2, 3, 3, 3))
    h[2] = torch.nan
    out = ours(h, index([0]), [index([1])], [torch.ones(1, device=DEVICE)], [torch.sin], True)
    assert torch.equal(out[[0, 3]], h[[0, 3]])
    assert torch.equal(out[4], h[0])
    assert out[1].isfinite().all()


def test_entries_with_alpha_0_write_to_no_row():
    """Spare entries of a padded plan share a padding row: nobody may write to it, or two programs
    would at once. Not even what is not finite gets there, neither forward nor back."""
    h = numbers((4, 2, 3, 4, 4)).requires_grad_(True)
    rows, alpha = index([1, 3, 3, 3]), torch.tensor([0.5, 0.0, 0.0, 0.0], device=DEVICE)
    broken = torch.tensor([1.0, torch.nan, torch.inf, 2.0], device=DEVICE).to(HALF)

    def seed(part):
        return part * broken.view(-1, 1, 1, 1, 1)

    out = ours(h, index([0]), [rows], [alpha], [seed], True)
    assert torch.equal(out[[0, 2, 3]], h[[0, 2, 3]])
    close(out[1], 1.5 * h[1].float())
    back = numbers(out.shape, seed=3)
    (found,) = torch.autograd.grad(out, h, back)
    assert torch.equal(found[[0, 2, 3]], back[[0, 2, 3]])
    close(found[1], 1.5 * back[1].float())


@pytest.mark.parametrize("own", [False, True])
def test_rows_are_added_in_place_only_to_what_is_owned(own):
    h = numbers((3, 2, 4, 4, 8)).permute(0, 1, 4, 2, 3).requires_grad_(True)
    rows, alpha = [index([1])], [torch.ones(1, device=DEVICE)]
    joined = join(h, index([0]), True)
    before = joined.detach().clone()
    same, taken = gather(joined, rows, alpha, own)
    out = scatter_add(same, rows, alpha, [taken.square()], own)
    assert (out.data_ptr() == joined.data_ptr()) == own
    assert torch.equal(joined.detach(), before) == (not own)
    back = numbers((4, 2, 4, 4, 8), seed=3).permute(0, 1, 4, 2, 3)
    given = back.clone(memory_format=torch.preserve_format)
    torch.autograd.grad(out, h, back)
    assert torch.equal(back, given) == (not own)


def test_a_gradient_that_someone_may_keep_is_not_ours():
    """A subclass may return it twice, a hook may keep it; an unknown module may do either."""

    def ours_after(module):
        return FusedRun((), Segment(module, {}), 0).returns_new_grad()

    hooked = MaxPool2d()
    hooked.register_full_backward_hook(lambda *given: None)
    user_pool = type("UserPool", (MaxPool2d,), {})()
    assert ours_after(MaxPool2d())
    assert ours_after(ConvBlock(4, 4, 3))
    assert ours_after(nn.Sequential(nn.Identity(), ConvBlock(4, 4, 3)))
    for module in (hooked, user_pool, nn.ReLU(), nn.Sequential(nn.ReLU(), MaxPool2d())):
        assert not ours_after(module)


def trained(padded: bool, sick: bool) -> Population:
    """Two batches of five members with seeds in each slot; `sick`: member 0 is NaN."""
    population = make_population(5, "vmap", device=DEVICE)
    bring_to(population, SeedStage.FOSSILIZED, [1], "r0c0", style=BlendStyle.GATE)
    bring_to(population, SeedStage.BLENDING, [2, 3], "r0c1", "norm", tempo=8)
    population.germinate([0, 4], "r0c2", "conv_light")
    population.begin_step()
    if sick:
        for store in (population.network.host, *population.network.banks.values()):
            store.flat_EP.detach()[0] = torch.nan
    for seed in range(2):
        plan = population.train_plan(padded=padded)
        groups = [group.rows_G.tolist() for at_slot in plan.groups_S for group in at_slot]
        assert padded == any(len(set(rows)) < len(rows) for rows in groups)
        population.train_rows(plan, *(part.to(DEVICE) for part in batch(5, seed)))
    return population


@pytest.mark.parametrize("sick", [False, True])
def test_padding_rows_named_twice_leave_no_trace(sick, monkeypatch):
    """They read member 0, and so are NaN where it is."""
    expected = trained(False, sick)

    def by_kernels(network, groups, h, training, streams, own):
        run_seeds = partial(vmap._run_seeds, network, training, streams)
        return apply_slot_by_kernels(network, groups, h, run_seeds, own) if groups else h

    monkeypatch.setattr(vmap, "_apply_slot", by_kernels)
    found = trained(True, sick)
    healthy = slice(1 if sick else 0, None)
    pairs = [(found.network.host, expected.network.host)]
    pairs += [(bank, expected.network.banks[key]) for key, bank in found.network.banks.items()]
    for one, other in pairs:
        torch.testing.assert_close(
            one.flat_EP[healthy], other.flat_EP[healthy], rtol=1e-4, atol=1e-5
        )
