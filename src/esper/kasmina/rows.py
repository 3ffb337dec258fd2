"""Which forwards are computed: the table of rows, and the plan an executor follows.

A row is one forward of a member with given alphas. Training has a main row per member and a
shadow row per incubating seed; validation and counterfactuals are rows too. A row may begin at a
slot, from another row's activation there, so that a common prefix is computed once. Rows are
ordered: those that begin at the input first, then by the slot they begin at.

Shape letters: E members, R rows, S slots (execution order), G rows of one group.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from esper.kasmina.devices import upload
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


@dataclass(frozen=True, slots=True)
class RowPlan:
    """A table made ready for a device: index tensors per slot and group."""

    table: RowTable
    blueprint_RS: Ints
    style_RS: Codes
    detached_RS: Bools
    main_R: Bools
    """Rows whose running statistics become the host's: a member as it stands, once."""
    keeps_RS: Bools
    """Rows whose running statistics become the seed's: those that train it, once."""
    members: int
    member_R: Tensor | None
    """None where the rows are exactly the members in order."""
    shadow_R: Tensor | None
    """None where no row is a shadow."""
    active_S: tuple[int, ...]
    """Rows in computation from slot s on."""
    source_S: tuple[Tensor | None, ...]
    """Rows whose activation the rows that begin at slot s take over."""
    groups_S: tuple[tuple[SeedGroup, ...], ...]
    shadow_place: Tensor | None
    """For each shadow row: member * S + slot of the seed it trains (None: no shadow rows)."""

    @property
    def first_active(self) -> int:
        """Rows that begin at the input."""
        return int((self.table.start_R == FROM_INPUT).sum())


def make_plan(
    table: RowTable, life: Lifecycle, device: torch.device, detach_seed_input: bool = False
) -> RowPlan:
    """Compile a table: one upload per index array, no loop over members or rows."""
    _check(table, life)
    stage_RS = life.stage_ES[table.member_R]
    reached_RS = np.arange(len(life.slots))[None, :] >= table.start_R[:, None]
    live_RS = (table.alpha_RS > 0) & reached_RS
    blueprint_RS = np.where(live_RS, life.blueprint_ES[table.member_R], NO_BLUEPRINT)
    on_trial = np.isin(stage_RS, [int(SeedStage.BLENDING), int(SeedStage.HOLDING)])
    detached_RS = on_trial & detach_seed_input
    style_RS = life.style_ES[table.member_R]
    main_R = _main_rows(table, life)
    own_RS = table.shadow_R[:, None] & (table.start_R[:, None] == np.arange(len(life.slots)))
    keeps_RS = live_RS & (own_RS | (main_R[:, None] & ~life.pruning_ES[table.member_R]))
    slots = range(len(life.slots))
    everyone = np.array_equal(table.member_R, np.arange(life.members))
    groups = tuple(
        tuple(
            _group(table, s, int(k), blueprint_RS, style_RS, detached_RS, device)
            for k in np.unique(blueprint_RS[:, s])
            if k != NO_BLUEPRINT
        )
        for s in slots
    )
    starts = [np.flatnonzero(table.start_R == s) for s in slots]
    return RowPlan(
        table=table,
        blueprint_RS=blueprint_RS,
        style_RS=style_RS,
        detached_RS=detached_RS,
        main_R=main_R,
        keeps_RS=keeps_RS,
        members=life.members,
        member_R=None if everyone else upload(table.member_R, device),
        shadow_R=upload(table.shadow_R, device) if table.shadow_R.any() else None,
        active_S=tuple(int((table.start_R <= s).sum()) for s in slots),
        source_S=tuple(upload(table.source_R[r], device) if r.size else None for r in starts),
        groups_S=groups,
        shadow_place=_shadow_place(table, device),
    )


def _main_rows(table: RowTable, life: Lifecycle) -> Bools:
    """Whole rows of members as they stand, each member's first."""
    stands = (table.alpha_RS == life.alpha_ES[table.member_R]).all(axis=1)
    rows = np.flatnonzero((table.start_R == FROM_INPUT) & ~table.shadow_R & stands)
    _, first = np.unique(table.member_R[rows], return_index=True)
    main_R = np.zeros(table.rows, dtype=np.bool_)
    main_R[rows[first]] = True
    return main_R


def _shadow_place(table: RowTable, device: torch.device) -> Tensor | None:
    if not table.shadow_R.any():
        return None
    place_R = table.member_R * table.alpha_RS.shape[1] + table.start_R
    return upload(place_R[table.shadow_R], device)


def _group(
    table: RowTable,
    slot: int,
    kind: int,
    blueprint_RS: Ints,
    style_RS: Codes,
    detached_RS: Bools,
    device: torch.device,
) -> SeedGroup:
    rows = np.flatnonzero(blueprint_RS[:, slot] == kind)
    frozen = table.shadow_R[rows] & (table.start_R[rows] != slot)
    detached = detached_RS[rows, slot] & ~table.shadow_R[rows]
    styles = style_RS[rows, slot]
    return SeedGroup(
        slot=slot,
        blueprint=kind,
        rows_G=upload(rows, device),
        members_G=upload(table.member_R[rows], device),
        alpha_G=upload(table.alpha_RS[rows, slot], device),
        style_G=upload(styles, device),
        present=frozenset(BlendStyle(s) for s in np.unique(styles)),
        frozen_G=upload(frozen, device) if frozen.any() else None,
        detached_G=upload(detached, device) if detached.any() else None,
    )


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
