"""How much room plans are given, so that their shape seldom changes.

A captured graph holds for one shape of plan only. Counts of rows are therefore rounded up to a
bucket, a plan that fits into room which is there already takes it, and new room is made large
enough for the last plan too; both only where that wastes little. Fine buckets keep a growth that
stands still cheap; shared room keeps one that changes at every step from a capture at every step.

The buckets for E members: 0; 4; multiples of E/16 (of 4, if that is more) up to E; from there on a
quarter more each time. Where seeds are live, one row of padding is always kept, because what a
group has too much room for must point at a row that is nobody's.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import torch

from esper.kasmina.lifecycle import Lifecycle
from esper.kasmina.rows import GroupShape, PlanRoom, RowShape, RowTable, shape_of

SMALLEST: Final = 4
"""The least room for rows, where there are any."""
SHARES: Final = 16
"""Buckets up to E."""
GROWTH: Final = 1.25
"""From one bucket to the next above E."""
SLACK: Final = 1.25
"""Rows, relative to those of the right bucket, up to which room made for others is shared."""
ROOMS: Final = 192
"""Rooms kept; beyond them the one used least recently goes."""


def bucket(count: int, members: int) -> int:
    """Room for `count` rows."""
    if count <= 0:
        return 0
    if count <= SMALLEST:
        return SMALLEST
    step = max(SMALLEST, -(-members // SHARES))
    size = -(-members // step) * step
    if count <= size:
        return -(-count // step) * step
    while size < count:
        size = -(-int(size * GROWTH) // step) * step
    return size


def bucketed(need: RowShape) -> RowShape:
    """Every count of a shape rounded up, with at least one row of padding where seeds are live."""
    begin = [bucket(count, need.first) for count in need.begin_S]
    live = need.first_live
    if live is not None and begin[live] == need.begin_S[live]:
        begin[live] = bucket(need.begin_S[live] + 1, need.first) if begin[live] else 1
    groups = tuple(
        tuple(GroupShape(g.blueprint, bucket(g.rows, need.first), g.present) for g in at_slot)
        for at_slot in need.groups_S
    )
    return RowShape(need.first, tuple(begin), groups)


def covers(room: RowShape, need: RowShape) -> bool:
    """Whether rows of shape `need` fit into `room`, padding row included."""
    if room.first != need.first:
        return False
    for s, (there, wanted) in enumerate(zip(room.begin_S, need.begin_S, strict=True)):
        if there < wanted + (s == room.first_live):
            return False
    for there_at, wanted_at in zip(room.groups_S, need.groups_S, strict=True):
        by_kind = {group.blueprint: group for group in there_at}
        for group in wanted_at:
            found = by_kind.get(group.blueprint)
            if found is None or found.rows < group.rows or not found.present >= group.present:
                return False
    return True


def rows_of(shape: RowShape) -> int:
    """What a shape costs: rows of the host, and rows of seeds."""
    seeds = sum(group.rows for at_slot in shape.groups_S for group in at_slot)
    return shape.first + sum(shape.begin_S) + seeds


def merged(one: RowShape, other: RowShape) -> RowShape:
    """Room for what fits into either."""
    begin = tuple(max(pair) for pair in zip(one.begin_S, other.begin_S, strict=True))
    groups = []
    for at_one, at_other in zip(one.groups_S, other.groups_S, strict=True):
        at_slot = {group.blueprint: group for group in at_one}
        for group in at_other:
            mine = at_slot.get(group.blueprint, group)
            rows, present = max(mine.rows, group.rows), mine.present | group.present
            at_slot[group.blueprint] = GroupShape(group.blueprint, rows, present)
        groups.append(tuple(at_slot[kind] for kind in sorted(at_slot)))
    return RowShape(one.first, begin, tuple(groups))


class PlanRooms:
    """The rooms of a population's padded plans."""

    def __init__(self, limit: int = ROOMS) -> None:
        self._limit = limit
        self._rooms: OrderedDict[tuple[str, RowShape], PlanRoom] = OrderedDict()

    def __len__(self) -> int:
        return len(self._rooms)

    def find(self, name: str, table: RowTable, life: Lifecycle, training: bool) -> PlanRoom:
        """Room for a table, for the use `name` alone: one there already, or a new one."""
        shape = self._shape(name, shape_of(table, life))
        room = self._rooms.setdefault((name, shape), PlanRoom(shape, training))
        self._rooms.move_to_end((name, shape))
        if len(self._rooms) > self._limit:
            self._rooms.popitem(last=False)
        return room

    def _shape(self, name: str, need: RowShape) -> RowShape:
        """The smallest known shape that fits; else one that fits the last use as well."""
        wanted = bucketed(need)
        if torch.are_deterministic_algorithms_enabled():  # `exact`: what came before plays no part
            return wanted
        most = SLACK * rows_of(wanted)
        known = [shape for owner, shape in self._rooms if owner == name]
        fitting = [shape for shape in known if rows_of(shape) <= most and covers(shape, need)]
        if fitting:
            return min(fitting, key=rows_of)
        both = merged(known[-1], wanted) if known else wanted
        return both if rows_of(both) <= most and covers(both, need) else wanted
