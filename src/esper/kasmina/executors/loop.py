"""Executor that runs one row after the other, on a GPU each on its member's CUDA stream.

It runs hosts that cannot be vmapped, is used where it is faster, and is the reference for the vmap
executor: a row's result does not depend on other rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor, nn

from esper.kasmina.blueprints.seed_places import Segment
from esper.kasmina.executors.base import (
    ObjectiveOfRows,
    check_delta,
    check_input,
    set_training,
)
from esper.kasmina.layers.blending import blend
from esper.kasmina.layers.random_layers import RowStreams, Site, row_draws
from esper.kasmina.ops.kernel_scope import SharedInput, kernel_scope
from esper.kasmina.ops.layout import channels_last
from esper.kasmina.rows.rows import FROM_INPUT, RowPlan
from esper.kasmina.stacked.network import StackedNetwork
from esper.kasmina.stacked.store import ParameterStore
from esper.leyline.actions import BlendStyle
from esper.leyline.compute import KernelName

CHANNELS_LAST_PIXELS: Final = 256
"""Images with at least this many pixels are computed channels last on a CPU."""

CUDNN_ALIGNMENT: Final = 16
"""Bytes. Parameters are views into one row and may start anywhere; cuDNN's batch norm fails on
those that start elsewhere."""


class LoopExecutor:
    """Runs a plan row by row."""

    name = "loop"

    def __init__(self, kernels: KernelName = "own") -> None:
        self.kernels: KernelName = kernels
        self._streams: list[torch.cuda.Stream] = []

    def run(
        self,
        network: StackedNetwork,
        x: Tensor,
        plan: RowPlan,
        training: bool,
        key_R: Tensor | None = None,
    ) -> Tensor:
        """Return outputs `[R, B, ...]`."""
        run = self._begin(network, x, plan, training, key_R)
        outputs = []
        one_input = x.shape[0] == 1 and not torch.is_grad_enabled()
        shared = SharedInput(run.x[0]) if one_input else None
        with self._running(network, plan) as streams, kernel_scope(shared_input=shared):
            for row in range(plan.table.rows):
                with _on_stream(streams, int(plan.table.member_R[row])):
                    outputs.append(run.row(row))
        return torch.stack(outputs)

    def train(
        self,
        network: StackedNetwork,
        x: Tensor,
        plan: RowPlan,
        objective: ObjectiveOfRows,
        key_R: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return outputs and losses; a backward pass after each member's rows.

        So the activations of one member are in memory at a time, and on a CPU in its caches.
        """
        run = self._begin(network, x, plan, True, key_R)
        run.by_member = True
        rows = plan.table.rows
        outputs, losses = [x] * rows, [x] * rows
        with self._running(network, plan) as streams:
            for member, rows_M in rows_by_member(plan).items():
                with _on_stream(streams, member):
                    parts = []
                    for row in rows_M:
                        out = run.row(row).unsqueeze(0)
                        loss, part = objective(out, slice(row, row + 1))
                        outputs[row], losses[row] = out.detach(), loss.detach()
                        parts.append(part)
                    run.kept.clear()
                    whole = joined(parts)
                    if whole.requires_grad:  # False if the host is frozen and no seed is live
                        whole.sum().backward()  # type: ignore[no-untyped-call]
        for store in run.stores():
            store.collect_gradients()
        return joined(outputs), joined(losses)

    def _begin(
        self,
        network: StackedNetwork,
        x: Tensor,
        plan: RowPlan,
        training: bool,
        key_R: Tensor | None,
    ) -> LoopRun:
        check_input(network, x)
        set_training(network, training)
        return LoopRun(network, x, plan, training, None if key_R is None else RowStreams(key_R))

    @contextlib.contextmanager
    def _running(self, network: StackedNetwork, plan: RowPlan) -> Iterator[list[torch.cuda.Stream]]:
        """Yield one stream per member, ordered after previous and before later work."""
        with kernel_scope(kernels=self.kernels):
            yield from self._side_streams(network, plan)

    def _side_streams(
        self, network: StackedNetwork, plan: RowPlan
    ) -> Iterator[list[torch.cuda.Stream]]:
        if network.device.type != "cuda" or network.members == 1:
            yield []
            return
        while len(self._streams) < network.members:
            self._streams.append(torch.cuda.Stream(network.device))  # type: ignore[no-untyped-call]
        current = torch.cuda.current_stream(network.device)
        used = [self._streams[m] for m in sorted(set(plan.table.member_R.tolist()))]
        for stream in used:
            stream.wait_stream(current)
        yield self._streams
        for stream in used:
            current.wait_stream(stream)


@dataclass(slots=True)
class LoopRun:
    """State of one pass: unbound parameters, and activations that other rows start from."""

    network: StackedNetwork
    x: Tensor
    plan: RowPlan
    training: bool
    streams: RowStreams | None
    by_member: bool = False
    """Whether each member has a backward pass of its own, by leaves of its own."""
    rows_of: dict[int, tuple[Tensor, ...]] = field(default_factory=dict)
    kept: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    """(row, slot) -> activation."""
    wanted: set[tuple[int, int]] = field(default_factory=set)
    fused_pairs: dict[int, Segment] = field(default_factory=dict)

    def __post_init__(self) -> None:
        table = self.plan.table
        late = table.start_R != FROM_INPUT
        self.wanted = set(
            zip(table.source_R[late].tolist(), table.start_R[late].tolist(), strict=True)
        )
        self.fused_pairs = self.network.usable_fused_pairs()
        if _prefers_channels_last(self.network, self.x):
            self.x = channels_last(self.x)

    def stores(self) -> tuple[ParameterStore, ...]:
        network = self.network
        return network.host, *network.banks.values(), *network.gates.values()

    def row(self, row: int) -> Tensor:
        """Compute one row, from the input or from its start slot."""
        member, shadow = int(self.plan.table.member_R[row]), bool(self.plan.table.shadow_R[row])
        keeps = self.training and bool(self.plan.info.main_R[row])
        host = self.network.host
        with host.binding.holding(self._state(host, member, frozen=shadow, keeps=keeps)):
            return self._chain(row)

    def _chain(self, row: int) -> Tensor:
        network, table = self.network, self.plan.table
        start, shadow = int(table.start_R[row]), bool(table.shadow_R[row])
        if start == FROM_INPUT:
            first, slot = 0, 0
            h = self._input(row)
        else:
            first, slot = network.slots[start].position + 1, start
            kept = self.kept[int(table.source_R[row]), start]
            h = self._apply_slots(row, kept.detach() if shadow else kept, first - 1, slot)
            slot = self._next_slot(first - 1)
        sites = network.sites or {}
        index = first
        while index < len(network.segments):
            segment = network.segments[index]
            if index in self.fused_pairs and not self._needs_activation_after(row, index):
                segment, index = self.fused_pairs[index], index + 1
                slot = self._next_slot(index - 1)
            h = self._run_segment(row, segment, sites.get(index), h)
            h = self._apply_slots(row, h, index, slot)
            slot = self._next_slot(index)
            index += 1
        return h

    def _run_segment(self, row: int, segment: Segment, site: Site | None, h: Tensor) -> Tensor:
        with self._row_context(site, row):
            out: Tensor = segment.module(h)
        return out

    def _input(self, row: int) -> Tensor:
        return self.x[0] if self.x.shape[0] == 1 else self.x[int(self.plan.table.member_R[row])]

    def _row_context(
        self, site: Site | None, row: int
    ) -> contextlib.AbstractContextManager[object]:
        return row_draws(site, self.streams, slice(row, row + 1), stacked=False)

    def _needs_activation_after(self, row: int, index: int) -> bool:
        """Whether the activation after segment `index` is needed: by a seed, a row or a tap."""
        tapped = self.network.tap is not None
        return any(
            tapped or (row, slot) in self.wanted or self.plan.table.alpha_RS[row, slot] > 0
            for slot, spec in enumerate(self.network.slots)
            if spec.position == index
        )

    def _next_slot(self, index: int) -> int:
        """Return the first slot after segment `index`."""
        return sum(spec.position <= index for spec in self.network.slots)

    def _apply_slots(self, row: int, h: Tensor, index: int, slot: int) -> Tensor:
        """Apply the slots right after segment `index`, from `slot` on."""
        slots = self.network.slots
        while slot < len(slots) and slots[slot].position == index:
            if (row, slot) in self.wanted:
                self.kept[row, slot] = h.clone()  # the next segment may work in place
            h = self._apply_slot(row, slot, h)
            slot += 1
        return h

    def _apply_slot(self, row: int, slot: int, h: Tensor) -> Tensor:
        self.network.check_activation(slot, h)
        if self.plan.table.alpha_RS[row, slot] > 0:
            h = self._apply_seed(row, slot, h)
        if self.network.tap is not None:
            self.network.tap(slot, h)
        return h

    def _apply_seed(self, row: int, slot: int, h: Tensor) -> Tensor:
        plan, network = self.plan, self.network
        member, kind = int(plan.table.member_R[row]), int(plan.info.blueprint_RS[row, slot])
        shadow = bool(plan.table.shadow_R[row])
        frozen = shadow and int(plan.table.start_R[row]) != slot
        seed_in = h.detach() if plan.info.detached_RS[row, slot] and not shadow else h
        bank = network.bank(slot, kind)
        if not _supports_any_layout(bank.template):
            seed_in = seed_in.contiguous()
        if bank.writes_input:
            seed_in = seed_in.clone()
        keeps = self.training and bool(plan.info.keeps_RS[row, slot])
        delta = self._run_store(bank, row, member, frozen, keeps, seed_in)
        check_delta(network, slot, kind, delta, h)
        style = BlendStyle(plan.info.style_RS[row, slot])
        gate = None
        if style is BlendStyle.GATE:
            gate = self._run_store(network.gate(slot), row, member, frozen, False, seed_in)
        alpha = float(plan.table.alpha_RS[row, slot])
        if style is BlendStyle.ADD:
            return torch.add(h, delta, alpha=alpha)  # `blend` in one pass
        return blend(h, delta, alpha, style, gate)

    def _run_store(
        self, store: ParameterStore, row: int, member: int, frozen: bool, keeps: bool, x: Tensor
    ) -> Tensor:
        """Run the seed or gate of a member."""
        state = self._state(store, member, frozen, keeps)
        with self._row_context(store.site, row), store.binding.holding(state):
            out: Tensor = store.template(x)
        return out

    def _state(
        self, store: ParameterStore, member: int, frozen: bool, keeps: bool = False
    ) -> dict[str, Tensor]:
        """Return one member's parameters and buffers; `keeps`: write buffer updates back."""
        named = self._parameters(store, member, frozen)
        if store.flat_EP.is_cuda:
            named = {name: _aligned(value) for name, value in named.items()}
        return named | self._fixed(store, member, keeps)

    def _fixed(self, store: ParameterStore, member: int, keeps: bool) -> dict[str, Tensor]:
        """Return one member's buffers and frozen parameters."""
        # `data`: a write by one member must not count as a write into the others' buffers.
        return {n: v[member].data if keeps else v[member].clone() for n, v in store.fixed.items()}

    def _parameters(self, store: ParameterStore, member: int, frozen: bool) -> dict[str, Tensor]:
        if frozen or not torch.is_grad_enabled():
            return store.member_values(member)
        if self.by_member:
            return store.member_leaves(member)
        if id(store) not in self.rows_of:
            self.rows_of[id(store)] = store.flat_EP.unbind(0)
        return store.named_row(self.rows_of[id(store)][member])


def _aligned(value: Tensor) -> Tensor:
    """Return the tensor at an address that cuDNN's batch norm accepts; a copy if need be."""
    return value if value.data_ptr() % CUDNN_ALIGNMENT == 0 else value.clone()


def joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def rows_by_member(plan: RowPlan) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for row, member in enumerate(plan.table.member_R.tolist()):
        found.setdefault(member, []).append(row)
    return found


def _on_stream(
    streams: list[torch.cuda.Stream], member: int
) -> contextlib.AbstractContextManager[object]:
    return torch.cuda.stream(streams[member]) if streams else contextlib.nullcontext()


def _prefers_channels_last(network: StackedNetwork, x: Tensor) -> bool:
    """Whether to use channels-last activations.

    On a CPU, torch's pooling and convolution gradients are faster that way, on a GPU its half
    precision convolutions; small images are computed differently on a CPU (`convolution`).
    """
    if x.ndim != 5 or x.stride(-3) == 1:  # the latter: it already is
        return False
    large = x.is_cuda or x.shape[-2] * x.shape[-1] >= CHANNELS_LAST_PIXELS
    return large and network.any_layout  # asked last: it may take a trial


def _supports_any_layout(module: nn.Module) -> bool:
    """Whether all submodules are ours or torch's; user modules and graphs may use `view`."""
    ours = ("esper.kasmina.", "torch.nn.")
    return all(type(part).__module__.startswith(ours) for part in module.modules())
