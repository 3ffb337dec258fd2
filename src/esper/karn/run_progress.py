"""Progress display of a run, driven by its telemetry events.

Events may be missing or late; those of an older round than the newest are ignored. STEP_COMPLETED
advances the display step by step if it is recorded, SEED_* events do if anything grows, and
ROUND_COMPLETED always does; with rollouts shorter than an episode, only the last one ends a round.

Seeds by stage: within a round each slot has the stage of its last SEED_* event (from level NORMAL
on); without these, STEP_COMPLETED gives the number of live seeds. The end of the round brings the
exact counts, so a dropped event is wrong for one round at most. Slots count as empty when a round
begins; planted seeds appear at its end.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import dataclass, field

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
_Slot = tuple[int, int]
"""(member, slot)"""


@dataclass(slots=True)
class _RunView:
    """State of a run according to the events so far."""

    rounds: int = 0
    """0: unknown."""
    length: int = 0
    """Steps per episode; 0: unknown."""
    members: int = 0
    round: int = -1
    """The newest round; -1 before the first."""
    step: int = 0
    """Completed steps of that round."""
    over: bool = False
    """Whether that round is complete."""
    accuracy: float = math.nan
    score: float = math.nan
    """Mean over members, of the newest step or, after it, of the round."""
    best: float = math.nan
    """Best mean score of all rounds."""
    member_steps_per_second: float = math.nan
    """Of the last complete round, as reported by the run."""
    cut_steps: int = 0
    """Steps of that round that members of slow ranks did not take."""
    rows_per_member: float = math.nan
    live_seeds: int = 0
    knows_stages: bool = False
    """Whether the run records SEED_* events."""
    _stage_of: dict[_Slot, int] = field(default_factory=dict)
    _seeds: dict[SeedStage, int] | None = None

    def update(self, event: TelemetryEvent) -> None:
        """Update the state from an event."""
        payload = event.payload
        if isinstance(payload, RunStarted):
            self.rounds, self.length, self.members = (
                payload.rounds,
                payload.episode_length,
                payload.members,
            )
        elif isinstance(payload, BatchSummary):
            self._update_round(payload)
        elif isinstance(payload, StepCompleted):
            self._update_step(event, payload)
        elif isinstance(payload, Throughput):
            self.rows_per_member = payload.rows_per_member
        elif isinstance(payload, SeedStageChanged):
            self._update_stages(event, payload, payload.stage_after_N)
        elif isinstance(payload, SeedGerminated | SeedFossilized | SeedPruned):
            entered_N = np.full(len(payload.member_N), _STAGE_ENTERED[type(payload)], dtype=np.int8)
            self._update_stages(event, payload, entered_N)

    @property
    def total(self) -> int:
        """Steps of the run, or its rounds if the episode length is unknown; 0: unknown."""
        return self.rounds * (self.length or 1)

    @property
    def done(self) -> int:
        """Completed part of the total."""
        if not self.length:
            return self.round + self.over
        return max(0, self.round) * self.length + self.step

    @property
    def seeds(self) -> dict[SeedStage, int]:
        """Seeds in each stage; empty slots are not counted."""
        if self._seeds is None:
            counts = Counter(self._stage_of.values())
            self._seeds = {stage: counts[stage] for stage in OCCUPIED_STAGES}
        return self._seeds

    def _advance_to(self, round_index: int | None, step: int | None, complete: int) -> bool:
        """Whether a step belongs to the newest unfinished round; may start a new one."""
        if round_index is None or step is None or round_index < self.round:
            return False
        if round_index > self.round:
            self._start_round(round_index)
        self.step = max(self.step, step + complete)
        return not self.over

    def _start_round(self, round_index: int) -> None:
        self.round, self.step, self.over = round_index, 0, False
        self.live_seeds = 0
        self._stage_of.clear()
        self._seeds = None

    def _update_step(self, event: TelemetryEvent, payload: StepCompleted) -> None:
        if self._advance_to(event.round_index, event.step, complete=1):
            self.accuracy, self.score = _mean(payload.val_accuracy_E), _mean(payload.score_E)
            self.live_seeds = int(payload.live_seeds_E.sum())

    def _update_stages(
        self,
        event: TelemetryEvent,
        payload: SeedStageChanged | SeedGerminated | SeedFossilized | SeedPruned,
        stage_N: Codes,
    ) -> None:
        # Emitted during their step.
        if self._advance_to(event.round_index, event.step, complete=0):
            self.knows_stages = True
            places = zip(payload.member_N.tolist(), payload.slot_N.tolist(), strict=True)
            self._stage_of.update(zip(places, stage_N.tolist(), strict=True))
            self._seeds = None

    def _update_round(self, payload: BatchSummary) -> None:
        if not self.length:
            self.rounds, self.members = payload.rounds_total, payload.members
        self.best = float(np.fmax(self.best, payload.best_score))
        if payload.round_index < self.round:
            return
        if payload.round_index > self.round:
            self._start_round(payload.round_index)
        if payload.ends_episode:
            self.step, self.over = self.length, True
        self.accuracy, self.score = payload.mean_accuracy, payload.mean_score
        self.member_steps_per_second = payload.member_steps_per_second
        self.cut_steps = payload.cut_steps
        self._seeds = {stage: payload.stage_counts[stage] for stage in OCCUPIED_STAGES}


@np.errstate(all="ignore")
def _mean(values_E: Floats | Doubles) -> float:
    return float(values_E.mean()) if len(values_E) else math.nan


class RunProgressSink:
    """Sink that displays a run's progress.

    hub = TelemetryHub.from_config([RunProgressSink(), JsonlSink(path)], config)
    """

    def __init__(self, console: Console | None = None, clock: Clock = time.monotonic) -> None:
        self.console = console or Terminal()
        self.view = _RunView()
        self._clock = clock
        self._display: Display | None = None
        self._pace = Pace(0, clock)
        self._ticked = 0
        self._finished = False

    def emit(self, event: TelemetryEvent) -> None:
        """Update the display."""
        payload = event.payload
        if isinstance(payload, RunStarted):
            self._stop()
            self._finished = False
            self.view = _RunView()
            self.view.update(event)
            say(self.console, _heading(payload))
            self._start()
        elif isinstance(payload, RunFinished):
            self._stop()
            self._finished = True
            say(self.console, _ending(payload))
        elif not self._finished:
            before = (self.view.done, self.view.over)
            self.view.update(event)
            if (self.view.done, self.view.over) != before or isinstance(payload, StepCompleted):
                self._draw()

    def flush(self) -> None:
        """No-op."""

    def close(self) -> None:
        """Stop the live display."""
        self._stop()

    def _start(self) -> Display:
        total = self.view.total
        self._pace = Pace(total, self._clock)
        self._ticked = 0
        self._display = Display(total, self.console, _plain_lines(self.view.rounds))
        self._display.start()
        return self._display

    def _stop(self) -> None:
        if self._display is not None:
            self._display.stop()
            self._display = None

    def _draw(self) -> None:
        view = self.view
        if not view.total:
            return  # neither the start of the run nor the end of a round was seen yet
        display = self._display or self._start()
        if view.done > self._ticked:
            self._pace.tick(view.done)
            self._ticked = view.done
        if self.console.is_terminal or not self._should_wait():
            display.show(view.done, self._label(), self._speed(), self._status())

    def _should_wait(self) -> bool:
        """Whether a plain line should wait for the end of the round and its score."""
        view = self.view
        return not view.over and (view.step >= view.length or view.rounds >= PLAIN_LINES)

    def _label(self) -> str:
        view = self.view
        of_round = f", step {view.step}/{view.length}" if view.length else ""
        return f"round {view.round + 1}/{view.rounds}{of_round}"

    def _speed(self) -> str:
        view = self.view
        rate = self._pace.steps_per_second * view.members if view.length else math.nan
        if math.isnan(rate):
            rate = view.member_steps_per_second
        return format_speed(rate, self._pace.left(view.done))

    def _status(self) -> str:
        view = self.view
        words = [f"accuracy {100 * view.accuracy:.1f} %", f"training score {view.score:.3f}"]
        if not math.isnan(view.best):
            words.append(f"best {view.best:.3f}")
        if not math.isnan(view.rows_per_member):
            words.append(f"{view.rows_per_member:.1f} rows (forward passes) per member")
        if view.over and view.cut_steps:
            words.append(f"{_count(view.cut_steps, 'step')} cut")
        unknown = view.live_seeds and not (view.over or view.knows_stages)
        seeds = f"seeds: {view.live_seeds} live" if unknown else format_seeds(view.seeds)
        return f"{', '.join(words)}; {seeds}"


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
    return (
        f"{f.status.name.lower()} after {_count(f.rounds_done, 'round')}, "
        f"{_count(f.episodes_done, 'episode')}, {duration(f.seconds)}; "
        f"best training score {f.best_score:.3f}{lost}"
    )


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
