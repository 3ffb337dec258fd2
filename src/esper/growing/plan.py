"""How a search spends its compute: brackets of successive halving.

A bracket trains many candidates for a short time, keeps half of them, trains these twice as long,
and so on; the last ones are trained in full. With F finalists after R halvings it costs about
F * (1 + R / 2) full training runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from esper.leyline.errors import EsperError

HALVINGS: Final = 3
"""Most halvings of a bracket: the first ranking is made at an eighth of the training."""
LEAST_BATCHES: Final = 12
"""Candidates are not ranked after fewer batches than this."""


@dataclass(frozen=True, slots=True)
class Bracket:
    """Sizes of one bracket."""

    members: tuple[int, ...]
    """Members that train in each stage."""
    ends: tuple[int, ...]
    """Batches that a member has trained on at the end of each stage."""

    @property
    def runs(self) -> float:
        """Compute in full training runs, if every candidate cost as much as the bare host."""
        begins = (0, *self.ends[:-1])
        batches = sum(
            count * (end - begin)
            for count, begin, end in zip(self.members, begins, self.ends, strict=True)
        )
        return batches / self.ends[-1]


def make_bracket(length: int, most_members: int, runs: float) -> Bracket | None:
    """The largest bracket that costs at most `runs` full training runs; None if none does.

    `length`: batches of a full training run. `most_members`: members that fit into a population.
    """
    if length < 1 or most_members < 1:
        raise EsperError(f"bracket of length {length} with {most_members} members: both 1 or more")
    for halvings in range(HALVINGS, -1, -1):
        if halvings and length >> halvings < LEAST_BATCHES:
            continue
        ends = tuple(-(-length // 2 ** (halvings - rung)) for rung in range(halvings + 1))
        for finalists in range(most_members >> halvings, 0, -1):
            members = tuple(finalists << (halvings - rung) for rung in range(halvings + 1))
            bracket = Bracket(members, ends)
            if bracket.runs <= runs:
                return bracket
    return None
