"""Sizes of padded plans, chosen so that their shape seldom changes.

A captured graph is valid for one plan shape only. Row counts are therefore rounded up to a bucket,
a plan uses existing buffers if it fits, and new buffers are made large enough for the previous plan
too; both only if that wastes little. Fine buckets keep a steady population cheap. Where new shapes
keep coming (a policy that acts at every step), new buffers have room for all recent plans and some
more, and more waste is accepted: a capture costs as much as many padding rows, which fused blocks
skip. The loop executor reads its plan on the host, so there a graph belongs to one table, and plans
are not padded.

The buckets for E members: 0; 4; multiples of E/16 (of 4, if that is more) up to E; then growing by
a quarter each time. If seeds are live, one padding row is always reserved, because the unused
entries of a group must point to a row that no member uses.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from functools import reduce
from typing import Final

import torch

from esper.kasmina.lifecycle.lifecycle import Lifecycle
from esper.kasmina.rows.plan_layout import GroupShape, RowShape
from esper.kasmina.rows.rows import PlanBuffers, RowTable, plan_content, shape_of
from esper.leyline.actions import BlendStyle

MIN_BUCKET: Final = 4
"""Smallest non-zero bucket."""
SHARES: Final = 16
"""Number of buckets up to E."""
GROWTH: Final = 1.25
"""Ratio of consecutive buckets above E."""
SLACK: Final = 1.25
"""Largest waste, in rows relative to the exact bucket, at which existing buffers are reused."""
RESTLESS_SLACK: Final = 8.0
"""The same while new shapes keep coming."""
RESTLESS: Final = 2.0
"""New shapes, each weighted by MEMORY for each plan since, from which on more waste is accepted."""
MEMORY: Final = 0.98
RECENT: Final = 32
"""Plans that new buffers have room for while new shapes keep coming."""
HEADROOM: Final = 1.25
"""Room for rows relative to the largest of those plans."""
MAX_BUFFERS: Final = 192
"""Capacity of the cache; the least recently used buffers are evicted."""


def _bucket(count: int, members: int) -> int:
    """Return the bucket size for `count` rows."""
    if count <= 0:
        return 0
    if count <= MIN_BUCKET:
        return MIN_BUCKET
    step = max(MIN_BUCKET, -(-members // SHARES))
    size = -(-members // step) * step
    if count <= size:
        return -(-count // step) * step
    while size < count:
        size = -(-int(size * GROWTH) // step) * step
    return size


def _bucketed(need: RowShape) -> RowShape:
    """Round up every count, with at least one padding row if seeds are live."""
    begin = [_bucket(count, need.first) for count in need.begin_S]
    live = need.first_live
    if live is not None and begin[live] == need.begin_S[live]:
        begin[live] = _bucket(need.begin_S[live] + 1, need.first) if begin[live] else 1
    groups = tuple(
        tuple(GroupShape(g.blueprint, _bucket(g.rows, need.first), g.present) for g in at_slot)
        for at_slot in need.groups_S
    )
    return RowShape(need.first, tuple(begin), groups)


def _merged(one: RowShape, other: RowShape) -> RowShape:
    """Return a shape that covers both."""
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


def _covering(shapes: Sequence[RowShape]) -> RowShape:
    """Return a shape with headroom over all of them; in a slot any seed may have any blend style
    that one has."""
    both = reduce(_merged, shapes)
    members = both.first

    def roomy(count: int) -> int:
        return _bucket(int(HEADROOM * count) + 1, members) if count else 0

    groups = []
    for at_slot in both.groups_S:
        styles = frozenset[BlendStyle]().union(*(group.present for group in at_slot))
        groups.append(tuple(GroupShape(g.blueprint, roomy(g.rows), styles) for g in at_slot))
    return RowShape(members, tuple(roomy(count) for count in both.begin_S), tuple(groups))


class _History:
    """Recent plans of one use, and how often their shape was new."""

    def __init__(self) -> None:
        self.recent: deque[RowShape] = deque(maxlen=RECENT)
        self.novelty = 0.0

    def add(self, wanted: RowShape) -> None:
        """Note the exact bucket of a plan."""
        self.novelty = MEMORY * self.novelty + (wanted not in self.recent)
        self.recent.append(wanted)

    @property
    def restless(self) -> bool:
        """Whether new shapes keep coming."""
        return self.novelty >= RESTLESS

    def candidates(self, wanted: RowShape, last: RowShape | None) -> list[RowShape]:
        """Return shapes for new buffers, the preferred first; the exact bucket fits always."""
        found = [] if last is None else [_merged(last, wanted)]
        if self.restless:
            found.insert(0, _covering(self.recent))
        return [*found, wanted]


class PlanBufferCache:
    """LRU cache of the buffers of a population's padded plans."""

    def __init__(self, limit: int = MAX_BUFFERS) -> None:
        self._limit = limit
        self._buffers: OrderedDict[tuple[str, RowShape], PlanBuffers] = OrderedDict()
        self._exact: OrderedDict[Hashable, PlanBuffers] = OrderedDict()
        self._histories: dict[str, _History] = {}

    def __len__(self) -> int:
        return len(self._buffers)

    def find(
        self, name: str, table: RowTable, life: Lifecycle, training: bool, detach: bool = False
    ) -> PlanBuffers:
        """Return existing or new buffers for a table; `name` separates independent uses.

        `detach` makes no difference to a shape.
        """
        shape = self._shape(name, shape_of(table, life))
        key = (name, shape)
        if key not in self._buffers:
            self._buffers[key] = PlanBuffers(shape, training)
        self._buffers.move_to_end(key)
        if len(self._buffers) > self._limit:
            self._buffers.popitem(last=False)
        return self._buffers[key]

    def find_exact(
        self, name: str, table: RowTable, life: Lifecycle, training: bool, detach: bool
    ) -> PlanBuffers:
        """Return the buffers of this very table, without padding, for the loop executor."""
        key = (name, plan_content(table, life, detach))
        if key not in self._exact:
            self._exact[key] = PlanBuffers(shape_of(table, life), training)
        self._exact.move_to_end(key)
        if len(self._exact) > self._limit:
            self._exact.popitem(last=False)
        return self._exact[key]

    def _shape(self, name: str, need: RowShape) -> RowShape:
        """Return the smallest known shape that fits, else one that also fits earlier plans."""
        wanted = _bucketed(need)
        if torch.are_deterministic_algorithms_enabled():  # `exact`: independent of history
            return wanted
        history = self._histories.setdefault(name, _History())
        history.add(wanted)
        most = (RESTLESS_SLACK if history.restless else SLACK) * wanted.total
        known = [shape for owner, shape in self._buffers if owner == name]

        def fits(shape: RowShape) -> bool:
            return shape.total <= most and shape.covers(need)

        fitting = [shape for shape in known if fits(shape)]
        if fitting:
            return min(fitting, key=lambda shape: shape.total)
        return next(filter(fits, history.candidates(wanted, known[-1] if known else None)))
