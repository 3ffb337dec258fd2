"""Records of a search: its candidates, and what became of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from esper.growing.topologies import Topology

Origin = Literal["host", "planted", "pruned", "grown", "refit"]
"""How a candidate came about: a host without seeds; seeds planted from the start; a copy of another
candidate with a seed removed or started during training; one of these topologies planted from the
start."""
GROWN_ORIGINS: Final = ("pruned", "grown")
"""Origins whose topologies have not been trained from the start."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One network of a search."""

    number: int
    host: int
    """Index of the host variant; 0: the model as it was given."""
    topology: Topology
    """Blueprint of each slot at the end, "" for an empty one."""
    rate: float
    """Learning rate."""
    origin: Origin
    parent: int | None
    """Candidate it was derived from."""
    bracket: int
    params: int
    macs: int
    curve: tuple[tuple[int, float], ...] = ()
    """(batches, validation score) at the end of every stage."""
    lower_is_better: bool = False
    """Whether a lower score is better."""
    compute: float = 0.0
    """Training compute, in batches of the bare host; of a copy, since it was made."""
    loss: float = math.nan
    """Last validation loss."""
    finished: bool = False
    """Trained in full."""
    saved: bool = False
    """Its weights are in the run folder."""

    @property
    def score(self) -> float:
        """Last validation score; NaN before the first."""
        return self.curve[-1][1] if self.curve else math.nan

    @property
    def merit(self) -> float:
        """The last validation score so that higher is better; NaN before the first."""
        return -self.score if self.lower_is_better else self.score

    @property
    def key(self) -> tuple[int, Topology, float]:
        """Candidates with the same key would be trained alike."""
        return self.host, self.topology, self.rate


@dataclass(frozen=True, slots=True)
class SearchState:
    """Everything a search needs to resume, besides the population of its current bracket."""

    candidates: tuple[Candidate, ...] = ()
    bracket: int = 0
    """Brackets completed."""
    compute: float = 0.0
    """Of all candidates, in batches of the bare host."""
    seconds: float = 0.0
    """Time spent by earlier sessions and this one."""
    stalled: int = 0
    """Brackets in a row that have not improved the frontier."""
    ends: tuple[int, ...] = ()
    """Batches at the ends of the stages of the bracket under way; empty between brackets."""
    stage: int = 0
    """Its current stage."""
    batch: int = 0
    """Batches all of its members have trained on."""
    batches: tuple[tuple[int, int], ...] = ()
    """(variant, batches its members have trained on)."""
    members: tuple[int, ...] = ()
    """Candidate numbers of its members."""
    compute_E: tuple[float, ...] = ()
    """What each of them has spent."""


def stages_done(state: SearchState) -> int:
    """Stages that ended, in all brackets: every one is a point of somebody's curve."""
    ends = {(one.bracket, batch) for one in state.candidates for batch, _ in one.curve}
    return len(ends)
