"""Searches of a table of runs without torch's work: networks by formula, a trainer that counts."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from esper.growing.budget import Budget
from esper.growing.clock import Clock
from esper.growing.ladder import Ladder
from esper.growing.moves import Space
from esper.growing.networks import Networks, Size
from esper.growing.proposals import LadderSettings
from esper.growing.runs import How, Recipe, Row, Table
from esper.growing.search import Search
from esper.growing.topologies import EMPTY, Topology, with_seed
from esper.growing.trainers.job import Job, Outcome, Running, Tick

RECIPE = Recipe("adamw", 0.01, 0.0, 1.0, 8, 108)
RATES = (0.01 / 3, 0.01, 0.03)
HOW = How("cpu", "counting")


def row(number: int = 0, score: float = 0.5, **changes: Any) -> Row:
    """A finished run of the model as given, but for the changes."""
    plain = Row(
        number=number, rung=0, variant=0, topology=("", ""), recipe=RECIPE, seed=0, origin="given",
        parent=None, start=None, params=100, macs=100, cost=1.0, status="finished",
        trained=RECIPE.batches, score=score, loss=0.1, saved=True,
    )  # fmt: skip
    return replace(plain, **changes)


class FakeVariant:
    """A width: its size is a formula."""

    def __init__(self, name: str, params: int, slots: int) -> None:
        self.name, self.params, self.slots = name, params, slots

    @property
    def bare(self) -> Topology:
        return (EMPTY,) * self.slots

    def options(self, slot: int) -> tuple[str, ...]:
        return ("norm", "mlp") if slot else ("mlp",)

    def holds(self, topology: Topology) -> bool:
        return len(topology) == self.slots

    def neighbours(self, topology: Topology) -> list[Topology]:
        return [
            with_seed(topology, slot, name)
            for slot, held in enumerate(topology)
            for name in (EMPTY, *self.options(slot))
            if name != held
        ]

    def size(self, topology: Topology) -> Size:
        params = self.params + sum({"": 0, "norm": 5, "mlp": 40}[name] for name in topology)
        return Size(params, 2 * params, 6 * params)


class FakeNetworks:
    """All networks of a search; one is the integer that training changes."""

    def __init__(
        self,
        params: Sequence[int] = (100, 50, 200, 400),
        slots: int = 2,
        budget: Budget | None = None,
        read: Callable[[int], Mapping[str, Tensor]] | None = None,
    ) -> None:
        self.variants = [FakeVariant("" if not i else f"x{i}", n, slots) for i, n in
                         enumerate(params)]  # fmt: skip
        self.budget = Budget() if budget is None else budget
        self.latency: Any = lambda variant, topology: 0.0
        self._read = read
        self.completed = 0

    @property
    def base(self) -> FakeVariant:
        return self.variants[0]

    def complete(self) -> None:
        self.completed += 1

    def size(self, variant: int, topology: Topology) -> Size:
        return self.variants[variant].size(topology)

    def cost_of(self, size: Size, batch_size: int) -> float:
        base = self.base.size(self.base.bare).train_macs
        return max(0.5, size.train_macs / base) * batch_size / RECIPE.batch_size

    def allows(self, variant: int, topology: Topology) -> bool:
        size = self.size(variant, topology)
        return self.budget.allows(size.params, size.macs)

    def build(self, row: Row, rows: Sequence[Row]) -> Any:
        """Initial weights: of its own, or those of the run it starts from, exactly."""
        if row.start is None:
            return hash((row.variant, sum(map(len, row.topology)), row.seed)) % 10**9, row
        assert self._read is not None
        return int(self._read(row.start)["w"]), row


def ladder(
    networks: FakeNetworks | None = None,
    recipe: Recipe = RECIPE,
    rates: tuple[float, ...] = RATES,
    more_rates: bool = True,
    longer: int = 9,
    seed: int = 0,
    kind: type[Ladder] = Ladder,
    space: Any = None,
    **changes: Any,
) -> Ladder:
    """A ladder over networks by formula; `longer`: times the full length."""
    space = Space(recipe, rates, more_rates, **(space or {}))
    settings = LadderSettings(
        space, longer * recipe.batches, seed,
        **{"lower_is_better": False, "worst": 0.1, "best": 1.0, "inherit": True} | changes,
    )  # fmt: skip
    return kind(settings, cast(Networks, networks or FakeNetworks()))


def ended(table: Table, rows: Sequence[Row], score: Callable[[Row], float]) -> Table:
    """The table after some more runs have ended; a score of NaN: they diverged."""
    fresh = [
        replace(r, status="finished", trained=r.recipe.batches, score=score(r), saved=True,
                diverged=math.isnan(score(r)))
        for r in rows
    ]  # fmt: skip
    return replace(table, rows=(*table.rows, *fresh))


def quality(row: Row) -> float:
    """A score that grows with size and length, and has a best rate."""
    off = abs(math.log(row.recipe.lr / 0.02))
    gain = math.log(1 + row.params) / 10 + math.log(row.recipe.batches) / 20
    return 1.0 - math.exp(-gain) - 0.02 * off + 0.01 * sum(map(bool, row.topology))


class Killed(BaseException):
    """Ends a process: nothing catches it."""


@dataclass
class Disk:
    """What is left after a kill; `fails`: number of the write at which the process dies."""

    home: Path
    table: Table = field(default_factory=Table)
    weights: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    writes: int = 0
    fails: int = -1
    tables: int = 0

    def _write(self, work: Callable[[], object]) -> None:
        dies = self.writes == self.fails
        self.writes += 1
        if dies:
            raise Killed
        work()

    def save_table(self, table: Table) -> None:
        self.tables += 1
        self._write(lambda: setattr(self, "table", table))

    def save_weights(
        self, number: int, weights: Mapping[str, Tensor], under_way: bool = False
    ) -> None:
        self._write(lambda: self.weights.__setitem__(number, dict(weights)))

    def drop_weights(self, number: int) -> None:
        assert not self.table.rows[number].saved, "a kill now, and a resume would look for them"
        self._write(lambda: self.weights.pop(number, None))

    def checkpoint(self, number: int) -> Path:
        return self.home / f"{number}.json"

    def read(self) -> Table:
        """The table as a new process reads it."""
        return self.table

    def load(self, number: int) -> dict[str, Tensor]:
        return self.weights[number]


class CountingTrainer:
    """Trains integers; keeps which batches of which runs it has trained."""

    at_once = cores = 1
    prioritises = False

    def __init__(self, score: Callable[[Row], float] = quality) -> None:
        self.score = score
        self.trained: list[tuple[int, int]] = []
        self.closed = False

    def train(self, jobs: Iterator[Job], tick: Tick) -> Iterator[Outcome]:
        for job in jobs:
            outcome = self._run(job, tick)
            yield outcome
            if outcome.finite and outcome.trained < job.recipe.batches:
                return

    def _run(self, job: Job, tick: Tick) -> Outcome:
        value, made = cast("tuple[int, Row]", job.build())
        batch, score = 0, self.score(made)
        if job.checkpoint is not None and job.checkpoint.exists():
            batch, value = json.loads(job.checkpoint.read_text())
        stopped = False
        while batch < job.recipe.batches and not stopped:
            value = (value * 31 + batch + round(1e7 * job.recipe.lr)) % (2**40)
            if job.judged:  # and not only timed
                self.trained.append((job.number, batch))
            batch += 1
            stopped = batch % 4 == 0 and tick([Running(job.number, batch, job.recipe.batches)])
        if stopped and job.checkpoint is not None:
            job.checkpoint.write_text(json.dumps([batch, value]))
        curve = ((batch, score),)
        return Outcome(job.number, batch, not math.isnan(score), score, 0.1, curve, 0.0, 0.0, HOW,
                       {"w": torch.tensor(value)})  # fmt: skip

    def close(self) -> None:
        self.closed = True


class Watcher:
    """Observes a search; `stop`: batches after which Ctrl-C is pressed."""

    def __init__(self) -> None:
        self.rungs: list[int] = []
        self.saved: list[int] = []
        self.fails_at: int | None = None
        self.on_batch: Callable[[Search], None] | None = None
        self.said: list[str] = []

    def say(self, line: str) -> None:
        self.said.append(line)

    def on_tick(self, search: Search, running: Sequence[Running]) -> None:
        if self.on_batch is not None:
            self.on_batch(search)

    def on_rung(self, search: Search) -> None:
        self.rungs.append(search.table.rungs - 1)

    def on_saved(self) -> None:
        self.saved.append(self.rungs[-1])
        if self.saved[-1] == self.fails_at:
            raise ZeroDivisionError("mine")


def make_search(
    disk: Disk, runs: float = 12.0, trainer: CountingTrainer | None = None,
    watcher: Watcher | None = None, clock: Clock | None = None, **settings: Any,
) -> Search:  # fmt: skip
    """A search whose networks are integers; its clock stands still."""
    settings = {"timed": clock is not None} | settings
    made = ladder(FakeNetworks(read=disk.load), **settings)
    still = Clock(lambda: 0.0, 0.0, math.inf, 0.0, 1.0)
    return Search(
        made, trainer or CountingTrainer(), disk, watcher or Watcher(), runs, clock or still
    )
