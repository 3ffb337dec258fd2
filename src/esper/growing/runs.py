"""A run is an ordinary training of a plain module; the table of runs is the state of a search.

A run depends only on its row: on the network, the weights it starts from, the recipe, the data and
the seed, never on what trains beside it or before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from esper.growing.topologies import Topology

Origin = Literal["given", "width", "seeds", "grown", "pruned"]
"""How a network came about: the model as given; at another width or depth; with seeds from the
start; a finished run's network with one seed more, or one less."""
Purpose = Literal[
    "", "first", "opening", "survivor", "best", "regularised", "control", "widest", "longer",
    "unfinished", "neighbour", "filling", "finale", "smaller", "reference", "random",
]  # fmt: skip
"""Why a run was proposed (`ladder.py`); empty in tables that do not record it."""
Status = Literal["planned", "finished", "cut"]
"""`cut`: stopped before its end, and judged as it was; a resumed search trains it to its end."""
WARM_UP: Final = 0.05
"""Share of a run in which the learning rate rises to its full value."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a network is trained."""

    optimizer: Literal["adamw", "sgd", "own"]
    """`own`: the user's."""
    lr: float
    """Of a user's optimiser: the multiple of its own."""
    weight_decay: float
    clip: float
    """Maximum norm of the gradient; 0: no clipping."""
    batch_size: int
    batches: int
    """Length of the run."""
    augment: str = "none"
    """How samples are changed at random (`trainers/augment.py`)."""
    label_smoothing: float = 0.0

    def rate(self, batch: int) -> float:
        """Learning rate at a batch: a linear warm-up, then a cosine to 0.

        >>> recipe = Recipe("adamw", 1.0, 0.0, 1.0, 32, 1000)
        >>> recipe.rate(50), round(recipe.rate(999), 4)
        (1.0, 0.0)
        """
        warm = max(1, round(WARM_UP * self.batches))
        if batch < warm:
            return self.lr * (batch + 1) / (warm + 1)
        turn = math.pi * (batch - warm) / max(1, self.batches - warm)
        return self.lr * 0.5 * (1.0 + math.cos(turn))


@dataclass(frozen=True, slots=True)
class How:
    """How a run was computed: it may be repeated bit for bit on the same device."""

    device: str = ""
    trainer: str = ""
    """`eager`, `captured`, `sharded over N ranks`."""
    precision: str = "float32"
    bitwise: bool = True
    """False: an operation of the network has no deterministic kernel there, or GPUs share it."""
    note: str = ""
    """Why it was not captured, on a GPU; or not trained at all."""


@dataclass(frozen=True, slots=True)
class Row:
    """One run of the table."""

    number: int
    rung: int
    """Runs of a rung are proposed together, from those of the rungs before."""
    variant: int
    """Index of the width and depth; 0: the model as it was given."""
    topology: Topology
    """Blueprint of each slot, "" for an empty one."""
    recipe: Recipe
    seed: int
    """Names its random streams: initial weights, order of the samples, dropout."""
    origin: Origin
    parent: int | None = None
    """Row it was proposed from."""
    start: int | None = None
    """Row whose weights it starts from; None: its own initial weights."""
    params: int = 0
    macs: int = 0
    cost: float = math.nan
    """Training compute of one batch, relative to the model as given."""
    latency: float = 0.0
    """Milliseconds for one sample, before it was trained; 0: not measured."""
    lower_is_better: bool = False
    status: Status = "planned"
    trained: int = 0
    """Batches trained on."""
    score: float = math.nan
    """Validation score at its end; NaN: not known yet, or diverged."""
    loss: float = math.nan
    """Validation loss at its end."""
    curve: tuple[tuple[int, float], ...] = ()
    """(batches, training loss) on the way."""
    diverged: bool = False
    seconds: float = 0.0
    threads: int = 0
    """Threads that it is trained with on a CPU, if it has more than others."""
    how: How = How()
    saved: bool = False
    """Its weights are in the run folder."""
    purpose: Purpose = field(default="", metadata={"later": True})
    """Why it was proposed."""
    at: float = field(default=0.0, metadata={"later": True})
    """Seconds of the search, of all its sessions, when it was judged; 0: it was not."""

    @property
    def one_batch(self) -> Row:
        """A run of one batch of it, to predict its time."""
        return replace(self, recipe=replace(self.recipe, batches=1), trained=0)

    @property
    def ended(self) -> bool:
        """Whether it was judged."""
        return self.status != "planned"

    @property
    def failed(self) -> bool:
        """Whether it could not be trained: `how.note` says why."""
        return self.status == "finished" and not self.trained

    @property
    def merit(self) -> float:
        """The score so that higher is better; NaN before its end."""
        return -self.score if self.lower_is_better else self.score

    @property
    def compute(self) -> float:
        """Training compute so far, in batches of the model as given."""
        return self.cost * self.trained

    @property
    def key(self) -> tuple[object, ...]:
        """Rows with the same key are the same run."""
        return self.variant, self.topology, self.recipe, self.seed, self.start


@dataclass(frozen=True, slots=True)
class Table:
    """All runs of a search, by number; the whole state of the search."""

    rows: tuple[Row, ...] = ()
    seconds: float = 0.0
    """Time spent by all sessions."""
    ended: str = ""
    """Why the search is over; empty: it is not."""

    @property
    def compute(self) -> float:
        """Of all runs, in batches of the model as given."""
        return sum(row.compute for row in self.rows)

    @property
    def rungs(self) -> int:
        """Rungs that have begun."""
        return 1 + max((row.rung for row in self.rows), default=-1)

    def open_rows(self) -> list[Row]:
        """Runs that are to be trained, or trained further."""
        return [row for row in self.rows if row.status != "finished"]


def finished(rows: Iterable[Row]) -> list[Row]:
    """Those trained to their end."""
    return [row for row in rows if row.status == "finished"]


def out_of_reach(row: Row, rows: Iterable[Row]) -> bool:
    """Whether a network is one that could not be trained, or costs as much as one of these and more
    than all that could.
    """
    rows, network = list(rows), (row.variant, row.topology)
    failed = [one for one in rows if one.failed and one.cost <= row.cost]
    trained = [one for one in rows if one.trained and one.cost >= row.cost]
    if not failed or not trained:
        return bool(failed)
    could, could_not = (
        network in [(one.variant, one.topology) for one in some] for some in (trained, failed)
    )
    return could_not and not could


def known(score: float) -> float:
    """A score that can be compared: NaN is the worst."""
    return -math.inf if math.isnan(score) else score
