"""Slots on a GPU: seeds of many rows by our kernels, in place where their steps allow it.

What the vmap executor asks of the kernels around a slot: headroom in an activation for the rows
that start there, rows that nobody needs and kernels skip, and seeds of all groups at once. Imports
of kernels are in functions, since Triton is only there on a GPU.

Shape letters: R rows, G rows of one group, E members.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from esper.device.branches import Branches
from esper.kasmina.layers.blending import Gate
from esper.kasmina.layers.layers import has_hooks
from esper.kasmina.ops import fused
from esper.kasmina.ops.block_parameters import StepParameters
from esper.kasmina.ops.kernel_scope import Headroom, current_scope, kernel_scope
from esper.kasmina.rows.rows import RowPlan, SeedGroup
from esper.kasmina.stacked.network import FusedRun, StackedNetwork
from esper.leyline.actions import BlendStyle

RunSeeds = Callable[[SeedGroup, Tensor, bool], Tensor]
"""Runs a group's seeds on a copy of their rows. The third argument: a kernel blends in the result,
so it is what the seeds compute; else what they add."""


def headroom_behind(run: FusedRun, plan: RowPlan, slot: int) -> Headroom | None:
    """Return headroom for the rows that start at the slot behind a run, if its kernel uses it."""
    if slot == len(plan.source_S) or not run.returns_new_output():
        return None
    source = plan.source_S[slot]
    return Headroom(0 if source is None else len(source))


def live_rows_of(plan: RowPlan) -> Tensor | None:
    """Return 1 for the rows that count, 0 for inactive members, -1 for padding; None: all count."""
    active_E = current_scope().active_E
    if active_E is None:
        return plan.live_R
    active = active_E if plan.member_R is None else active_E.index_select(0, plan.member_R)
    return active.float() if plan.live_R is None else torch.minimum(active.float(), plan.live_R)


def live_groups(groups: Sequence[SeedGroup], live_R: Tensor | None) -> Sequence[SeedGroup]:
    """Give seeds of inactive members alpha 0, at which kernels skip them; padding has it anyway."""
    if live_R is None or current_scope().active_E is None:
        return groups
    found = []
    for group in groups:
        live_G = live_R.index_select(0, group.rows_G)
        alpha_G = group.alpha_G * live_G
        live_G = live_G if group.live_G is None else torch.minimum(live_G, group.live_G)
        found.append(replace(group, alpha_G=alpha_G, live_G=live_G))
    return found


@dataclass(frozen=True, slots=True)
class Ownership:
    """Buffers around a slot that nothing else refers to, so that rows are added in place."""

    activation: bool = False
    """The activation: rows were joined, which made a copy, or a fused block has just made it."""
    gradient: bool = False
    """The gradient that arrives."""


def apply_slot_by_kernels(
    network: StackedNetwork,
    groups: Sequence[SeedGroup],
    h: Tensor,
    run_seeds: RunSeeds,
    own: Ownership,
) -> Tensor:
    """Seeds made of steps with kernels work on their rows in place, others on copies of theirs.

    Groups have different rows, so they are branches of a captured graph, forward and backward.
    """
    from esper.kasmina.ops.kernels.seed_steps import SeedRows, add_seeds

    blends = [_blends_by_kernel(network, group, h) for group in groups]
    with Branches(h.device) as branches:
        steps = [
            branches.run(partial(_seed_steps, network, group, h, by_kernel))
            for group, by_kernel in zip(groups, blends, strict=True)
        ]
        gated = [group for group, by_kernel in zip(groups, blends, strict=True) if by_kernel]
        gates = dict(branches.run(partial(_gather_gates, network, gated)))
    in_place = [
        SeedRows(g.rows_G, g.alpha_G, own_steps, _styles(g), gates.get(g.blueprint))
        for g, own_steps in zip(groups, steps, strict=True)
        if own_steps
    ]
    rest = [i for i, own_steps in enumerate(steps) if not own_steps]
    copied, blended = [groups[i] for i in rest], [blends[i] for i in rest]
    # What blends and seeds in place return backward is theirs, or was ours before.
    own_gradient = own.gradient or any(blended)
    taken: Sequence[Tensor] = ()
    if copied:
        from esper.kasmina.ops.kernels.rows import dense, gather

        index, live = [g.rows_G for g in copied], [_live_entries(g) for g in copied]
        h, *taken = gather(dense(h), index, live, own_gradient or bool(in_place))
    outputs = []
    with Branches(h.device) as branches:
        for group, h_G, by_kernel in zip(copied, taken, blended, strict=True):
            run = partial(run_seeds, group, h_G, by_kernel)
            with kernel_scope(live_R=_live_entries(group)):
                outputs.append(branches.run(run, h_G, _live_entries(group), group.alpha_G))
        if in_place:
            h = add_seeds(h, in_place, own.activation, own_gradient)
    own = replace(own, activation=own.activation or bool(in_place))
    results = list(zip(copied, taken, outputs, blended, strict=True))
    return _return_rows(h, results, gates, own)


def _return_rows(
    h: Tensor,
    results: Sequence[tuple[SeedGroup, Tensor, Tensor, bool]],
    gates: Mapping[int, tuple[Tensor, Tensor]],
    own: Ownership,
) -> Tensor:
    """Add or blend in what seeds returned for copies of their rows.

    `results`: group, copied rows, what came out, and whether a kernel blends it in; `gates`: weight
    and bias by blueprint.
    """
    if not results:
        return h
    from esper.kasmina.ops.kernels.blend import BlendRows, blend_rows
    from esper.kasmina.ops.kernels.rows import scatter_add

    added = [(group, out) for group, _, out, by_kernel in results if not by_kernel]
    if added:
        index, alpha = [g.rows_G for g, _ in added], [g.alpha_G for g, _ in added]
        h = scatter_add(h, index, alpha, [out for _, out in added], own.activation)
    later = [(group, h_G, out) for group, h_G, out, by_kernel in results if by_kernel]
    if not later:
        return h
    rows = [
        BlendRows(
            h_G.detach(), out, g.rows_G, g.alpha_G, g.style_G, gates.get(g.blueprint),
            _live_entries(g),
        )
        for g, h_G, out in later
    ]  # fmt: skip
    return blend_rows(h, rows, own.activation or bool(added), own.gradient)


def _live_entries(group: SeedGroup) -> Tensor:
    """Return which entries of a group are computed, as kernels need it; real ones have an alpha."""
    return group.alpha_G if group.live_G is None else group.live_G


def _gather_gates(
    network: StackedNetwork, groups: Sequence[SeedGroup]
) -> list[tuple[int, tuple[Tensor, Tensor]]]:
    """Return weight and bias of the gates of groups in one slot, by blueprint: one gather."""
    gated = [group for group in groups if BlendStyle.GATE in group.present]
    if not gated:
        return []
    frozen_G = [
        torch.zeros_like(g.members_G, dtype=torch.bool) if g.frozen_G is None else g.frozen_G
        for g in gated
    ]
    members = torch.cat([group.members_G for group in gated])
    found = network.gate(gated[0].slot).gather(members, torch.cat(frozen_G))
    sizes = [len(group.members_G) for group in gated]
    parts = zip(*(torch.split(found[name], sizes) for name in ("weight", "bias")), strict=True)
    return [(group.blueprint, part) for group, part in zip(gated, parts, strict=True)]


def _styles(group: SeedGroup) -> Tensor | None:
    """Return the blend styles of a group's entries; None: all add."""
    return None if group.present == {BlendStyle.ADD} else group.style_G


def _blends_by_kernel(network: StackedNetwork, group: SeedGroup, h: Tensor) -> bool:
    """Whether one kernel blends a group in; groups that only add have a simpler one."""
    if _styles(group) is None or group.detached_G is not None:
        return False
    if BlendStyle.GATE not in group.present:
        return True
    from esper.kasmina.ops.kernels.blend import gates_fit

    gate = network.gate(group.slot).template
    return type(gate) is Gate and not has_hooks(gate) and gates_fit(h)


def _seed_steps(
    network: StackedNetwork, group: SeedGroup, h: Tensor, by_kernel: bool
) -> Sequence[StepParameters]:
    """Return the steps of a group's seeds if they can work on rows of `h` in place, else none.

    `by_kernel`: whether a kernel can blend in seeds that do not all add.
    """
    if not fused.asked_for_blocks() or h.ndim != 5:  # images only
        return ()
    bank = network.bank(group.slot, group.blueprint)
    template = bank.template
    if vars(type(template)).get("seed_steps") is None or has_hooks(template):
        return ()  # a subclass may compute something else
    styled = _styles(group) is not None
    if group.detached_G is not None or (styled and not by_kernel):
        return ()
    steps: Sequence[StepParameters] = template.seed_steps(  # type: ignore[operator]
        bank.gather(group.members_G, group.frozen_G)
    )
    return steps if fused.seeds_fit(h, steps, styled) else ()
