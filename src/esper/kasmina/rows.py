"""Row tables (which forward passes to compute) and the plans compiled from them.

A row is one forward pass of a member with given alphas. Training has a main row per member and a
shadow row per incubating seed; validation and counterfactuals are rows too. A row may start at a
slot, from another row's activation, so that a shared prefix is computed once. Rows are ordered:
those that start at the input first, then by the slot they start at.

A plan may have capacity for more rows (`PlanBuffers`), filled with padding rows: they read member 0
and contribute no gradient, loss or statistic.

Shape letters: E members, R rows, S slots (execution order), G rows of one group.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from esper.device.packing import PackedArrays
from esper.kasmina.lifecycle import Lifecycle
from esper.leyline.actions import BlendStyle
from esper.leyline.arrays import Bools, Codes, Floats, Ints
from esper.leyline.errors import EsperError
from esper.leyline.signals import NO_BLUEPRINT
from esper.leyline.stages import SeedStage

FROM_INPUT = -1


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
    """Return the main rows of all members, then a shadow row for each incubating seed."""
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


@dataclass(frozen=True, slots=True)
class GroupShape:
    """Capacity for rows with the same blueprint in the same slot."""

    blueprint: int
    rows: int
    present: frozenset[BlendStyle]
    """Blend styles that are computed."""


@dataclass(frozen=True, slots=True)
class RowShape:
    """Tensor sizes of a plan, which determine its sequence of kernels."""

    first: int
    """Rows that start at the input."""
    begin_S: tuple[int, ...]
    """Rows that start at each slot."""
    groups_S: tuple[tuple[GroupShape, ...], ...]

    @property
    def first_live(self) -> int | None:
        """First slot with a group; None if there is none."""
        return next((s for s, groups in enumerate(self.groups_S) if groups), None)


class PlanBuffers:
    """Device buffers at fixed addresses, reused by all plans of one shape."""

    def __init__(self, shape: RowShape, training: bool) -> None:
        self.shape = shape
        self.training = training
        """Whether it is for train batches: late rows are shadow rows, padding is frozen."""
        self.packed: PackedArrays | None = None
        """None until the first plan is compiled."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainMask:
    """Members that train in one bank (or gate bank), on the host."""

    active_E: Bools
    fossil_E: Bools


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


@dataclass(frozen=True, slots=True)
class RowPlan:
    """A table compiled for a device: index tensors per slot and group."""

    table: RowTable
    """Including padding."""
    blueprint_RS: Ints
    style_RS: Codes
    detached_RS: Bools
    main_R: Bools
    """Rows whose running statistics are written to the host: one per member."""
    keeps_RS: Bools
    """Rows whose running statistics are written to the seed: one that trains it."""
    members: int
    real_R: Ints | None
    """Indices of the requested rows (None: all rows, no padding)."""
    live_R: Tensor | None
    """-1 for padding rows, else 1 (float32); None: no padding."""
    buffers: PlanBuffers | None
    """Shared buffers that hold its tensors; None if they are its own."""
    member_R: Tensor | None
    """None if row e is member e."""
    in_order: bool
    """The rows that start at the input are the members in order."""
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
    def first_active(self) -> int:
        """Number of rows that start at the input."""
        return int((self.table.start_R == FROM_INPUT).sum())


@dataclass(frozen=True, slots=True, eq=False)
class _TableInfo:
    """Host arrays derived from a table and the lifecycle."""

    table: RowTable
    padding_R: Bools
    blueprint_RS: Ints
    style_RS: Codes
    detached_RS: Bools
    main_R: Bools
    keeps_RS: Bools
    trained_ES: Bools
    """Seeds that some row trains."""


def make_plan(
    table: RowTable,
    life: Lifecycle,
    device: torch.device,
    detach_seed_input: bool = False,
    masks: Mapping[Hashable, TrainMask] | None = None,
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
        table, real_R, padding_R = pad_table(table, buffers)
    info = _table_info(table, padding_R, life, detach_seed_input)
    shape = _shape(info) if buffers is None else buffers.shape
    arrays = _arrays(info, shape, masks or {}, buffers, detach_seed_input)
    if keys is not None:
        arrays["key_R"] = keys(table)
    reused = None if buffers is None else buffers.packed
    packed = reused or PackedArrays(arrays, device)
    if buffers is not None:
        if packed is buffers.packed:
            packed.fill(arrays)
        buffers.packed = packed
    return _assemble(info, shape, packed.tensors, real_R, buffers, tuple(masks or ()))


def shape_of(table: RowTable, life: Lifecycle) -> RowShape:
    """Return the smallest shape that holds a table."""
    return _shape(_table_info(table, np.zeros(table.rows, dtype=np.bool_), life, False))


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


def pad_table(table: RowTable, buffers: PlanBuffers) -> tuple[RowTable, Ints, Bools]:
    """Pad a table; return it with the indices of the original rows and a padding mask."""
    shape = buffers.shape
    slots = range(len(shape.begin_S))
    size_N = np.array([shape.first, *shape.begin_S])
    count_N = np.bincount(table.start_R + 1, minlength=len(size_N))
    if (count_N > size_N).any() or count_N[0] != shape.first:
        raise EsperError(f"{count_N} rows start: the plan has room for {size_N}")
    within_R = np.arange(table.rows) - (np.cumsum(count_N) - count_N)[table.start_R + 1]
    real_R = (np.cumsum(size_N) - size_N)[table.start_R + 1] + within_R
    rows = int(size_N.sum())
    padding_R = np.ones(rows, dtype=np.bool_)
    padding_R[real_R] = False
    member_R, source_R = np.zeros((2, rows), dtype=np.int64)
    alpha_RS = np.zeros((rows, len(slots)), dtype=np.float32)
    member_R[real_R], alpha_RS[real_R] = table.member_R, table.alpha_RS
    source_R[real_R] = np.where(table.start_R == FROM_INPUT, 0, real_R[table.source_R])
    start_R = np.repeat(np.arange(-1, len(slots)), size_N)
    shadow_R = (start_R != FROM_INPUT) & buffers.training
    return RowTable(member_R, alpha_RS, start_R, source_R, shadow_R), real_R, padding_R


def _table_info(
    table: RowTable, padding_R: Bools, life: Lifecycle, detach_seed_input: bool
) -> _TableInfo:
    slot_S = np.arange(len(life.slots))
    stage_RS = life.stage_ES[table.member_R]
    live_RS = (table.alpha_RS > 0) & (slot_S >= table.start_R[:, None])
    on_trial = np.isin(stage_RS, [int(SeedStage.BLENDING), int(SeedStage.HOLDING)])
    main_R = _main_rows(table, life)
    own_RS = table.shadow_R[:, None] & (table.start_R[:, None] == slot_S)
    trained_ES = np.zeros((life.members, len(life.slots)), dtype=np.bool_)
    np.logical_or.at(trained_ES, table.member_R, live_RS & (own_RS | ~table.shadow_R[:, None]))
    return _TableInfo(
        table=table,
        padding_R=padding_R,
        blueprint_RS=np.where(live_RS, life.blueprint_ES[table.member_R], NO_BLUEPRINT),
        style_RS=life.style_ES[table.member_R],
        detached_RS=on_trial & detach_seed_input,
        main_R=main_R,
        keeps_RS=live_RS & (own_RS | (main_R[:, None] & ~life.pruning_ES[table.member_R])),
        trained_ES=trained_ES,
    )


def _shape(info: _TableInfo) -> RowShape:
    table = info.table
    slots = range(table.alpha_RS.shape[1])
    begin_N = np.bincount(table.start_R + 1, minlength=len(slots) + 1)
    first, *begin = (int(count) for count in begin_N)
    groups = []
    for s in slots:
        at_slot = []
        for kind in np.unique(info.blueprint_RS[:, s]):
            if kind != NO_BLUEPRINT:
                rows = info.blueprint_RS[:, s] == kind
                present = frozenset(BlendStyle(v) for v in np.unique(info.style_RS[rows, s]))
                at_slot.append(GroupShape(int(kind), int(rows.sum()), present))
        groups.append(tuple(at_slot))
    return RowShape(first, tuple(begin), tuple(groups))


def _main_rows(table: RowTable, life: Lifecycle) -> Bools:
    """Return the first full row of each member with its current alphas."""
    current = (table.alpha_RS == life.alpha_ES[table.member_R]).all(axis=1)
    rows = np.flatnonzero((table.start_R == FROM_INPUT) & ~table.shadow_R & current)
    _, first = np.unique(table.member_R[rows], return_index=True)
    main_R = np.zeros(table.rows, dtype=np.bool_)
    main_R[rows[first]] = True
    return main_R


# ---- host arrays, by name -----------------------------------------------------------------

_HostArrays = dict[str, npt.NDArray[np.generic]]


def _arrays(
    info: _TableInfo,
    shape: RowShape,
    masks: Mapping[Hashable, TrainMask],
    buffers: PlanBuffers | None,
    detach_seed_input: bool,
) -> _HostArrays:
    """Build all arrays to upload; with buffers, their layout depends only on the shape."""
    table, members = info.table, len(info.trained_ES)
    out: _HostArrays = {}
    if buffers is not None:
        out["live_R"] = _live(info.padding_R)
    if table.rows != members or (table.member_R != np.arange(members)).any():
        out["member_R"] = table.member_R
    if table.shadow_R.any():
        out["shadow_R"] = table.shadow_R
        slots = table.alpha_RS.shape[1]
        place_R = table.member_R * slots + table.start_R
        out["shadow_index"] = np.where(info.padding_R, members * slots, place_R)[table.shadow_R]
    if not (_in_order(info) and info.main_R[:members].all()):
        if buffers is not None:
            raise EsperError("padded rows must start with all members at their current alphas")
        out |= _kept_arrays("", table.member_R, info.main_R, members)
    for s, groups in enumerate(shape.groups_S):
        begun = np.flatnonzero(table.start_R == s)
        if begun.size:
            out[f"source/{s}"] = table.source_R[begun]
        for group in groups:
            name = f"group/{s}/{group.blueprint}/"
            parts = _group_arrays(info, s, group, buffers, detach_seed_input)
            out |= {name + part: values for part, values in parts.items()}
    for index, (key, mask) in enumerate(masks.items()):
        assert isinstance(key, tuple), "bank keys are (slot, blueprint)"
        out[f"mask/{index}/active_E"] = mask.active_E & info.trained_ES[:, key[0]]
        out[f"mask/{index}/fossil_E"] = mask.fossil_E
    return out


def _live(padding: Bools) -> npt.NDArray[np.float32]:
    return np.where(padding, np.float32(-1), np.float32(1))


def _in_order(info: _TableInfo) -> bool:
    first = info.table.member_R[info.table.start_R == FROM_INPUT]
    return np.array_equal(first, np.arange(len(info.trained_ES)))


def _kept_arrays(name: str, member_G: Ints, keeps_G: Bools, members: int) -> _HostArrays:
    kept_E = np.zeros(members, dtype=np.bool_)
    row_E = np.zeros(members, dtype=np.int64)
    rows = np.flatnonzero(keeps_G)
    kept_E[member_G[rows]], row_E[member_G[rows]] = True, rows
    return {f"{name}kept_E": kept_E, f"{name}kept_row_E": row_E}


def _group_arrays(
    info: _TableInfo,
    slot: int,
    group: GroupShape,
    buffers: PlanBuffers | None,
    detach_seed_input: bool,
) -> _HostArrays:
    table = info.table
    rows = np.flatnonzero(info.blueprint_RS[:, slot] == group.blueprint)
    spare = group.rows - len(rows)
    idle = np.flatnonzero(info.padding_R & (table.start_R <= slot))
    if spare < 0 or (spare > 0 and not idle.size):
        raise EsperError(
            f"{len(rows)} rows of blueprint {group.blueprint} in slot {slot}: the plan has room "
            f"for {group.rows}, with {idle.size} padding rows"
        )
    rows = np.concatenate([rows, np.resize(idle, spare)])
    padding = info.padding_R[rows]
    keeps = info.keeps_RS[rows, slot] & ~padding
    style = info.style_RS[rows, slot]
    out: _HostArrays = {
        "rows_G": rows,
        "members_G": table.member_R[rows],
        "alpha_G": table.alpha_RS[rows, slot],
        "style_G": np.where(padding, np.int8(min(group.present)), style),
    }
    if buffers is not None:
        out["live_G"] = _live(padding)
    out |= _kept_arrays("", table.member_R[rows], keeps, len(info.trained_ES))
    frozen = padding | (table.shadow_R[rows] & (table.start_R[rows] != slot))
    detached = info.detached_RS[rows, slot] & ~table.shadow_R[rows]
    if buffers.training if buffers is not None else frozen.any():
        out["frozen_G"] = frozen
    if buffers.training and detach_seed_input if buffers is not None else detached.any():
        out["detached_G"] = detached
    return out


# ---- device tensors -----------------------------------------------------------------------


def _assemble(
    info: _TableInfo,
    shape: RowShape,
    tensors: Mapping[str, Tensor],
    real_R: Ints | None,
    buffers: PlanBuffers | None,
    keys: tuple[Hashable, ...],
) -> RowPlan:
    active_S = np.cumsum([shape.first, *shape.begin_S])[1:]
    masks = {
        key: (tensors[f"mask/{i}/active_E"], tensors[f"mask/{i}/fossil_E"])
        for i, key in enumerate(keys)
    }
    kept = None
    if "kept_E" in tensors:
        kept = BufferUpdates(tensors["kept_E"], tensors["kept_row_E"])
    return RowPlan(
        table=info.table,
        blueprint_RS=info.blueprint_RS,
        style_RS=info.style_RS,
        detached_RS=info.detached_RS,
        main_R=info.main_R,
        keeps_RS=info.keeps_RS,
        members=len(info.trained_ES),
        real_R=real_R,
        live_R=tensors.get("live_R"),
        buffers=buffers,
        member_R=tensors.get("member_R"),
        in_order=_in_order(info),
        shadow_R=tensors.get("shadow_R"),
        active_S=tuple(int(rows) for rows in active_S),
        source_S=tuple(tensors.get(f"source/{s}") for s in range(len(shape.begin_S))),
        groups_S=tuple(
            tuple(_seed_group(tensors, s, group) for group in groups)
            for s, groups in enumerate(shape.groups_S)
        ),
        kept=kept,
        shadow_index=tensors.get("shadow_index"),
        masks=masks,
        key_R=tensors.get("key_R"),
    )


def _seed_group(tensors: Mapping[str, Tensor], slot: int, group: GroupShape) -> SeedGroup:
    name = f"group/{slot}/{group.blueprint}/"
    return SeedGroup(
        slot=slot,
        blueprint=group.blueprint,
        rows_G=tensors[f"{name}rows_G"],
        members_G=tensors[f"{name}members_G"],
        alpha_G=tensors[f"{name}alpha_G"],
        style_G=tensors[f"{name}style_G"],
        present=group.present,
        frozen_G=tensors.get(f"{name}frozen_G"),
        detached_G=tensors.get(f"{name}detached_G"),
        kept=BufferUpdates(tensors[f"{name}kept_E"], tensors[f"{name}kept_row_E"]),
        live_G=tensors.get(f"{name}live_G"),
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
    if len(np.unique(table.shadow_R[late])) > 1:
        raise EsperError("rows that start at a slot must be all shadow rows, or none")
