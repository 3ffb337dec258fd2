"""A search: the table of runs, a trainer that trains them, and a ladder that proposes more.

The table is the whole state. A run that has ended is never trained again; one that was cut resumes
from its checkpoint; what is planned starts. So a kill at any time costs at most the runs under way,
and these continue from their last minute.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from statistics import median
from typing import TYPE_CHECKING, Final

from esper.growing.budget import Budget
from esper.growing.clock import Clock
from esper.growing.folder import GrowFolder
from esper.growing.ladder import Ladder, numbered
from esper.growing.networks import Networks
from esper.growing.proposals import FULL_RUNG
from esper.growing.ranks import ONE_PROCESS, Ranks, noted
from esper.growing.runs import Row, Table, finished, known, out_of_reach
from esper.growing.trainers.job import Job, Outcome, Running, Trainer, untrainable
from esper.growing.trainers.probe import batch_seconds
from esper.plotting.pareto import validation_front

if TYPE_CHECKING:
    from esper.growing.progress import ProgressPrinter

TABLE_SECONDS: Final = 1.0
"""The table is written this often, and at the end of every rung."""
FEW: Final = 0.25
"""Share of the time that is left that a full run takes where there is no time for many."""
SAFE: Final = 0.97
"""Share of the time left that the last runs are to take; one that is cut in its last tenth loses
little, as its rate is nearly 0."""
PROBE_SHARE: Final = 0.01
"""Share of the time that is left for which the speed of the last long runs is looked at."""
MAX_PROBE: Final = 1.5
"""Seconds of it, at most, where a batch takes less."""
PROBE_BATCHES: Final = 5
"""Batches that it takes about, at least."""
MAX_PROBES: Final = 2
"""Looks, at most: what is proposed may depend on the speed, and is then another network."""
PROBED: Final = 0.05
MAX_PROBED: Final = 0.1
"""Shares of the time left that it may take: runs like those before, one with all cores."""
SAFE_UNTIMED: Final = 0.75
"""`SAFE` of runs that share a device, if how much they slow each other was not timed."""
SPEEDUP: Final = 0.7
"""Of the number of cores, for which one run gets them all."""
MAX_FINALE: Final = 4
"""Runs of the finale."""
MAX_FILLING: Final = 8
"""Runs that fill what is left of the time."""
MAX_LEAST: Final = 4
"""Runs of a rung, at least, where as many train at a time."""
MAX_REFUSED: Final = 3
"""Runs that are too long, after which none is started beside the longest run of a rung."""
JUDGED_EVERY: Final = 5.0
"""Seconds after which a long run is judged on the way, so that the best so far is a good one."""
JUDGED_SHARE: Final = 0.04
"""Of the time, that judging, and writing what was judged, may take."""
MIN_FILL: Final = 2.0
"""Seconds of a limit that are left for further runs, at least."""


class Search:
    """Trains runs until the budget is spent."""

    def __init__(
        self,
        ladder: Ladder,
        trainer: Trainer,
        store: GrowFolder,
        printer: ProgressPrinter,
        most_runs: float,
        clock: Clock,
        ranks: Ranks = ONE_PROCESS,
        after: Callable[[Sequence[Row]], float] = lambda rows: 0.0,
    ) -> None:
        """`most_runs`: compute that it may spend, in full training runs of the model as given;
        `after`: seconds to keep for what is trained after it, if one of these runs is the pick.
        """
        self._after = after
        self.ladder, self.trainer = ladder, trainer
        self.networks: Networks = ladder.networks
        self.most_runs, self.clock = most_runs, clock
        self.table = Table()
        self._store, self._printer, self._ranks = store, printer, ranks
        self._saved_at = -math.inf
        self._interrupted = False
        self._unsaved = False
        """Whether a row has changed since the table was written."""
        self._forgotten: list[int] = []
        self._over_with: list[int] = []
        """Finished runs whose checkpoints go once the table that says so is written."""
        self._start_up = 0.0
        """Seconds before the first batches of the last runs, by a probe."""
        self._writing: list[float] = []
        """Seconds that weights took to be written, each time."""
        self._running: dict[int, Running] = {}
        """Runs under way, at the last tick."""
        self._before: dict[int, int] = {}
        """Runs -> batches that they were trained on before they were started."""
        self._begun: dict[int, tuple[float, int]] = {}
        """Proposed runs of the rung: when they were started, and after how many batches."""

    @property
    def runs(self) -> float:
        """Compute spent, in full training runs of the model as given."""
        return self.table.compute / self.ladder.full

    def run(self, table: Table) -> bool:
        """Search; returns whether it came to an end, and was not interrupted."""
        self.table = replace(table, ended="")
        done = finished(table.rows)
        self._forgotten = [row.number for row in done if not row.saved]
        self._over_with = [row.number for row in done]
        self._forget()
        with noted([signal.SIGINT], self._interrupt), self._ranks.interruptible():
            while not self._over():
                rows = [row for row in self.table.open_rows() if self._affords(row)]
                if not rows and not self._add(self._propose()):
                    break
                elif rows:
                    self._train(rows)
        complete = not self._asked or self._out_of_time()
        if complete and not self.table.ended:
            self.table = replace(self.table, ended="the time is over")
        self._save()
        self._drop_forgotten()
        return complete

    def _interrupt(self) -> None:
        """Ctrl-C takes effect between two batches; the second one raises."""
        if self._interrupted:
            raise KeyboardInterrupt
        self._interrupted = True

    @property
    def _asked(self) -> bool:
        """Whether somebody asked to stop; several ranks have to agree on it."""
        return self._interrupted if self._ranks.size == 1 else self._ranks.stopped

    def _over(self) -> bool:
        return self._asked or self._out_of_time()

    def _out_of_time(self) -> bool:
        return bool(self.table.rows) and self.clock.left <= 0

    # ---- proposals ------------------------------------------------------------------------

    def _propose(self) -> list[Row]:
        ladder = self.ladder
        if not self.table.rows:
            return [ladder.sized(ladder.first())]
        self.networks.complete()
        rows = self._finale() or self._after_finale()
        if rows:
            return rows
        # What a rung holds may depend on the machine only where its speed decides the end anyway.
        least = 1 if math.isinf(self.clock.limit) else min(MAX_LEAST, round(self.clock.parallel))
        rows, reason = ladder.next_rung(self.table, self._left(), self._price, least)
        if math.isfinite(self.clock.limit):
            self.clock.reserved = self._after([*judged(self.table.rows), *rows])
        rows = self._affordable(rows)
        if not rows and self._has_rest:
            count = min(MAX_FILLING, self._abreast)
            rows = ladder.filling(self.table, partial(self._fitting, count), count)
            rows = self._affordable(rows)
        if not rows:
            self.table = replace(self.table, ended=reason)
        return rows

    def _finale(self) -> list[Row]:
        """The last long runs, if it is time for them."""
        ladder, clock = self.ladder, self.clock
        if not ladder.settings.timed:
            return []
        few = clock.predict(ladder.in_full(self.table)) > FEW * clock.left
        if self.table.rungs <= FULL_RUNG and not few:
            return []
        count = min(MAX_FINALE, self._abreast)
        # A refit would take as long again: where length pays, a longer run is worth more.
        kept, clock.reserved = clock.reserved, 0.0
        rows = self._affordable(self._last_runs(count))
        clock.reserved = clock.reserved if rows else kept
        return rows

    @property
    def _abreast(self) -> int:
        """Runs that train at a time."""
        return max(1, self.trainer.at_once, round(self.clock.parallel))

    @property
    def _has_rest(self) -> bool:
        """Whether some of a limited time is left."""
        return math.isfinite(self.clock.limit) and self.clock.left > MIN_FILL

    def _after_finale(self) -> list[Row]:
        """Runs for what a lone last one has left."""
        if not self._has_rest:
            return []
        count = self._abreast
        fitting = partial(self._fitting, count)
        return self._affordable(self.ladder.after_finale(self.table, fitting, count))

    def _last_runs(self, count: int) -> list[Row]:
        """Runs for the rest of the time: some beside each other, or one with all cores of a CPU.

        That one is chosen if it is nearly as many times as fast as there are cores.
        """
        cores, clock = self.trainer.cores, self.clock
        wide = self._timed_finale(1, cores) if cores > 1 else []
        rows = self._timed_finale(count)
        if not wide or not rows or not clock.is_timed(wide[0]):
            return rows
        alike = rows[0].one_batch
        single, several = clock.predict(alike), clock.predict(replace(alike, threads=cores))
        return wide if single >= SPEEDUP * cores * several else rows

    def _timed_finale(self, count: int, threads: int = 0) -> list[Row]:
        """The finale with so many runs, whose lengths follow from their speeds beside each other.

        `threads`: of each long one, 0: one.
        """
        fitting = partial(self._fitting, count)
        proposed = partial(self.ladder.finale, self.table, fitting, count, threads)
        rows = proposed()
        for _ in range(MAX_PROBES):
            if not rows or all(self.clock.is_timed(row) for row in rows[:count]):
                break
            if self._ranks.size > 1 or not self._quick_to_time(rows[:count]):
                break
            timed = self._time(rows[:count])
            rows = proposed()
            if not timed:
                break
        return rows

    def _quick_to_time(self, rows: Sequence[Row]) -> bool:
        """Whether some batches of them take little of the time that is left.

        More may be spent on all cores, whose speed cannot be told from earlier runs.
        """
        seconds = PROBE_BATCHES * max(self.clock.predict(row.one_batch) for row in rows)
        return seconds < (MAX_PROBED if rows[0].threads else PROBED) * self.clock.left

    def _time(self, rows: Sequence[Row]) -> bool:
        """Look how fast some runs train beside each other; whether that could be seen."""
        jobs = [
            Job(0, partial(self.networks.build, row, self.table.rows), row.recipe, row.seed,
                threads=row.threads)
            for row in rows
        ]  # fmt: skip
        seconds = min(MAX_PROBE, PROBE_SHARE * self.clock.left)
        began, now = self.clock.seconds, lambda: self.clock.seconds
        speeds = batch_seconds(self.trainer, jobs, seconds=seconds, now=now)
        self._start_up = max(0.0, self.clock.seconds - began - seconds)
        for row, each in zip(rows, speeds, strict=True):
            if each > 0:
                self.clock.time(row, each, len(rows))
        return all(each > 0 for each in speeds)

    def _affordable(self, rows: Sequence[Row]) -> list[Row]:
        """Those that could start now, with the next numbers."""
        return numbered([row for row in rows if self._affords(row)], self.table)

    def _left(self) -> float:
        """What is left of the budget, as a share of it."""
        return 1.0 - max(self.runs / self.most_runs, self._share(self.clock.seconds))

    def _share(self, seconds: float) -> float:
        """Seconds as a share of the limit."""
        if math.isinf(self.clock.limit):
            return 0.0
        return seconds / max(1e-9, self.clock.seconds + max(0.0, self.clock.left))

    def _price(self, row: Row) -> float:
        """What a run costs, as a share of the budget."""
        compute = row.cost * (row.recipe.batches - row.trained) / self.ladder.full
        return max(compute / self.most_runs, self._share(self.clock.share(row)))

    def _affords(self, row: Row) -> bool:
        """Whether there is room for a run: in compute and, to its end, in time.

        The model as given always begins; a run that was interrupted goes on while time is left.
        """
        if row.number == 0 or row.trained:
            return self.clock.left > 0 or not row.trained
        if out_of_reach(row, self.table.rows):
            return False
        compute = self.runs + row.cost * row.recipe.batches / self.ladder.full
        return compute <= self.most_runs * (1 + 1e-6) and self.clock.fits(row)

    def _fitting(self, count: int, row: Row) -> int:
        """Batches that each of some networks can be trained on in the time that is left."""
        one = row.one_batch
        each = max(count * self.clock.share(one), self.clock.predict(one))
        sure = self.clock.is_timed(row) or count <= self.trainer.at_once
        margin = SAFE if sure else SAFE_UNTIMED
        left = max(0.0, self.clock.left - self._start_up)
        return int(margin * left / each) if each > 0 else 0

    def _add(self, rows: Sequence[Row]) -> bool:
        self.table = replace(self.table, rows=(*self.table.rows, *rows))
        if rows:
            self._save()
        return bool(rows)

    # ---- training -------------------------------------------------------------------------

    def _train(self, rows: Sequence[Row]) -> None:
        """Train the open runs of a rung."""
        began = self.clock.seconds
        self._running, self._begun = {}, {}
        # Long ones first, so that none waits for the last one; before them, what is urgent.
        rows = sorted(rows, key=lambda row: (not self._is_urgent(row), -self.clock.share(row)))
        for outcome in self.trainer.train(self._jobs(rows), self._tick):
            self._record(outcome)
        self.clock.end_rung(self.clock.seconds - began)
        self._forget()
        self._printer.on_rung(self)
        self._save()
        self._drop_forgotten()
        if not self._asked or not self.table.open_rows():
            self._ranks.on_first(self._printer.on_saved)

    def _jobs(self, rows: Sequence[Row]) -> Iterator[Job]:
        """Runs of a rung, as there is room for them."""
        for row in chain(rows, self._beside_first()):
            if self._over():
                return
            if self._affords(row):
                self._begun[row.number] = self.clock.seconds, row.trained
                yield self._job(row)
        for row in self._meanwhile():
            if self._over():
                return
            yield self._job(row)

    def _job(self, row: Row) -> Job:
        self.clock.start(row)
        build = partial(self.networks.build, row, self.table.rows)
        path = self._store.checkpoint(row.number)
        self._before[row.number] = row.trained
        every = self._judged_every(row)
        return Job(row.number, build, row.recipe, row.seed, path, row.threads, every=every,
                   urgent=self._is_urgent(row))  # fmt: skip

    def _is_urgent(self, row: Row) -> bool:
        """Whether a run is to raise the best so far soon: others wait for it."""
        return self.trainer.prioritises and row.purpose == "best"

    def _judged_every(self, row: Row) -> float:
        """Seconds after which a run is judged on the way; 0: it is too short for that."""
        judging = self.clock.judging
        if judging is None or self._ranks.size > 1:
            return 0.0
        writing = median(self._writing) if self._writing else 0.0
        every = max(JUDGED_EVERY, (judging + writing) / JUDGED_SHARE)
        return every if self.clock.predict(row) >= 2 * every else 0.0

    def _beside_first(self) -> Iterator[Row]:
        """What the first rung trains besides the model as given: it depends on no result."""
        first, *others = self.table.rows
        if others or self._over():
            return
        self.networks.complete()
        left = self._left() - self._price(first)
        rows = self.ladder.beside_first(self.table, left, self._price)
        self._add(rows)
        yield from rows

    def _meanwhile(self) -> Iterator[Row]:
        """Runs that end before the longest one of the rung does, where time is the limit.

        None beside the finale, whose runs would not end in time if they had to share with more.
        """
        in_finale = any(self.table.rows[number].purpose == "finale" for number in self._begun)
        if math.isinf(self.clock.limit) or self._ranks.size > 1 or in_finale:
            return
        refused = 0
        for row in self.ladder.meanwhile(self.table):
            in_time = self.clock.beside(row) <= self._longest() and self.clock.fits(row)
            if in_time and not out_of_reach(row, self.table.rows):
                numbered = replace(row, number=len(self.table.rows))
                self._add([numbered])
                yield numbered
            else:
                refused += 1
                if refused == MAX_REFUSED:
                    return

    def _longest(self) -> float:
        """Seconds until the last run that the next rung has to wait for ends, about."""
        left = [0.0]
        for number in self._begun:
            row, (began, before) = self.table.rows[number], self._begun[number]
            if row.status != "finished":
                at = self._running.get(number)
                trained = 0 if at is None else at.trained - before
                each = (self.clock.seconds - began) / trained if trained else 0.0
                seconds = each * (row.recipe.batches - before - trained)
                left.append(seconds if trained else self.clock.predict(row))
        return max(left)

    def _tick(self, running: Sequence[Running]) -> bool:
        self._running = {one.number: one for one in running}
        self._printer.on_tick(self, running)
        self._save_now_and_then()
        return self._interrupted or self._over()

    def _record(self, outcome: Outcome) -> None:
        """Write what became of a run into the table, its weights before that."""
        row = self.table.rows[outcome.number]
        if outcome.failed:
            self._give_up(row, outcome)
            return
        if not outcome.under_way:
            before = self._before.get(outcome.number, row.trained)
            now = replace(row, trained=before)
            self.clock.learn(now, outcome, outcome.trained - before, self._is_urgent(row))
        # A run that was cut may have outputs that are not finite yet: BatchNorm, a few batches in.
        lost = not all(math.isfinite(loss) for _, loss in outcome.curve)
        done = lost or outcome.trained >= row.recipe.batches
        began = time.monotonic()
        self._store.save_weights(outcome.number, outcome.weights, under_way=outcome.under_way)
        self._writing.append(time.monotonic() - began)
        fresh = replace(
            row,
            status="finished" if done else "cut",
            trained=outcome.trained,
            score=outcome.score,
            loss=outcome.loss,
            curve=outcome.curve,
            diverged=not outcome.finite,
            seconds=outcome.seconds,
            at=self.clock.seconds,
            how=outcome.how,
            saved=True,
        )
        self._replace([fresh])
        if done:
            self._over_with.append(outcome.number)
        self._save_now_and_then()

    def _give_up(self, row: Row, outcome: Outcome) -> None:
        """A run that cannot be trained ends as one that diverged; one that was judged before stays
        as it was then. The model as given has to be trained.
        """
        if row.number == 0:
            raise untrainable(row.recipe.batch_size, outcome.failed)
        self.clock.give_up(row)
        over = replace(row, status="finished", how=outcome.how, at=self.clock.seconds)
        if not row.saved:
            over = replace(over, trained=0, diverged=True)
        self._replace([over])
        self._over_with.append(row.number)
        self._printer.say(
            f"run {row.number} cannot be trained: {outcome.failed}; the search goes on without it"
        )
        self._save_now_and_then()

    def _replace(self, fresh: Sequence[Row]) -> None:
        rows = list(self.table.rows)
        for row in fresh:
            rows[row.number] = row
        self.table, self._unsaved = replace(self.table, rows=tuple(rows)), True

    def _forget(self) -> None:
        """Note the runs that can be neither returned nor grown from: their weights are not needed.

        A run that was cut may end worse than it looks now, so it makes no other one dispensable.
        """
        rows, budget = self.table.rows, self.networks.budget
        done = finished(rows)
        returned = frontier_numbers(within(rows, budget)) | control_numbers(rows)
        self.clock.judged = len(returned)
        kept = returned | frontier_numbers(within(done, budget)) | control_numbers(done)
        kept |= frontier_numbers(done)  # a resume may have a larger budget
        # A start is needed until its run has ended, and for a refit of that.
        starts = (*self.table.open_rows(), *(rows[number] for number in kept))
        kept |= {row.start for row in starts if row.start is not None}
        gone = [row for row in done if row.saved and row.number not in kept]
        self._replace([replace(row, saved=False) for row in gone])
        self._forgotten += [row.number for row in gone]

    def _drop_forgotten(self) -> None:
        """Remove their weights, after the table says so: a resume never looks for what is gone."""
        for number in self._forgotten:
            self._store.drop_weights(number)
        self._forgotten.clear()

    def _save(self) -> None:
        self.table = replace(self.table, seconds=self.clock.seconds)
        self._store.save_table(self.table)
        self._saved_at, self._unsaved = time.monotonic(), False
        for number in self._over_with:
            self._store.checkpoint(number).unlink(missing_ok=True)
        self._over_with.clear()

    def _save_now_and_then(self) -> None:
        """Save a table that has changed, unless that was done a moment ago."""
        if self._unsaved and time.monotonic() - self._saved_at > TABLE_SECONDS:
            self._save()


def judged(rows: Sequence[Row]) -> list[Row]:
    """Runs with a score: finished ones, and those that were cut."""
    return [row for row in rows if row.ended and not row.diverged and not math.isnan(row.score)]


def within(rows: Sequence[Row], budget: Budget) -> list[Row]:
    """Runs whose networks may be picked: the model as given may exceed the limits."""
    return [row for row in rows if budget.allows(row.params, row.macs, row.latency)]


def frontier_numbers(rows: Sequence[Row]) -> set[int]:
    """Numbers of the runs whose networks none dominates on validation."""
    some = judged(rows)
    columns = zip(*((row.merit, float(row.params), row.loss) for row in some), strict=True)
    return {some[index].number for index in validation_front(*columns)} if some else set()


def control_numbers(rows: Sequence[Row]) -> set[int]:
    """Number of the best run of the model as given, by score, then by loss; as for the pick, one
    that was cut counts as it is.
    """
    given = [row for row in rows if row.ended and row.origin == "given"]
    best = max(given, key=lambda row: (known(row.merit), known(-row.loss)), default=None)
    return set() if best is None else {best.number}
