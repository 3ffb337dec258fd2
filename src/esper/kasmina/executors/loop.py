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
from torch.func import functional_call

from esper.kasmina import fused
from esper.kasmina.blending import blend
from esper.kasmina.executors.base import check_delta, check_input, set_training
from esper.kasmina.layout import channels_last
from esper.kasmina.network import Segment, StackedNetwork
from esper.kasmina.random_layers import RowDraws, RowStreams, Site, row_draws
from esper.kasmina.rows import FROM_INPUT, RowPlan
from esper.kasmina.store import ParameterStore
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
        check_input(network, x)
        set_training(network, training)
        draws = None if key_R is None else RowStreams(key_R)
        run = _LoopRun(network, x, plan, training, draws)
        outputs = []
        stock = fused.use_kernels(self.kernels)
        with stock, self._side_streams(network, plan) as streams:
            for row in range(plan.table.rows):
                member = int(plan.table.member_R[row])
                with torch.cuda.stream(streams[member]) if streams else contextlib.nullcontext():
                    outputs.append(run.row(row))
        return torch.stack(outputs)

    @contextlib.contextmanager
    def _side_streams(
        self, network: StackedNetwork, plan: RowPlan
    ) -> Iterator[list[torch.cuda.Stream]]:
        """Yield one stream per member, ordered after previous and before later work."""
        if network.device.type != "cuda":
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
class _LoopRun:
    """State of one pass: unbound parameters, and activations that other rows start from."""

    network: StackedNetwork
    x: Tensor
    plan: RowPlan
    training: bool
    streams: RowStreams | None
    rows_of: dict[int, tuple[Tensor, ...]] = field(default_factory=dict)
    kept: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    """(row, slot) -> activation."""
    wanted: set[tuple[int, int]] = field(default_factory=set)
    fused_pairs: dict[int, Segment] = field(default_factory=dict)

    def __post_init__(self) -> None:
        table = self.plan.table
        late = table.start_R != FROM_INPUT
        if not self.network.runs_whole:
            self.wanted = set(
                zip(table.source_R[late].tolist(), table.start_R[late].tolist(), strict=True)
            )
        for store in (
            self.network.host,
            *self.network.banks.values(),
            *self.network.gates.values(),
        ):
            self.rows_of[id(store)] = store.flat_EP.unbind(0)
        self.fused_pairs = self.network.usable_fused_pairs()
        if _prefers_channels_last(self.network, self.x):
            self.x = channels_last(self.x)

    def row(self, row: int) -> Tensor:
        """Compute one row, from the input or from its start slot."""
        network, table = self.network, self.plan.table
        member, start = int(table.member_R[row]), int(table.start_R[row])
        shadow = bool(table.shadow_R[row])
        keeps = self.training and bool(self.plan.main_R[row])
        state = self._state(network.host, member, frozen=shadow, keeps=keeps)
        if network.runs_whole:
            return self._whole_row(row, state)
        if start == FROM_INPUT:
            first, slot = 0, 0
            h = self.x[0] if self.x.shape[0] == 1 else self.x[member]
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
            with self._row_context(sites.get(index), row):
                h = _call(segment, state, h)
            h = self._apply_slots(row, h, index, slot)
            slot = self._next_slot(index)
            index += 1
        return h

    def _whole_row(self, row: int, state: dict[str, Tensor]) -> Tensor:
        """Run a host in one piece; a row that starts at a slot computes the prefix again.

        The prefix draws the numbers of the row that it continues.
        """
        network, index = self.network, len(self.network.segments) - 1
        x = self.x[0] if self.x.shape[0] == 1 else self.x[int(self.plan.table.member_R[row])]
        with self._row_context((network.sites or {}).get(index), self._row_at(row, -1)) as draws:

            def visit(position: int, h: Tensor) -> Tensor:
                for slot, spec in enumerate(network.slots):
                    if spec.position == position:
                        owner = self._row_at(row, slot)
                        h = self._apply_slot(owner, slot, h, row)
                        if isinstance(draws, RowDraws):
                            draws.continue_as(slice(owner, owner + 1))
                return h

            return _call(network.segments[index], state, x, visit)

    def _row_at(self, row: int, slot: int) -> int:
        """Return the row that computes a slot, and what follows it, for a row; -1: the input."""
        table = self.plan.table
        while int(table.start_R[row]) > slot:
            row = int(table.source_R[row])
        return row

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
            h = self._apply_slot(row, slot, h, row)
            slot += 1
        return h

    def _apply_slot(self, row: int, slot: int, h: Tensor, reader: int) -> Tensor:
        """Apply a slot of a row; `reader`: the row it is computed for, perhaps a second time."""
        self.network.check_activation(slot, h)
        if self.plan.table.alpha_RS[row, slot] > 0:
            h = self._apply_seed(row, slot, h, reader)
        if self.network.tap is not None and row == reader:
            self.network.tap(slot, h)
        return h

    def _apply_seed(self, row: int, slot: int, h: Tensor, reader: int) -> Tensor:
        plan, network = self.plan, self.network
        member, kind = int(plan.table.member_R[row]), int(plan.blueprint_RS[row, slot])
        shadow = bool(plan.table.shadow_R[reader])
        frozen = shadow and int(plan.table.start_R[reader]) != slot
        seed_in = h.detach() if plan.detached_RS[row, slot] and not shadow else h
        bank = network.bank(slot, kind)
        if not _supports_any_layout(bank.template):
            seed_in = seed_in.contiguous()
        if bank.writes_input:
            seed_in = seed_in.clone()
        keeps = self.training and bool(plan.keeps_RS[row, slot]) and row == reader
        state = self._state(bank, member, frozen, keeps)
        with self._row_context(bank.site, row):
            delta = functional_call(bank.template, state, (seed_in,), tie_weights=bank.tied)
        check_delta(network, slot, kind, delta, h)
        style = BlendStyle(plan.style_RS[row, slot])
        gate = None
        if style is BlendStyle.GATE:
            gates = network.gate(slot)
            own = self._state(gates, member, frozen)
            gate = functional_call(gates.template, own, (seed_in,), tie_weights=gates.tied)
        alpha = float(plan.table.alpha_RS[row, slot])
        if style is BlendStyle.ADD:
            return torch.add(h, delta, alpha=alpha)  # `blend` in one pass
        return blend(h, delta, alpha, style, gate)

    def _state(
        self, store: ParameterStore, member: int, frozen: bool, keeps: bool = False
    ) -> dict[str, Tensor]:
        """Return one member's parameters and buffers; `keeps`: write buffer updates back."""
        flat = self.rows_of[id(store)][member]
        # `data`: a write by one member must not count as a write into the others' buffers.
        fixed = {n: v[member].data if keeps else v[member].clone() for n, v in store.fixed.items()}
        named = store.named_row(flat.detach() if frozen else flat)
        if flat.is_cuda:
            named = {name: _aligned(value) for name, value in named.items()}
        return named | fixed


def _aligned(value: Tensor) -> Tensor:
    """Return the tensor at an address that cuDNN's batch norm accepts; a copy if need be."""
    return value if value.data_ptr() % CUDNN_ALIGNMENT == 0 else value.clone()


def _call(segment: Segment, state: dict[str, Tensor], *given: object) -> Tensor:
    if not segment.names:
        return segment.module(*given)  # type: ignore[no-any-return]
    own = {local: state[name] for local, name in segment.names.items()}
    out: Tensor = functional_call(segment.module, own, given, tie_weights=False)  # all are named
    return out


def _prefers_channels_last(network: StackedNetwork, x: Tensor) -> bool:
    """Whether to use channels-last activations.

    On a CPU, torch's pooling and convolution gradients are faster that way; small images are
    computed differently (`convolution`).
    """
    if x.device.type != "cpu" or x.ndim != 5 or network.topology != "cnn":
        return False
    pixels = x.shape[-2] * x.shape[-1]
    return pixels >= CHANNELS_LAST_PIXELS and _supports_any_layout(network.host.template)


def _supports_any_layout(module: nn.Module) -> bool:
    """Whether all submodules are ours or torch's; user modules and graphs may use `view`."""
    ours = ("esper.kasmina.", "torch.nn.")
    if not getattr(module, "supports_any_layout", True):
        return False
    return all(type(part).__module__.startswith(ours) for part in module.modules())
