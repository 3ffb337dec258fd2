"""Row tables (which forward passes to compute) and the plans compiled from them.

A row is one forward pass of a member with given alphas. Training has a main row per member and a
shadow row per seed in TRAINING; validation and counterfactuals are rows too. A row may start at a
slot, from another row's activation, so that a shared prefix is computed once. Rows are ordered:
those that start at the input first, then by the slot they start at.

A plan may have capacity for more rows (`PlanBuffers`), filled with padding rows: they read member 0
and contribute no gradient, loss or statistic.

Shape letters: E members, R rows, S slots (execution order), G rows of one group.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from esper.device.packing import PackedArrays
from esper.kasmina.lifecycle.lifecycle import Lifecycle
from esper.kasmina.rows.plan_layout import (
    GroupLayout,
    GroupShape,
    RowShape,
    aligned,
    smallest_shape,
)
from esper.leyline.actions import BlendStyle
from esper.leyline.arrays import Bools, Codes, Floats, Ints
from esper.leyline.errors import EsperError
from esper.leyline.signals import NO_BLUEPRINT
from esper.leyline.stages import SeedStage

FROM_INPUT = -1
_ON_TRIAL: Bools = np.isin(list(SeedStage), [SeedStage.BLENDING, SeedStage.HOLDING])


@dataclass(frozen=True, slots=True)
class RowTable:
    """Rows to compute, on the host."""

    member_R: Ints
    """Member whose parameters and data the row uses."""
    alpha_RS: Floats
    """Strength of each seed; a seed at 0 is not computed. Slots before the row's start are
    ignored."""
    start_R: Ints
    """Slot the row starts at; FROM_INPUT for a full forward pass."""
    source_R: Ints
    """Row whose activation it starts from (ignored for rows that start at the input)."""
    shadow_R: Bools
    """Trains only the seed at its first slot."""

    @property
    def rows(self) -> int:
        """R."""
        return len(self.member_R)


def whole_rows(member_R: Ints, alpha_RS: Floats) -> RowTable:
    """Return rows that all start at the input."""
    count = len(member_R)
    return RowTable(
        member_R.astype(np.int64),
        alpha_RS.astype(np.float32),
        np.full(count, FROM_INPUT, dtype=np.int64),
        np.zeros(count, dtype=np.int64),
        np.zeros(count, dtype=np.bool_),
    )


def member_rows(life: Lifecycle) -> RowTable:
    """Return one row per member with its current alphas."""
    return whole_rows(np.arange(life.members), life.alpha_ES)


def training_rows(life: Lifecycle) -> RowTable:
    """Return the main rows of all members, then a shadow row for each seed in TRAINING."""
    main = member_rows(life)
    slot_N, member_N = np.nonzero((life.stage_ES == SeedStage.TRAINING).T)
    later = np.arange(len(life.slots))[None, :] > slot_N[:, None]
    alpha_NS = np.where(later, life.alpha_ES[member_N], 0.0).astype(np.float32)
    alpha_NS[np.arange(len(slot_N)), slot_N] = 1.0
    return RowTable(
        np.concatenate([main.member_R, member_N]),
        np.concatenate([main.alpha_RS, alpha_NS]),
        np.concatenate([main.start_R, slot_N]),
        np.concatenate([main.source_R, member_N]),
        np.concatenate([main.shadow_R, np.ones(len(slot_N), dtype=np.bool_)]),
    )


class PlanBuffers:
    """Device buffers at fixed addresses, reused by all plans of one shape."""

    def __init__(self, shape: RowShape, training: bool) -> None:
        self.shape = shape
        self.training = training
        """Whether it is for train batches: late rows are shadow rows, padding is frozen."""
        self.packed: PackedArrays | None = None
        """None until the first plan is compiled."""
        self.first_plan: RowPlan | None = None
        """The first plan, whose tensors are those of all: without its buffers, which hold it."""
        self._layout: GroupLayout | None = None

    def layout(self, blueprints: int) -> GroupLayout:
        """Return the places of the entries of groups."""
        if self._layout is None:
            self._layout = GroupLayout(self.shape, blueprints)
        return self._layout

    @cached_property
    def start_R(self) -> Ints:
        """Slot that each row starts at."""
        size_N = [self.shape.first, *self.shape.begin_S]
        start_R = np.repeat(np.arange(FROM_INPUT, len(self.shape.begin_S)), size_N)
        start_R.setflags(write=False)
        return start_R


@dataclass(frozen=True, slots=True, eq=False)
class TrainMasks:
    """Members that train in each of M banks (or gate banks), on the host."""

    keys: tuple[Hashable, ...]
    slot_M: Ints
    active_ME: Bools
    static_ME: Bools


@dataclass(frozen=True, slots=True, eq=False)
class BufferUpdates:
    """Members whose buffers (running statistics) a batch updates, and from which rows."""

    kept_E: Tensor
    row_E: Tensor
    """Source row; arbitrary where nothing is written."""


@dataclass(frozen=True, slots=True)
class SeedGroup:
    """Rows with the same blueprint in the same slot."""

    slot: int
    blueprint: int
    rows_G: Tensor
    members_G: Tensor
    alpha_G: Tensor
    style_G: Tensor
    present: frozenset[BlendStyle]
    """Blend styles that occur, known on the host so that others are skipped."""
    frozen_G: Tensor | None
    """Rows that use the seed without training it (None: all train it)."""
    detached_G: Tensor | None
    """Rows whose seed input is detached from the host (None: none)."""
    kept: BufferUpdates
    """Buffer updates from rows of the group."""
    live_G: Tensor | None = None
    """-1 for unused entries, else 1 (float32); None: all are used."""


@dataclass(frozen=True, slots=True, eq=False)
class _RowInfo:
    """What the host knows of the rows of a plan: a table, and the lifecycle at that time."""

    table: RowTable
    """Including padding."""
    padding_R: Bools
    blueprint_RS: Ints
    style_RS: Codes
    detached_RS: Bools
    main_R: Bools
    """Rows whose running statistics are written to the host: one per member."""
    keeps_RS: Bools
    """Rows whose running statistics are written to the seed: one that trains it."""
    trained_ES: Bools
    """Seeds that some row trains."""
    in_order: bool
    """The rows that start at the input are the members in order."""


@dataclass(frozen=True, slots=True)
class RowPlan:
    """A table compiled for a device: index tensors per slot and group."""

    info: _RowInfo
    members: int
    real_R: Ints | None
    """Indices of the requested rows (None: all rows, no padding)."""
    live_R: Tensor | None
    """-1 for padding rows, else 1 (float32); None: no padding."""
    buffers: PlanBuffers | None
    """Shared buffers that hold its tensors; None if they are its own."""
    member_R: Tensor | None
    """None if row e is member e."""
    shadow_R: Tensor | None
    """None if there are no shadow rows."""
    active_S: tuple[int, ...]
    """Number of rows computed from slot s on."""
    source_S: tuple[Tensor | None, ...]
    """Source rows of the rows that start at slot s."""
    groups_S: tuple[tuple[SeedGroup, ...], ...]
    kept: BufferUpdates | None
    """Buffer updates of the host; None: of every member, from the first rows."""
    shadow_index: Tensor | None
    """For each shadow row: member * S + slot of the seed it trains, or E * S for padding; None if
    there are no shadow rows."""
    masks: Mapping[Hashable, tuple[Tensor, Tensor]]
    """Per bank that may train: who trains, and who is permanent."""
    key_R: Tensor | None
    """Random stream keys (int64) of the rows; None if compiled without."""

    @property
    def table(self) -> RowTable:
        """Its rows, including padding."""
        return self.info.table

    @property
    def first_active(self) -> int:
        """Number of rows that start at the input."""
        return int((self.table.start_R == FROM_INPUT).sum())


def make_plan(
    table: RowTable,
    life: Lifecycle,
    device: torch.device,
    detach_seed_input: bool = False,
    masks: TrainMasks | None = None,
    buffers: PlanBuffers | None = None,
    keys: Callable[[RowTable], Ints] | None = None,
) -> RowPlan:
    """Compile a table, with one upload for all index arrays and no loop over members or rows.

    `masks`: who trains, for a train batch. `buffers`: pad to its shape and write into its buffers;
    the previous plan in them becomes invalid. `keys`: returns the random stream key of each row.
    """
    _check(table, life)
    real_R, padding_R = None, np.zeros(table.rows, dtype=np.bool_)
    if buffers is not None:
        table, real_R, padding_R = _pad_table(table, buffers)
    info = _table_info(table, padding_R, life, detach_seed_input)
    blueprints = life.fits_SK.shape[1]
    if buffers is None:
        shape = smallest_shape(table.start_R, info.blueprint_RS, info.style_RS, blueprints)
        layout = GroupLayout(shape, blueprints)
    else:
        layout = buffers.layout(blueprints)
    arrays = _arrays(info, layout, masks, buffers, detach_seed_input)
    if keys is not None:
        arrays["key_R"] = keys(table)
    if buffers is not None and buffers.packed is not None and buffers.first_plan is not None:
        buffers.packed.fill(arrays)
        plan = buffers.first_plan
    else:
        packed = PackedArrays(arrays, device)
        groups_S = _groups(arrays, packed.tensors, layout, life.members, buffers is not None)
        plan = _assemble(info, layout.shape, packed.tensors, groups_S, masks)
        if buffers is not None:
            buffers.packed, buffers.first_plan = packed, plan
    return replace(plan, info=info, real_R=real_R, buffers=buffers)


def shape_of(table: RowTable, life: Lifecycle) -> RowShape:
    """Return the smallest shape that holds a table."""
    blueprint_RS = np.where(_live_seeds(table), life.blueprint_ES[table.member_R], NO_BLUEPRINT)
    style_RS, blueprints = life.style_ES[table.member_R], life.fits_SK.shape[1]
    return smallest_shape(table.start_R, blueprint_RS, style_RS, blueprints)


def plan_content(table: RowTable, life: Lifecycle, detach_seed_input: bool) -> tuple[bytes, ...]:
    """Return all that the loop executor reads of a plan on the host, as a key.

    A graph that captures such a plan is valid for no other: alphas and seeds are part of it.
    """
    info = _table_info(table, np.zeros(table.rows, dtype=np.bool_), life, detach_seed_input)
    arrays = (
        *(table.member_R, table.alpha_RS, table.start_R, table.source_R, table.shadow_R),
        *(info.blueprint_RS, info.style_RS, info.detached_RS, info.main_R, info.keeps_RS),
    )
    return tuple(array.tobytes() for array in arrays)


def _pad_table(table: RowTable, buffers: PlanBuffers) -> tuple[RowTable, Ints, Bools]:
    """Pad a table; return it with the indices of the original rows and a padding mask."""
    shape, start_R = buffers.shape, buffers.start_R
    size_N = np.array([shape.first, *shape.begin_S])
    count_N = np.bincount(table.start_R + 1, minlength=len(size_N))
    if (count_N > size_N).any() or count_N[0] != shape.first:
        raise EsperError(f"{count_N} rows start: the plan has room for {size_N}")
    shift_N = (np.cumsum(size_N) - size_N) - (np.cumsum(count_N) - count_N)
    real_R = np.arange(table.rows) + shift_N[table.start_R + 1]
    rows = len(start_R)
    padding_R = np.ones(rows, dtype=np.bool_)
    padding_R[real_R] = False
    member_R, source_R = np.zeros((2, rows), dtype=np.int64)
    alpha_RS = np.zeros((rows, table.alpha_RS.shape[1]), dtype=np.float32)
    member_R[real_R], alpha_RS[real_R] = table.member_R, table.alpha_RS
    source_R[real_R] = np.where(table.start_R == FROM_INPUT, 0, real_R[table.source_R])
    shadow_R = (start_R != FROM_INPUT) & buffers.training
    return RowTable(member_R, alpha_RS, start_R, source_R, shadow_R), real_R, padding_R


def _table_info(
    table: RowTable, padding_R: Bools, life: Lifecycle, detach_seed_input: bool
) -> _RowInfo:
    member_R, shadow_R1 = table.member_R, table.shadow_R[:, None]
    live_RS, main_R = _live_seeds(table), _main_rows(table, life)
    own_RS = shadow_R1 & (table.start_R[:, None] == np.arange(len(life.slots)))
    trained_ES = np.zeros((life.members, len(life.slots)), dtype=np.bool_)
    row, slot = np.nonzero(live_RS & (own_RS | ~shadow_R1))
    trained_ES[member_R[row], slot] = True
    first = member_R[table.start_R == FROM_INPUT]
    return _RowInfo(
        table=table,
        padding_R=padding_R,
        blueprint_RS=np.where(live_RS, life.blueprint_ES[member_R], NO_BLUEPRINT),
        style_RS=life.style_ES[member_R],
        detached_RS=_ON_TRIAL[life.stage_ES[member_R]] & detach_seed_input,
        main_R=main_R,
        keeps_RS=live_RS & (own_RS | (main_R[:, None] & ~life.pruning_ES[member_R])),
        trained_ES=trained_ES,
        in_order=np.array_equal(first, np.arange(life.members)),
    )


def _live_seeds(table: RowTable) -> Bools:
    """Return `[R, S]` the seeds that each row computes."""
    reached_RS = np.arange(table.alpha_RS.shape[1]) >= table.start_R[:, None]
    return np.asarray((table.alpha_RS > 0) & reached_RS)


def _main_rows(table: RowTable, life: Lifecycle) -> Bools:
    """Return the first full row of each member with its current alphas."""
    current = (table.alpha_RS == life.alpha_ES[table.member_R]).all(axis=1)
    rows = np.flatnonzero((table.start_R == FROM_INPUT) & ~table.shadow_R & current)[::-1]
    first_E = np.full(life.members, -1)
    first_E[table.member_R[rows]] = rows  # the last assignment counts: the first row
    main_R = np.zeros(table.rows, dtype=np.bool_)
    main_R[first_E[first_E >= 0]] = True
    return main_R


# ---- host arrays, by name -----------------------------------------------------------------

_HostArrays = dict[str, npt.NDArray[np.generic]]


def _arrays(
    info: _RowInfo,
    layout: GroupLayout,
    masks: TrainMasks | None,
    buffers: PlanBuffers | None,
    detach_seed_input: bool,
) -> _HostArrays:
    """Build all arrays to upload; with buffers, their layout depends only on the shape."""
    table, members = info.table, len(info.trained_ES)
    out: _HostArrays = {}
    if buffers is not None:
        out["live_R"] = _live(info.padding_R)
    if table.rows != members or not info.in_order:
        out["member_R"] = table.member_R
    if table.shadow_R.any():
        out["shadow_R"] = table.shadow_R
        slots = table.alpha_RS.shape[1]
        place_R = table.member_R * slots + table.start_R
        out["shadow_index"] = np.where(info.padding_R, members * slots, place_R)[table.shadow_R]
    if not (info.in_order and info.main_R[:members].all()):
        if buffers is not None:
            raise EsperError("padded rows must start with all members at their current alphas")
        rows = np.flatnonzero(info.main_R)
        kept_E, row_E = np.zeros(members, dtype=np.bool_), np.zeros(members, dtype=np.int64)
        kept_E[table.member_R[rows]], row_E[table.member_R[rows]] = True, rows
        out |= {"kept_E": kept_E, "kept_row_E": row_E}
    out |= _sources(table, layout.shape)
    if layout.groups:
        out |= _group_arrays(info, layout, buffers, detach_seed_input)
    if masks is not None and masks.keys:
        trains_ME = masks.active_ME & info.trained_ES.T[masks.slot_M]
        out |= {"mask/active_ME": _wide(trains_ME), "mask/static_ME": _wide(masks.static_ME)}
    return out


def _sources(table: RowTable, shape: RowShape) -> _HostArrays:
    out: _HostArrays = {}
    begin = shape.first
    for s, count in enumerate(shape.begin_S):
        if count:
            out[f"source/{s}"] = table.source_R[begin : begin + count]
        begin += count
    return out


def _wide(mask_ME: Bools) -> Bools:
    """Return a mask whose rows begin at aligned places."""
    banks, members = mask_ME.shape
    out = np.zeros((banks, int(aligned(members))), dtype=np.bool_)
    out[:, :members] = mask_ME
    return out


def _live(padding: Bools) -> npt.NDArray[np.float32]:
    return np.where(padding, np.float32(-1), np.float32(1))


def _group_arrays(
    info: _RowInfo, layout: GroupLayout, buffers: PlanBuffers | None, detach_seed_input: bool
) -> _HostArrays:
    """Build the arrays of all groups, entries side by side (`plan_layout`)."""
    table, slot_N, group_N = info.table, layout.slot_N, layout.group_N
    idle = np.flatnonzero(info.padding_R)
    idle_S = np.bincount(table.start_R[idle], minlength=table.alpha_RS.shape[1]).cumsum()
    rows_N, spare_N = layout.place(info.blueprint_RS, idle, idle_S)
    at = rows_N, slot_N
    member_N, shadow_N = table.member_R[rows_N], table.shadow_R[rows_N]
    out: _HostArrays = {
        "group/rows_N": rows_N,
        "group/members_N": member_N,
        "group/alpha_N": table.alpha_RS[at],
        "group/style_N": np.where(spare_N, layout.style_N, info.style_RS[at]),
    }
    kept = np.flatnonzero(info.keeps_RS[at] & ~spare_N)
    shape = layout.groups, int(aligned(len(info.trained_ES)))
    kept_JE, row_JE = np.zeros(shape, dtype=np.bool_), np.zeros(shape, dtype=np.int64)
    kept_JE[group_N[kept], member_N[kept]] = True
    row_JE[group_N[kept], member_N[kept]] = layout.within_N[kept]
    out |= {"group/kept_JE": kept_JE, "group/kept_row_JE": row_JE}
    if buffers is not None:
        out["group/live_N"] = _live(spare_N)
    if buffers is None or buffers.training:
        out["group/frozen_N"] = spare_N | (shadow_N & (table.start_R[rows_N] != slot_N))
    if detach_seed_input and (buffers is None or buffers.training):
        out["group/detached_N"] = info.detached_RS[at] & ~shadow_N
    return out


# ---- device tensors -----------------------------------------------------------------------


def _assemble(
    info: _RowInfo,
    shape: RowShape,
    tensors: Mapping[str, Tensor],
    groups_S: tuple[tuple[SeedGroup, ...], ...],
    masks: TrainMasks | None,
) -> RowPlan:
    """Return a plan of a shape; `make_plan` sets what belongs to one table."""
    members = len(info.trained_ES)
    active_S = np.cumsum([shape.first, *shape.begin_S])[1:]
    by_bank = {}
    if masks is not None and masks.keys:
        pair = (tensors[f"mask/{name}_ME"][:, :members] for name in ("active", "static"))
        by_bank = dict(zip(masks.keys, zip(*pair, strict=True), strict=True))
    kept = None
    if "kept_E" in tensors:
        kept = BufferUpdates(tensors["kept_E"], tensors["kept_row_E"])
    return RowPlan(
        info=info,
        members=members,
        real_R=None,
        live_R=tensors.get("live_R"),
        buffers=None,
        member_R=tensors.get("member_R"),
        shadow_R=tensors.get("shadow_R"),
        active_S=tuple(active_S.tolist()),
        source_S=tuple(tensors.get(f"source/{s}") for s in range(len(shape.begin_S))),
        groups_S=groups_S,
        kept=kept,
        shadow_index=tensors.get("shadow_index"),
        masks=by_bank,
        key_R=tensors.get("key_R"),
    )


def _groups(
    arrays: _HostArrays,
    tensors: Mapping[str, Tensor],
    layout: GroupLayout,
    members: int,
    padded: bool,
) -> tuple[tuple[SeedGroup, ...], ...]:
    """Return the groups of each slot, as views of the entries of all."""
    spans = enumerate(layout.spans())

    def group(slot: int, wanted: GroupShape) -> SeedGroup:
        j, span = next(spans)

        def part(name: str) -> Tensor:
            return tensors[f"group/{name}_N"][span]

        def part_if(name: str, needed: bool) -> Tensor | None:
            known = arrays.get(f"group/{name}_N")
            return part(name) if known is not None and (needed or known[span].any()) else None

        return SeedGroup(
            slot=slot,
            blueprint=wanted.blueprint,
            rows_G=part("rows"),
            members_G=part("members"),
            alpha_G=part("alpha"),
            style_G=part("style"),
            present=wanted.present,
            frozen_G=part_if("frozen", padded),
            detached_G=part_if("detached", padded),
            kept=BufferUpdates(
                tensors["group/kept_JE"][j, :members], tensors["group/kept_row_JE"][j, :members]
            ),
            live_G=part_if("live", padded),
        )

    return tuple(
        tuple(group(slot, wanted) for wanted in at_slot)
        for slot, at_slot in enumerate(layout.shape.groups_S)
    )


# ---- validation ---------------------------------------------------------------------------


def _check(table: RowTable, life: Lifecycle) -> None:
    if table.alpha_RS.shape != (table.rows, len(life.slots)):
        raise EsperError(
            f"alpha has shape {table.alpha_RS.shape}: expected {(table.rows, len(life.slots))}, "
            f"rows x slots"
        )
    if table.rows == 0 or table.member_R.min() < 0 or table.member_R.max() >= life.members:
        raise EsperError(f"rows {table.member_R.tolist()}: members are 0 to {life.members - 1}")
    empty = (table.alpha_RS > 0) & (life.blueprint_ES[table.member_R] == NO_BLUEPRINT)
    if empty.any():
        r, s = np.argwhere(empty)[0]
        raise EsperError(
            f"row {r}: alpha {table.alpha_RS[r, s]:g} in slot {life.slots[s]} of member "
            f"{table.member_R[r]}, which holds no seed; set it to 0"
        )
    if not np.isfinite(table.alpha_RS).all() or (table.alpha_RS < 0).any():
        raise EsperError("alpha must be finite and 0 or more in every row and slot")
    _check_starts(table, life)
    if (np.diff(table.start_R) < 0).any():
        raise EsperError("rows must be ordered by the slot they start at, full rows first")


def _check_starts(table: RowTable, life: Lifecycle) -> None:
    """Raise unless rows that start at a slot continue an earlier row of the same member."""
    if ((table.start_R < FROM_INPUT) | (table.start_R >= len(life.slots))).any():
        raise EsperError(f"rows start at slots -1 (the input) to {len(life.slots) - 1}")
    late = np.flatnonzero(table.start_R != FROM_INPUT)
    source = table.source_R[late]
    if not late.size:
        return
    if (source < 0).any() or (source >= table.rows).any():
        raise EsperError(f"rows {late.tolist()} start from rows {source.tolist()}: no such row")
    other = table.member_R[source] != table.member_R[late]
    early = table.start_R[source] >= table.start_R[late]
    if (other | early).any():
        raise EsperError(
            f"row {late[other | early][0]} must start from a row of its own member that is "
            f"computed before it"
        )
    if table.shadow_R[late].any() and not table.shadow_R[late].all():
        raise EsperError("rows that start at a slot must be all shadow rows, or none")
