"""Executor that runs all rows of a segment, and all rows of a seed, in one vmapped call.

The number of Python calls depends on the host's segments and on the live (slot, blueprint) pairs,
not on the number of members or rows. Rows and plans are defined in kasmina/rows/rows.py.

Shape letters: R rows, G rows of one group, B batch; `...` the activation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from esper.device.branches import Branches
from esper.kasmina.blueprints.seed_places import Segment
from esper.kasmina.executors.base import (
    ObjectiveOfRows,
    check_delta,
    check_input,
    set_training,
)
from esper.kasmina.executors.slot_kernels import (
    Ownership,
    apply_slot_by_kernels,
    headroom_behind,
    live_groups,
    live_rows_of,
)
from esper.kasmina.layers.blending import update_rows
from esper.kasmina.layers.layers import MaxPool2d
from esper.kasmina.layers.random_layers import RowStreams, row_draws
from esper.kasmina.ops import fused
from esper.kasmina.ops.batch_norm import batch_norms_for_vmap
from esper.kasmina.ops.kernel_scope import kernel_scope
from esper.kasmina.rows.rows import BufferUpdates, RowPlan, SeedGroup
from esper.kasmina.stacked.network import FusedRun, StackedNetwork
from esper.kasmina.stacked.store import ParameterStore
from esper.leyline.actions import BlendStyle
from esper.leyline.compute import KernelName

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
        with kernel_scope(kernels=self.kernels):
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
        live_R = live_rows_of(plan) if fused.half_type(h) is not None else None
        active = plan.first_active
        slot = 0
        following = (*network.fused_runs[1:], None)
        for run, after, own_params in zip(network.fused_runs, following, params, strict=True):
            if training and run.site is not None and h.shape[0] < active:
                h = h.expand(active, *h.shape[1:]).clone()  # in-place dropout differs by row
            headroom = headroom_behind(run, plan, slot) if fused.asked_for_blocks() else None
            live = None if live_R is None else live_R[:active]
            scope = kernel_scope(headroom=headroom, live_R=live)
            with row_draws(run.site, streams, slice(active)), scope:
                h = _run_samplewise(run, h)
                h = _run_segment(run.segment, own_params, fixed, h, active, training)
            while slot < len(network.slots) and network.slots[slot].position == run.last:
                network.check_activation(slot, h[0])
                whole = None if headroom is None else headroom.whole(h)
                h = _join_rows(h.expand(active, *h.shape[1:]), plan, slot, whole)
                active = plan.active_S[slot]
                own = Ownership(
                    activation=plan.source_S[slot] is not None or whole is not None,
                    gradient=network.tap is None and after is not None and after.returns_new_grad(),
                )
                headroom = None
                groups = live_groups(plan.groups_S[slot], live_R)
                h = _apply_slot(network, groups, h, training, streams, own)
                if network.tap is not None:
                    network.tap(slot, h)
                slot += 1
        if training and fixed:
            _write_back_buffers(network.host, fixed, plan.kept)
        return h


def _input_rows(x: Tensor, plan: RowPlan) -> Tensor:
    """Return the data of the rows that start at the input; `[1, B, ...]` stays shared."""
    if x.shape[0] == 1 or plan.info.in_order or plan.member_R is None:
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


def _join_rows(h: Tensor, plan: RowPlan, slot: int, whole: Tensor | None) -> Tensor:
    """Append the rows that start at this slot; shadow rows start from a detached activation.

    `whole`: `h` with headroom for them, if it has any.
    """
    source = plan.source_S[slot]
    if source is None:
        return h
    if fused.half_type(h) == h.dtype:
        from esper.kasmina.ops.kernels.rows import join

        return join(h, source, plan.shadow_R is not None, whole)
    begun = h.detach() if plan.shadow_R is not None else h
    return torch.cat([h, begun.index_select(0, source)])


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
        run_seeds = partial(_run_seeds, network, training, streams)
        return apply_slot_by_kernels(network, groups, h, run_seeds, own)
    for group in groups:
        h_G = h.index_select(0, group.rows_G)
        update = _seed_update(network, group, h_G, training, streams)
        alpha = _rowwise(group.alpha_G, h_G).to(h_G.dtype)
        if h.device.type == "cpu" and group.present == {BlendStyle.ADD}:
            h = h.index_add(0, group.rows_G, alpha * update)  # as below, with a cheaper backward
        else:
            h = h.index_copy(0, group.rows_G, h_G + alpha * update)
    return h


def _run_seeds(
    network: StackedNetwork,
    training: bool,
    streams: RowStreams | None,
    group: SeedGroup,
    h_G: Tensor,
    by_kernel: bool,
) -> Tensor:
    """Return what seeds compute, if a kernel blends it in, or else what they add."""
    if by_kernel:
        return _seed_delta(network, group, h_G, h_G, training, streams)
    return _seed_update(network, group, h_G, training, streams)


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
