"""Executor that runs all rows of a segment, and all rows of a seed, in one vmapped call.

The number of Python calls depends on the host's segments and on the live (slot, blueprint) pairs,
not on the number of members or rows. Rows and plans are defined in kasmina/rows/rows.py.

Shape letters: R rows, G rows of one group, B batch; `...` the activation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from esper.device.branches import Branches
from esper.kasmina.blueprints.seed_places import Segment
from esper.kasmina.executors.base import (
    ObjectiveOfRows,
    check_delta,
    check_input,
    set_training,
)
from esper.kasmina.layers.blending import Gate, update_rows
from esper.kasmina.layers.layers import MaxPool2d, has_hooks
from esper.kasmina.layers.random_layers import RowStreams, row_draws
from esper.kasmina.ops import fused
from esper.kasmina.ops.batch_norm import batch_norms_for_vmap
from esper.kasmina.ops.block_parameters import StepParameters
from esper.kasmina.rows.rows import BufferUpdates, RowPlan, SeedGroup
from esper.kasmina.stacked.network import FusedRun, StackedNetwork
from esper.kasmina.stacked.store import ParameterStore
from esper.leyline.actions import BlendStyle
from esper.leyline.compute import KernelName

if TYPE_CHECKING:
    from esper.kasmina.ops.kernels.layout import Room

Named = dict[str, Tensor]

PARAMETER_LANE: Final = 3
"""Lane of the branch that gathers the host's parameters, and scatters their gradients."""


class VmapExecutor:
    """Runs a plan with `torch.func.vmap` over rows."""

    name = "vmap"

    def __init__(self, kernels: KernelName = "own") -> None:
        self.kernels: KernelName = kernels

    def run(
        self,
        network: StackedNetwork,
        x: Tensor,
        plan: RowPlan,
        training: bool,
        key_R: Tensor | None = None,
    ) -> Tensor:
        """Return outputs `[R, B, ...]`."""
        with fused.use_kernels(self.kernels), _attention_for_vmap(network):
            streams = None if key_R is None else RowStreams(key_R)
            return self._run(network, x, plan, training, streams)

    def train(
        self,
        network: StackedNetwork,
        x: Tensor,
        plan: RowPlan,
        objective: ObjectiveOfRows,
        key_R: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return outputs and losses; one backward pass for all rows."""
        outputs = self.run(network, x, plan, True, key_R)
        loss_R, objective_R = objective(outputs, slice(None))
        if objective_R.requires_grad:  # False if the host is frozen and no seed is live
            objective_R.sum().backward()  # type: ignore[no-untyped-call]
        return outputs.detach(), loss_R.detach()

    def _run(
        self,
        network: StackedNetwork,
        x: Tensor,
        plan: RowPlan,
        training: bool,
        streams: RowStreams | None,
    ) -> Tensor:
        check_input(network, x)
        set_training(network, training)
        with Branches(x.device, PARAMETER_LANE) as branches:
            params = branches.run(partial(_host_parameters, network, plan))
        fixed = network.host.gather_fixed(plan.member_R)
        h = _input_rows(x, plan)
        live_R = _live_rows(plan) if fused.half_type(h) is not None else None
        active = plan.first_active
        slot = 0
        following = (*network.fused_runs[1:], None)
        for run, after, own_params in zip(network.fused_runs, following, params, strict=True):
            if training and run.site is not None and h.shape[0] < active:
                h = h.expand(active, *h.shape[1:]).clone()  # in-place dropout differs by row
            room = _room_behind(run, plan, slot) if fused.asked_for_blocks() else None
            live = None if live_R is None else live_R[:active]
            with row_draws(run.site, streams, slice(active)), _leaving(room, live):
                h = _run_samplewise(run, h)
                h = _run_segment(run.segment, own_params, fixed, h, active, training)
            while slot < len(network.slots) and network.slots[slot].position == run.last:
                network.check_activation(slot, h[0])
                whole = None if room is None else room.whole(h)
                h = _join_rows(h.expand(active, *h.shape[1:]), plan, slot, whole)
                active = plan.active_S[slot]
                own = Ownership(
                    activation=plan.source_S[slot] is not None or whole is not None,
                    gradient=network.tap is None and after is not None and after.returns_new_grad(),
                )
                room = None
                groups = _live_groups(plan.groups_S[slot], live_R)
                h = _apply_slot(network, groups, h, training, streams, own)
                if network.tap is not None:
                    network.tap(slot, h)
                slot += 1
        if training and fixed:
            _write_back_buffers(network.host, fixed, plan.kept)
        return h


@contextlib.contextmanager
def _attention_for_vmap(network: StackedNetwork) -> Iterator[None]:
    """Keep torch's attention from operations that vmap would run row by row."""
    if not getattr(network.host.template, "torch_attention", False):
        yield
        return
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    on_cpu = network.device.type == "cpu"
    try:
        with sdpa_kernel(SDPBackend.MATH) if on_cpu else contextlib.nullcontext():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _input_rows(x: Tensor, plan: RowPlan) -> Tensor:
    """Return the data of the rows that start at the input; `[1, B, ...]` stays shared."""
    if x.shape[0] == 1 or plan.in_order or plan.member_R is None:
        return x
    return x.index_select(0, plan.member_R[: plan.first_active])


def _run_samplewise(run: FusedRun, h: Tensor) -> Tensor:
    """Run samplewise modules on the samples of all rows as one batch."""
    if not run.samplewise:
        return h
    rows, out = h.shape[0], h.flatten(0, 1)
    for module in run.samplewise:
        out = module.pool_rows(out, rows) if isinstance(module, MaxPool2d) else module(out)
    return out.view(rows, -1, *out.shape[1:])


def _host_parameters(network: StackedNetwork, plan: RowPlan) -> list[Named]:
    """Return the parameters of the rows that each run computes, by their names in the host.

    Cut before the pass, and not at each run, so that the cuts' gradients delay no other work.
    """
    whole = network.host.gather(plan.member_R, plan.shadow_R)
    found, active, slot = list[Named](), plan.first_active, 0
    for run in network.fused_runs:
        names = [name for name in run.segment.names.values() if name in whole]
        found.append({name: whole[name][:active] for name in names})
        while slot < len(network.slots) and network.slots[slot].position == run.last:
            active, slot = plan.active_S[slot], slot + 1
    return found


def _run_segment(
    segment: Segment, params: Named, fixed: Named, h: Tensor, active: int, training: bool
) -> Tensor:
    """Run one segment, or several fused ones, for the first `active` rows.

    `params`: those of these rows; `fixed`: buffers and frozen parameters of all rows.
    """
    state = {
        local: params[name] if name in params else fixed[name][:active]
        for local, name in segment.names.items()
    }
    if h.shape[0] > 1 or active == 1:
        return vmap_module(segment.module, state, h, 0, tied=False)  # all names are given
    if state:
        return vmap_module(segment.module, state, h[0], None, tied=False)
    if training:  # a module may draw random numbers: each row draws its own
        return vmap_module(segment.module, state, h.expand(active, *h.shape[1:]), 0)
    return segment.module(h[0]).unsqueeze(0)  # type: ignore[no-any-return]


def vmap_module(
    module: nn.Module, state: Mapping[str, Tensor], h: Tensor, h_dim: int | None, tied: bool = True
) -> Tensor:
    """vmap a module over rows; `tied`: the state may lack further names of a shared tensor."""

    def one_row(row_state: Named, row_h: Tensor) -> Tensor:
        out: Tensor = functional_call(module, row_state, (row_h,), tie_weights=tied)
        return out

    with batch_norms_for_vmap(module):
        out: Tensor = vmap(one_row, in_dims=(0, h_dim), randomness="different")(dict(state), h)
    return out


def _room_behind(run: FusedRun, plan: RowPlan, slot: int) -> Room | None:
    """Return room for the rows that start at the slot behind a run, if its kernel can use it."""
    if slot == len(plan.source_S) or not run.returns_new_output():
        return None
    from esper.kasmina.ops.kernels.layout import Room

    source = plan.source_S[slot]
    return Room(0 if source is None else len(source))


@contextlib.contextmanager
def _leaving(room: Room | None, live_R: Tensor | None) -> Iterator[None]:
    """Let kernels leave room behind their output, and skip rows that nobody needs."""
    if room is None and live_R is None:
        yield
        return
    from esper.kasmina.ops.kernels.layout import leave_room, only_live

    with leave_room(room), only_live(live_R):
        yield


def _live_rows(plan: RowPlan) -> Tensor | None:
    """Return 1 for the rows that count, 0 for inactive members, -1 for padding; None: all count."""
    active_E = fused.active_members()
    if active_E is None:
        return plan.live_R
    active = active_E if plan.member_R is None else active_E.index_select(0, plan.member_R)
    return active.float() if plan.live_R is None else torch.minimum(active.float(), plan.live_R)


def _live_groups(groups: Sequence[SeedGroup], live_R: Tensor | None) -> Sequence[SeedGroup]:
    """Give seeds of inactive members alpha 0, at which kernels skip them; padding has it anyway."""
    if live_R is None or fused.active_members() is None:
        return groups
    found = []
    for group in groups:
        live_G = live_R.index_select(0, group.rows_G)
        alpha_G = group.alpha_G * live_G
        live_G = live_G if group.live_G is None else torch.minimum(live_G, group.live_G)
        found.append(replace(group, alpha_G=alpha_G, live_G=live_G))
    return found


def _join_rows(h: Tensor, plan: RowPlan, slot: int, whole: Tensor | None) -> Tensor:
    """Append the rows that start at this slot; shadow rows start from a detached activation.

    `whole`: `h` with room for them behind it, if it has any.
    """
    source = plan.source_S[slot]
    if source is None:
        return h
    if fused.half_type(h) == h.dtype:
        from esper.kasmina.ops.kernels.rows import join

        return join(h, source, plan.shadow_R is not None, whole)
    begun = h.detach() if plan.shadow_R is not None else h
    return torch.cat([h, begun.index_select(0, source)])


@dataclass(frozen=True, slots=True)
class Ownership:
    """Buffers around a slot that nothing else refers to, so that rows are added in place."""

    activation: bool = False
    """The activation: rows were joined, which made a copy, or a fused block has just made it."""
    gradient: bool = False
    """The gradient that arrives."""


def _apply_slot(
    network: StackedNetwork,
    groups: Sequence[SeedGroup],
    h: Tensor,
    training: bool,
    streams: RowStreams | None,
    own: Ownership,
) -> Tensor:
    """Run each group of seeds in a slot on its rows and blend in the result.

    A row is in at most one group, so all groups start from the same activation. Padding rows are in
    several groups, possibly repeatedly; at alpha 0 each entry writes back what it read.
    """
    if not groups:
        return h
    if fused.half_type(h) == h.dtype:
        return _apply_slot_by_kernels(network, groups, h, training, streams, own)
    for group in groups:
        h_G = h.index_select(0, group.rows_G)
        update = _seed_update(network, group, h_G, training, streams)
        alpha = _rowwise(group.alpha_G, h_G).to(h_G.dtype)
        if h.device.type == "cpu" and group.present == {BlendStyle.ADD}:
            h = h.index_add(0, group.rows_G, alpha * update)  # as below, with a cheaper backward
        else:
            h = h.index_copy(0, group.rows_G, h_G + alpha * update)
    return h


def _apply_slot_by_kernels(
    network: StackedNetwork,
    groups: Sequence[SeedGroup],
    h: Tensor,
    training: bool,
    streams: RowStreams | None,
    own: Ownership,
) -> Tensor:
    """Seeds made of steps with kernels work on their rows in place, others on copies of theirs.

    Groups have different rows, so they are branches of a captured graph, forward and backward.
    """
    from esper.kasmina.ops.kernels.layout import only_live
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
        from esper.kasmina.ops.kernels.rows import dense, fork

        index, live = [g.rows_G for g in copied], [_live_entries(g) for g in copied]
        h, *taken = fork(dense(h), index, live, own_gradient or bool(in_place))
    outputs = []
    with Branches(h.device) as branches:
        for group, h_G, by_kernel in zip(copied, taken, blended, strict=True):
            run = partial(_run_seeds, network, group, h_G, by_kernel, training, streams)
            with only_live(_live_entries(group)):
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
    from esper.kasmina.ops.kernels.rows import give_back

    added = [(group, out) for group, _, out, by_kernel in results if not by_kernel]
    if added:
        index, alpha = [g.rows_G for g, _ in added], [g.alpha_G for g, _ in added]
        h = give_back(h, index, alpha, [out for _, out in added], own.activation)
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


def _run_seeds(
    network: StackedNetwork,
    group: SeedGroup,
    h_G: Tensor,
    by_kernel: bool,
    training: bool,
    streams: RowStreams | None,
) -> Tensor:
    """Return what seeds compute, if a kernel blends it in, or else what they add."""
    if by_kernel:
        return _seed_delta(network, group, h_G, h_G, training, streams)
    return _seed_update(network, group, h_G, training, streams)


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
    if not fused.asked_for_blocks():
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


def _seed_update(
    network: StackedNetwork,
    group: SeedGroup,
    h_G: Tensor,
    training: bool,
    streams: RowStreams | None,
) -> Tensor:
    """Run the blueprint on the rows of a group; return its contribution at alpha 1."""
    seed_in = h_G
    if group.detached_G is not None:
        seed_in = torch.where(_rowwise(group.detached_G, h_G), h_G.detach(), h_G)
    delta = _seed_delta(network, group, h_G, seed_in, training, streams)
    gate = None
    if BlendStyle.GATE in group.present:
        gate = _vmap_store(network.gate(group.slot), group, {}, seed_in)
    return update_rows(h_G, delta, _rowwise(group.style_G, h_G), gate, group.present)


def _seed_delta(
    network: StackedNetwork,
    group: SeedGroup,
    h_G: Tensor,
    seed_in: Tensor,
    training: bool,
    streams: RowStreams | None,
) -> Tensor:
    """Run the blueprint on `seed_in`, which is `h_G`, for some rows perhaps detached."""
    bank = network.bank(group.slot, group.blueprint)
    fixed = bank.gather_fixed(group.members_G)
    own_in = seed_in.clone() if bank.writes_input else seed_in
    with row_draws(bank.site, streams, group.rows_G):
        delta = _vmap_store(bank, group, fixed, own_in)
    if training and fixed:
        _write_back_buffers(bank, fixed, group.kept)
    check_delta(network, group.slot, group.blueprint, delta, h_G)
    return delta


def _vmap_store(store: ParameterStore, group: SeedGroup, fixed: Named, seed_in: Tensor) -> Tensor:
    state = store.gather(group.members_G, group.frozen_G) | fixed
    return vmap_module(store.template, state, seed_in, 0, store.tied)


def _rowwise(values_G: Tensor, like: Tensor) -> Tensor:
    """`[G]` shaped to broadcast over `[G, B, ...]`."""
    return values_G.view(-1, *([1] * (like.ndim - 1)))


def _write_back_buffers(store: ParameterStore, fixed: Named, kept: BufferUpdates | None) -> None:
    """Write buffers that rows updated (running statistics) back to their members."""
    for name, stacked in store.fixed.items():
        if kept is None:  # a train batch: no lookup needed
            stacked.copy_(fixed[name][: store.members])
        else:
            fresh = fixed[name].index_select(0, kept.row_E)
            stacked.copy_(torch.where(_rowwise(kept.kept_E, stacked), fresh, stacked))
