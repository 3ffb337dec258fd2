"""Progress display of a run, driven by its telemetry events.

STEP_COMPLETED advances the display, ROUND_COMPLETED brings the scores and counts of a round; with
rollouts shorter than an episode, only the last one ends it. Within a round each slot has the stage
of its last SEED_* event. Slots count as empty when a round begins; planted seeds appear at its end.
"""

from __future__ import annotations

import math
import time
from collections import Counter

import numpy as np
from rich.console import Console

from esper.karn.display import (
    PLAIN_LINES,
    Clock,
    Display,
    Pace,
    format_seeds,
    format_speed,
    say,
)
from esper.karn.terminal import Terminal
from esper.leyline.arrays import Codes, Doubles, Floats
from esper.leyline.payloads import (
    RunFinished,
    RunStarted,
    SeedFossilized,
    SeedGerminated,
    SeedPruned,
    SeedStageChanged,
    StepCompleted,
    Throughput,
)
from esper.leyline.records import BatchSummary
from esper.leyline.stages import OCCUPIED_STAGES, SeedStage
from esper.leyline.telemetry import TelemetryEvent
from esper.plotting.durations import duration

_STAGE_ENTERED = {
    SeedGerminated: SeedStage.GERMINATED,
    SeedFossilized: SeedStage.FOSSILIZED,
    SeedPruned: SeedStage.PRUNED,
}
_SeedEvent = SeedStageChanged | SeedGerminated | SeedFossilized | SeedPruned


class RunProgressSink:
    """Sink that displays a run's progress, from its start to its end.

    hub = TelemetryHub.from_config([RunProgressSink(), JsonlSink(path)], config)
    """

    def __init__(self, console: Console | None = None, clock: Clock = time.monotonic) -> None:
        self.console = console or Terminal()
        self._clock = clock
        self.run: _RunDisplay | None = None

    def emit(self, event: TelemetryEvent) -> None:
        """Update the display."""
        payload = event.payload
        if isinstance(payload, RunStarted):
            self.close()
            say(self.console, _heading(payload))
            self.run = _RunDisplay(payload, self.console, self._clock)
        elif isinstance(payload, RunFinished):
            self.close()
            say(self.console, _ending(payload))
        elif self.run is not None:
            self.run.update(event)

    def flush(self) -> None:
        """No-op."""

    def close(self) -> None:
        """Stop the live display."""
        if self.run is not None:
            self.run.display.stop()
            self.run = None


class _RunDisplay:
    """A run according to the events so far, and what shows it."""

    def __init__(self, started: RunStarted, console: Console, clock: Clock) -> None:
        self.rounds, self.length, self.members = (
            started.rounds,
            started.episode_length,
            started.members,
        )
        self.round = -1
        """The newest round; -1 before the first."""
        self.step = 0
        """Completed steps of that round."""
        self.over = False
        """Whether that round is complete."""
        self.accuracy = self.score = math.nan
        """Means over members, of the newest step or, after it, of the round."""
        self.best = math.nan
        """Best mean score of all rounds."""
        self.cut_steps = 0
        """Steps of that round that members of slow ranks did not take."""
        self.rows_per_member = math.nan
        self.seeds: dict[SeedStage, int] = {}
        """Seeds in each stage; empty slots are not counted."""
        self._stage_of: dict[tuple[int, int], int] = {}
        """(member, slot) -> its stage."""
        total = max(1, self.rounds * self.length)
        self._pace, self._ticked = Pace(total, clock), 0
        self._is_terminal = console.is_terminal
        self.display = Display(total, console, _plain_lines(self.rounds))
        self.display.start()

    @property
    def done(self) -> int:
        """Completed steps of the run."""
        return max(0, self.round) * self.length + self.step

    def update(self, event: TelemetryEvent) -> None:
        """Update the state from an event, and the display if it moves."""
        payload = event.payload
        if isinstance(payload, BatchSummary):
            self._update_round(payload)
        elif isinstance(payload, Throughput):
            self.rows_per_member = payload.rows_per_member
        elif event.round_index is None or event.step is None:
            return  # what is planned before the first step
        elif isinstance(payload, StepCompleted):
            self._enter(event.round_index)
            self.step = event.step + 1
            self.accuracy, self.score = _mean(payload.val_accuracy_E), _mean(payload.score_E)
            self._draw()
        elif isinstance(payload, _SeedEvent):
            self._enter(event.round_index)
            self._update_stages(payload)

    def _enter(self, round_index: int) -> None:
        if round_index != self.round:
            self.round, self.step, self.over = round_index, 0, False
            self._stage_of, self.seeds = {}, {}

    def _update_stages(self, payload: _SeedEvent) -> None:
        if isinstance(payload, SeedStageChanged):
            stage_N: Codes = payload.stage_after_N
        else:
            stage_N = np.full(len(payload.member_N), _STAGE_ENTERED[type(payload)], dtype=np.int8)
        places = zip(payload.member_N.tolist(), payload.slot_N.tolist(), strict=True)
        self._stage_of.update(zip(places, stage_N.tolist(), strict=True))
        counts = Counter(self._stage_of.values())
        self.seeds = {stage: counts[stage] for stage in OCCUPIED_STAGES}

    def _update_round(self, payload: BatchSummary) -> None:
        self._enter(payload.round_index)
        if payload.ends_episode:
            self.step, self.over = self.length, True
        self.accuracy, self.score = payload.mean_accuracy, payload.mean_score
        self.best, self.cut_steps = payload.best_score, payload.cut_steps
        self.seeds = {stage: payload.stage_counts[stage] for stage in OCCUPIED_STAGES}
        self._draw()

    # ---- what is shown -------------------------------------------------------------------------

    def _draw(self) -> None:
        if self.done > self._ticked:
            self._pace.tick(self.done)
            self._ticked = self.done
        if self._is_terminal or not self._should_wait():
            self.display.show(self.done, self._label(), self._speed(), self._status())

    def _should_wait(self) -> bool:
        """Whether a plain line should wait for the end of the round and its score."""
        return not self.over and (self.step >= self.length or self.rounds >= PLAIN_LINES)

    def _label(self) -> str:
        return f"round {self.round + 1}/{self.rounds}, step {self.step}/{self.length}"

    def _speed(self) -> str:
        rate = self._pace.steps_per_second * self.members
        return format_speed(rate, self._pace.left(self.done))

    def _status(self) -> str:
        words = [f"accuracy {100 * self.accuracy:.1f} %", f"training score {self.score:.3f}"]
        if not math.isnan(self.best):
            words.append(f"best {self.best:.3f}")
        if not math.isnan(self.rows_per_member):
            words.append(f"{self.rows_per_member:.1f} rows (forward passes) per member")
        if self.over and self.cut_steps:
            words.append(f"{_count(self.cut_steps, 'step')} cut")
        return f"{', '.join(words)}; {format_seeds(self.seeds)}"


@np.errstate(all="ignore")
def _mean(values_E: Floats | Doubles) -> float:
    return float(values_E.mean()) if len(values_E) else math.nan


def _plain_lines(rounds: int) -> int:
    """Return the number of lines without a terminal: about ten, equally many per round.

    >>> [_plain_lines(rounds) for rounds in (1, 3, 7, 100)]
    [10, 9, 7, 10]
    """
    if not 0 < rounds < PLAIN_LINES:
        return PLAIN_LINES
    return rounds * max(1, round(PLAIN_LINES / rounds))


def _heading(started: RunStarted) -> str:
    """Return one line describing the run."""
    s = started
    return (
        f"{s.policy} on {s.task}, seed {s.seed}: {_count(s.members, 'member')}, "
        f"{_count(s.rounds, 'round')} of {_count(s.episode_length, 'step')}; a step is "
        f"{_count(s.batches_per_step, 'batch', 'batches')} of {s.batch_size}, then "
        f"{s.control_images} + {s.score_images} validation samples; {s.device}, profile "
        f"{s.profile}, executor {s.executor} ({s.executor_reason})"
    )


def _ending(finished: RunFinished) -> str:
    """Return one line on how the run ended, and on lost telemetry."""
    f = finished
    lost = f"; {_count(f.events_dropped, 'event')} dropped" if f.events_dropped else ""
    best = "" if math.isnan(f.best_score) else f"; best training score {f.best_score:.3f}"
    return (
        f"{f.status.name.lower()} after {_count(f.rounds_done, 'round')}, "
        f"{_count(f.episodes_done, 'episode')}, {duration(f.seconds)}{best}{lost}"
    )


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
