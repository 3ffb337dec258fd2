"""Sizes of row plans, and where the entries of their groups lie.

The entries of all groups form one array for each property (row, member, alpha...), so that the host
computes and uploads them at once. Every group begins at an aligned place; the entries between the
end of a group and the next aligned place are not used.

Shape letters: R rows, S slots, K blueprints, J groups (slot by slot), N entries of all groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from esper.device.packing import ALIGNMENT
from esper.leyline.actions import BlendStyle
from esper.leyline.arrays import Bools, Codes, Ints
from esper.leyline.errors import EsperError
from esper.leyline.signals import NO_BLUEPRINT

_STYLES = len(BlendStyle)
_PRESENT = tuple(
    frozenset(style for style in BlendStyle if bits >> style & 1) for bits in range(1 << _STYLES)
)
"""Sets of blend styles by bit mask."""


@dataclass(frozen=True, slots=True)
class GroupShape:
    """Capacity for rows with the same blueprint in the same slot."""

    blueprint: int
    rows: int
    present: frozenset[BlendStyle]
    """Blend styles that are computed."""


@dataclass(frozen=True)
class RowShape:
    """Tensor sizes of a plan, which determine its sequence of kernels."""

    first: int
    """Rows that start at the input."""
    begin_S: tuple[int, ...]
    """Rows that start at each slot."""
    groups_S: tuple[tuple[GroupShape, ...], ...]

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:  # caches look up a shape many times a step
        return hash((self.first, self.begin_S, self.groups_S))

    @cached_property
    def first_live(self) -> int | None:
        """First slot with a group; None if there is none."""
        return next((s for s, groups in enumerate(self.groups_S) if groups), None)

    @cached_property
    def group_of(self) -> dict[tuple[int, int], GroupShape]:
        """Groups by slot and blueprint."""
        return {(s, group.blueprint): group for s, at in enumerate(self.groups_S) for group in at}

    @cached_property
    def total(self) -> int:
        """Rows of the host plus rows of seeds."""
        seeds = sum(group.rows for group in self.group_of.values())
        return self.first + sum(self.begin_S) + seeds

    def covers(self, need: RowShape) -> bool:
        """Whether rows of shape `need` and a padding row fit in."""
        if self.first != need.first:
            return False
        for s, (there, wanted) in enumerate(zip(self.begin_S, need.begin_S, strict=True)):
            if there < wanted + (s == self.first_live):
                return False
        for place, group in need.group_of.items():
            found = self.group_of.get(place)
            if found is None or found.rows < group.rows or not found.present >= group.present:
                return False
        return True


def smallest_shape(start_R: Ints, blueprint_RS: Ints, style_RS: Codes, blueprints: int) -> RowShape:
    """Return the smallest shape of rows that start at these slots and compute these seeds."""
    slots = blueprint_RS.shape[1]
    count_N = np.bincount(start_R + 1, minlength=slots + 1)
    first, *begin = count_N.tolist()
    row_N, slot_N = np.nonzero(blueprint_RS != NO_BLUEPRINT)
    code_N = slot_N * blueprints + blueprint_RS[row_N, slot_N]
    size = slots * blueprints * _STYLES
    count = np.bincount(code_N * _STYLES + style_RS[row_N, slot_N], minlength=size)
    count_KT = count.reshape(-1, _STYLES)
    rows_K, bits_K = count_KT.sum(axis=1), (count_KT > 0) @ (1 << np.arange(_STYLES))
    groups: list[list[GroupShape]] = [[] for _ in range(slots)]
    group_J = np.flatnonzero(rows_K)
    for code in group_J.tolist():
        slot, blueprint = divmod(code, blueprints)
        present = _PRESENT[bits_K[code]]
        groups[slot].append(GroupShape(blueprint, int(rows_K[code]), present))
    return RowShape(first, tuple(begin), tuple(map(tuple, groups)))


class GroupLayout:
    """Places of the entries of all groups of a shape."""

    def __init__(self, shape: RowShape, blueprints: int) -> None:
        groups = [(s, group) for s, at_slot in enumerate(shape.groups_S) for group in at_slot]
        self.shape = shape
        self.groups = len(groups)
        number_J = np.arange(self.groups)
        self.slot_J = np.array([s for s, _ in groups], dtype=np.int64)
        self.kind_J = np.array([group.blueprint for _, group in groups], dtype=np.int64)
        self.size_J = np.array([group.rows for _, group in groups], dtype=np.int64)
        room_J = aligned(self.size_J)
        self.begin_J = np.cumsum(room_J) - room_J
        self.group_N = np.repeat(number_J, room_J)
        self.slot_N = self.slot_J[self.group_N]
        self.within_N = np.arange(len(self.group_N)) - self.begin_J[self.group_N]
        """Place of an entry in its group."""
        least_J = np.array([min(group.present) for _, group in groups], dtype=np.int8)
        self.style_N = least_J[self.group_N]
        """Blend style of spare entries."""
        self._slot_S = np.arange(len(shape.groups_S))[:, None]
        self._group_SK = np.full((len(shape.groups_S), blueprints + 1), -1)
        """-1 for no group; the last column is that of NO_BLUEPRINT (-1)."""
        self._group_SK[self.slot_J, self.kind_J] = number_J

    def spans(self) -> list[slice]:
        """Return the entries of each group."""
        end_J = self.begin_J + self.size_J
        return list(map(slice, self.begin_J.tolist(), end_J.tolist()))

    def place(self, blueprint_RS: Ints, idle: Ints, idle_S: Ints) -> tuple[Ints, Bools]:
        """Return the row of each entry, and which entries no row of the group uses.

        The rows of a group are in order; spare entries repeat the idle rows.
        `idle`: padding rows in order, of which the first `idle_S[s]` may be used in slot s.
        """
        rows = len(blueprint_RS)
        group = self._group_SK[self._slot_S, blueprint_RS.T].ravel()
        found = np.flatnonzero(group >= 0)
        found = found[np.argsort(group[found], kind="stable")]
        group_F = group[found]
        count_J = np.bincount(group_F, minlength=self.groups)
        idle_J = idle_S[self.slot_J]
        wrong_J = (count_J > self.size_J) | ((count_J < self.size_J) & (idle_J == 0))
        if wrong_J.any():
            j = int(np.flatnonzero(wrong_J)[0])
            raise EsperError(
                f"{count_J[j]} rows of blueprint {self.kind_J[j]} in slot {self.slot_J[j]}: the "
                f"plan has room for {self.size_J[j]}, with {idle_J[j]} padding rows"
            )
        shift_J = self.begin_J - (np.cumsum(count_J) - count_J)
        spare_N = np.ones(len(self.group_N), dtype=np.bool_)
        rows_N = np.zeros(len(self.group_N), dtype=np.int64)
        if idle.size:
            again_N = self.within_N - count_J[self.group_N]
            rows_N = idle[again_N % np.maximum(idle_J, 1)[self.group_N]]
        at = np.arange(len(found)) + shift_J[group_F]
        rows_N[at], spare_N[at] = found % rows, False
        return rows_N, spare_N


def aligned(count: npt.ArrayLike) -> Ints:
    """Round up numbers of elements so that the next one is aligned, whatever their type."""
    return np.asarray(-(-np.asarray(count) // ALIGNMENT) * ALIGNMENT, dtype=np.int64)
