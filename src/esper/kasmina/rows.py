"""Which forwards are computed: the table of rows, and the plan an executor follows.

A row is one forward of a member with given alphas. Training has a main row per member and a
shadow row per incubating seed; validation and counterfactuals are rows too. A row may begin at a
slot, from another row's activation there, so that a common prefix is computed once. Rows are
ordered: those that begin at the input first, then by the slot they begin at.

A plan may have room for more rows than there are (`PlanRoom`): padding rows fill it, which read
member 0 and give nothing back, neither a gradient nor a loss nor a statistic.

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
    """What to compute, on the host."""

    member_R: Ints
    """Whose parameters and data the row uses."""
    alpha_RS: Floats
    """Strength of each seed; at 0 the seed is not part of the row's computation at all. Slots
    before the one a row begins at do not count."""
    start_R: Ints
    """Slot the row begins at, FROM_INPUT for a whole forward."""
    source_R: Ints
    """Row whose activation it begins from (any value where it begins at the input)."""
    shadow_R: Bools
    """Trains the seed at its first slot and nothing else."""

    @property
    def rows(self) -> int:
        """R."""
        return len(self.member_R)


def whole_rows(member_R: Ints, alpha_RS: Floats) -> RowTable:
    """Rows that all begin at the input."""
    count = len(member_R)
    return RowTable(
        member_R.astype(np.int64),
        alpha_RS.astype(np.float32),
        np.full(count, FROM_INPUT, dtype=np.int64),
        np.zeros(count, dtype=np.int64),
        np.zeros(count, dtype=np.bool_),
    )


def member_rows(life: Lifecycle) -> RowTable:
    """One row per member as it stands: what a user of the member would get."""
    return whole_rows(np.arange(life.members), life.alpha_ES)


def training_rows(life: Lifecycle) -> RowTable:
    """Main rows of all members, then a shadow row for each incubating seed."""
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
    """Room for rows in which the same blueprint is live in the same slot."""

    blueprint: int
    rows: int
    present: frozenset[BlendStyle]
    """Styles that are computed."""


@dataclass(frozen=True, slots=True)
class RowShape:
    """How large the tensors of a plan are: all that its sequence of kernels depends on."""

    first: int
    """Rows that begin at the input."""
    begin_S: tuple[int, ...]
    """Rows that begin at each slot."""
    groups_S: tuple[tuple[GroupShape, ...], ...]

    @property
    def first_live(self) -> int | None:
        """First slot that has a group; None where no seed is live."""
        return next((s for s, groups in enumerate(self.groups_S) if groups), None)


class PlanRoom:
    """Device memory for all plans of one shape, at fixed addresses; two are never the same."""

    def __init__(self, shape: RowShape, training: bool) -> None:
        self.shape = shape
        self.training = training
        """Whether its rows are for a train batch: late rows are shadows, padding is frozen."""
        self.packed: PackedArrays | None = None
        """None until the first plan is made in it."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainMask:
    """Who learns in one bank (or gate bank), on the host."""

    active_E: Bools
    fossil_E: Bools


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """Whose buffers (running statistics) a batch renews, and from which of the rows at hand."""

    kept_E: Tensor
    row_E: Tensor
    """Any row where nothing is kept."""


@dataclass(frozen=True, slots=True)
class SeedGroup:
    """Rows in which the same blueprint is live in the same slot."""

    slot: int
    blueprint: int
    rows_G: Tensor
    members_G: Tensor
    alpha_G: Tensor
    style_G: Tensor
    present: frozenset[BlendStyle]
    """Styles that occur, known on the host so that no others are computed."""
    frozen_G: Tensor | None
    """Rows that read the seed but do not train it (None: all train it)."""
    detached_G: Tensor | None
    """Rows whose seed does not pass gradients to the host below (None: all do)."""
    kept: Kept
    """Of the rows of the group."""


@dataclass(frozen=True, slots=True)
class RowPlan:
    """A table made ready for a device: index tensors per slot and group."""

    table: RowTable
    """Padding included."""
    blueprint_RS: Ints
    style_RS: Codes
    detached_RS: Bools
    main_R: Bools
    """Rows whose running statistics become the host's: a member as it stands, once."""
    keeps_RS: Bools
    """Rows whose running statistics become the seed's: those that train it, once."""
    members: int
    real_R: Ints | None
    """Places of the rows that were asked for (None: no padding between them)."""
    room: PlanRoom | None
    """Where its tensors are; None where they are its own."""
    member_R: Tensor | None
    """None where the rows are exactly the members in order."""
    in_order: bool
    """The rows that begin at the input are exactly the members in order."""
    shadow_R: Tensor | None
    """None where no row is a shadow."""
    active_S: tuple[int, ...]
    """Rows in computation from slot s on."""
    source_S: tuple[Tensor | None, ...]
    """Rows whose activation the rows that begin at slot s take over."""
    groups_S: tuple[tuple[SeedGroup, ...], ...]
    kept: Kept | None
    """Whose host buffers are renewed; None: everyone's, from the first rows."""
    shadow_place: Tensor | None
    """For each shadow row: member * S + slot of the seed it trains (None: no shadow rows); E * S
    for padding."""
    masks: Mapping[Hashable, tuple[Tensor, Tensor]]
    """For each bank that may learn from a train batch: who does, and who is permanent."""
    key_R: Tensor | None
    """Keys (int64) of the streams random layers draw from; None: the plan was made without."""

    @property
    def first_active(self) -> int:
        """Rows that begin at the input."""
        return int((self.table.start_R == FROM_INPUT).sum())


@dataclass(frozen=True, slots=True, eq=False)
class _Facts:
    """What follows from a table and the lifecycle, on the host."""

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
    room: PlanRoom | None = None,
    keys: Callable[[RowTable], Ints] | None = None,
) -> RowPlan:
    """Compile a table: one upload for all index arrays, no loop over members or rows.

    `masks`: who learns, for a train batch. `room`: padded to its shape and written into it; a plan
    made there before must not be used any more. `keys`: what gives each row its random stream.
    """
    _check(table, life)
    real_R, padding_R = None, np.zeros(table.rows, dtype=np.bool_)
    if room is not None:
        table, real_R, padding_R = pad_table(table, room)
    facts = _facts(table, padding_R, life, detach_seed_input)
    shape = _shape(facts) if room is None else room.shape
    arrays = _arrays(facts, shape, masks or {}, room, detach_seed_input)
    if keys is not None:
        arrays["key_R"] = keys(table)
    packed = PackedArrays(arrays, device) if room is None or room.packed is None else room.packed
    if room is not None:
        if packed is room.packed:
            packed.fill(arrays)
        room.packed = packed
    return _assemble(facts, shape, packed.tensors, real_R, room, tuple(masks or ()))


def shape_of(table: RowTable, life: Lifecycle) -> RowShape:
    """The least room a table needs."""
    return _shape(_facts(table, np.zeros(table.rows, dtype=np.bool_), life, False))


def pad_table(table: RowTable, room: PlanRoom) -> tuple[RowTable, Ints, Bools]:
    """The table with padding rows up to the shape; the places of its own rows, and the padding."""
    shape = room.shape
    slots = range(len(shape.begin_S))
    size_N = np.array([shape.first, *shape.begin_S])
    count_N = np.bincount(table.start_R + 1, minlength=len(size_N))
    if (count_N > size_N).any() or count_N[0] != shape.first:
        raise EsperError(f"{count_N} rows begin: the plan has room for {size_N}")
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
    shadow_R = (start_R != FROM_INPUT) & room.training
    return RowTable(member_R, alpha_RS, start_R, source_R, shadow_R), real_R, padding_R


def _facts(table: RowTable, padding_R: Bools, life: Lifecycle, detach_seed_input: bool) -> _Facts:
    slot_S = np.arange(len(life.slots))
    stage_RS = life.stage_ES[table.member_R]
    live_RS = (table.alpha_RS > 0) & (slot_S >= table.start_R[:, None])
    on_trial = np.isin(stage_RS, [int(SeedStage.BLENDING), int(SeedStage.HOLDING)])
    main_R = _main_rows(table, life)
    own_RS = table.shadow_R[:, None] & (table.start_R[:, None] == slot_S)
    trained_ES = np.zeros((life.members, len(life.slots)), dtype=np.bool_)
    np.logical_or.at(trained_ES, table.member_R, live_RS & (own_RS | ~table.shadow_R[:, None]))
    return _Facts(
        table=table,
        padding_R=padding_R,
        blueprint_RS=np.where(live_RS, life.blueprint_ES[table.member_R], NO_BLUEPRINT),
        style_RS=life.style_ES[table.member_R],
        detached_RS=on_trial & detach_seed_input,
        main_R=main_R,
        keeps_RS=live_RS & (own_RS | (main_R[:, None] & ~life.pruning_ES[table.member_R])),
        trained_ES=trained_ES,
    )


def _shape(facts: _Facts) -> RowShape:
    table = facts.table
    slots = range(table.alpha_RS.shape[1])
    begin_N = np.bincount(table.start_R + 1, minlength=len(slots) + 1)
    first, *begin = (int(count) for count in begin_N)
    groups = []
    for s in slots:
        at_slot = []
        for kind in np.unique(facts.blueprint_RS[:, s]):
            if kind != NO_BLUEPRINT:
                rows = facts.blueprint_RS[:, s] == kind
                present = frozenset(BlendStyle(v) for v in np.unique(facts.style_RS[rows, s]))
                at_slot.append(GroupShape(int(kind), int(rows.sum()), present))
        groups.append(tuple(at_slot))
    return RowShape(first, tuple(begin), tuple(groups))


def _main_rows(table: RowTable, life: Lifecycle) -> Bools:
    """Whole rows of members as they stand, each member's first."""
    stands = (table.alpha_RS == life.alpha_ES[table.member_R]).all(axis=1)
    rows = np.flatnonzero((table.start_R == FROM_INPUT) & ~table.shadow_R & stands)
    _, first = np.unique(table.member_R[rows], return_index=True)
    main_R = np.zeros(table.rows, dtype=np.bool_)
    main_R[rows[first]] = True
    return main_R


# ---- host arrays, by name -----------------------------------------------------------------

_HostArrays = dict[str, npt.NDArray[np.generic]]


def _arrays(
    facts: _Facts,
    shape: RowShape,
    masks: Mapping[Hashable, TrainMask],
    room: PlanRoom | None,
    detach_seed_input: bool,
) -> _HostArrays:
    """Everything a device is told; in a room, which arrays there are depends on nothing else."""
    table, members = facts.table, len(facts.trained_ES)
    out: _HostArrays = {}
    if table.rows != members or (table.member_R != np.arange(members)).any():
        out["member_R"] = table.member_R
    if table.shadow_R.any():
        out["shadow_R"] = table.shadow_R
        slots = table.alpha_RS.shape[1]
        place_R = table.member_R * slots + table.start_R
        out["shadow_place"] = np.where(facts.padding_R, members * slots, place_R)[table.shadow_R]
    if not (_in_order(facts) and facts.main_R[:members].all()):
        if room is not None:
            raise EsperError("rows with padding begin with all members as they stand")
        out |= _kept_arrays("", table.member_R, facts.main_R, members)
    for s, groups in enumerate(shape.groups_S):
        begun = np.flatnonzero(table.start_R == s)
        if begun.size:
            out[f"source/{s}"] = table.source_R[begun]
        for group in groups:
            name = f"group/{s}/{group.blueprint}/"
            parts = _group_arrays(facts, s, group, room, detach_seed_input)
            out |= {name + part: values for part, values in parts.items()}
    for index, (key, mask) in enumerate(masks.items()):
        assert isinstance(key, tuple), "banks are known by slot and blueprint"
        out[f"mask/{index}/active_E"] = mask.active_E & facts.trained_ES[:, key[0]]
        out[f"mask/{index}/fossil_E"] = mask.fossil_E
    return out


def _in_order(facts: _Facts) -> bool:
    first = facts.table.member_R[facts.table.start_R == FROM_INPUT]
    return np.array_equal(first, np.arange(len(facts.trained_ES)))


def _kept_arrays(name: str, member_G: Ints, keeps_G: Bools, members: int) -> _HostArrays:
    kept_E = np.zeros(members, dtype=np.bool_)
    row_E = np.zeros(members, dtype=np.int64)
    rows = np.flatnonzero(keeps_G)
    kept_E[member_G[rows]], row_E[member_G[rows]] = True, rows
    return {f"{name}kept_E": kept_E, f"{name}kept_row_E": row_E}


def _group_arrays(
    facts: _Facts, slot: int, group: GroupShape, room: PlanRoom | None, detach_seed_input: bool
) -> _HostArrays:
    table = facts.table
    rows = np.flatnonzero(facts.blueprint_RS[:, slot] == group.blueprint)
    spare = group.rows - len(rows)
    idle = np.flatnonzero(facts.padding_R & (table.start_R <= slot))
    if spare < 0 or (spare > 0 and not idle.size):
        raise EsperError(
            f"{len(rows)} rows of blueprint {group.blueprint} in slot {slot}: the plan has room "
            f"for {group.rows}, with {idle.size} padding rows"
        )
    rows = np.concatenate([rows, np.resize(idle, spare)])
    padding = facts.padding_R[rows]
    keeps = facts.keeps_RS[rows, slot] & ~padding
    style = facts.style_RS[rows, slot]
    out: _HostArrays = {
        "rows_G": rows,
        "members_G": table.member_R[rows],
        "alpha_G": table.alpha_RS[rows, slot],
        "style_G": np.where(padding, np.int8(min(group.present)), style),
    }
    out |= _kept_arrays("", table.member_R[rows], keeps, len(facts.trained_ES))
    frozen = padding | (table.shadow_R[rows] & (table.start_R[rows] != slot))
    detached = facts.detached_RS[rows, slot] & ~table.shadow_R[rows]
    if room.training if room is not None else frozen.any():
        out["frozen_G"] = frozen
    if room.training and detach_seed_input if room is not None else detached.any():
        out["detached_G"] = detached
    return out


# ---- device tensors -----------------------------------------------------------------------


def _assemble(
    facts: _Facts,
    shape: RowShape,
    tensors: Mapping[str, Tensor],
    real_R: Ints | None,
    room: PlanRoom | None,
    keys: tuple[Hashable, ...],
) -> RowPlan:
    active_S = np.cumsum([shape.first, *shape.begin_S])[1:]
    masks = {
        key: (tensors[f"mask/{i}/active_E"], tensors[f"mask/{i}/fossil_E"])
        for i, key in enumerate(keys)
    }
    kept = None if "kept_E" not in tensors else Kept(tensors["kept_E"], tensors["kept_row_E"])
    return RowPlan(
        table=facts.table,
        blueprint_RS=facts.blueprint_RS,
        style_RS=facts.style_RS,
        detached_RS=facts.detached_RS,
        main_R=facts.main_R,
        keeps_RS=facts.keeps_RS,
        members=len(facts.trained_ES),
        real_R=real_R,
        room=room,
        member_R=tensors.get("member_R"),
        in_order=_in_order(facts),
        shadow_R=tensors.get("shadow_R"),
        active_S=tuple(int(rows) for rows in active_S),
        source_S=tuple(tensors.get(f"source/{s}") for s in range(len(shape.begin_S))),
        groups_S=tuple(
            tuple(_seed_group(tensors, s, group) for group in groups)
            for s, groups in enumerate(shape.groups_S)
        ),
        kept=kept,
        shadow_place=tensors.get("shadow_place"),
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
        kept=Kept(tensors[f"{name}kept_E"], tensors[f"{name}kept_row_E"]),
    )


# ---- what is refused ----------------------------------------------------------------------


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
            f"{table.member_R[r]}, where no seed stands; set it to 0"
        )
    if not np.isfinite(table.alpha_RS).all() or (table.alpha_RS < 0).any():
        raise EsperError("alpha must be finite and 0 or more in every row and slot")
    _check_starts(table, life)
    if (np.diff(table.start_R) < 0).any():
        raise EsperError("rows must be ordered by the slot they begin at, whole rows first")


def _check_starts(table: RowTable, life: Lifecycle) -> None:
    """A row that begins at a slot takes over from an earlier row of the same member."""
    if ((table.start_R < FROM_INPUT) | (table.start_R >= len(life.slots))).any():
        raise EsperError(f"rows begin at slots -1 (the input) to {len(life.slots) - 1}")
    late = np.flatnonzero(table.start_R != FROM_INPUT)
    source = table.source_R[late]
    if not late.size:
        return
    if (source < 0).any() or (source >= table.rows).any():
        raise EsperError(f"rows {late.tolist()} begin from rows {source.tolist()}: no such row")
    other = table.member_R[source] != table.member_R[late]
    early = table.start_R[source] >= table.start_R[late]
    if (other | early).any():
        raise EsperError(
            f"row {late[other | early][0]} must begin from a row of its own member that is "
            f"computed before it"
        )
    if len(np.unique(table.shadow_R[late])) > 1:
        raise EsperError("rows that begin at a slot are all shadow rows, or none is")
