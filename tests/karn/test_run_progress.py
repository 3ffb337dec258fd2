"""The progress of a run, told from events: right numbers, few lines, no harm from drops."""

import io
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from esper.karn.run_progress import RunProgressSink
from esper.leyline import (
    BatchSummary,
    SeedStage,
    SinkProtocol,
    TelemetryEvent,
    TelemetryEventType,
    TelemetryLevel,
)
from esper.leyline.payloads import (
    RunFinished,
    RunStarted,
    RunStatus,
    SeedFossilized,
    SeedGerminated,
    SeedPruned,
    SeedStageChanged,
    StepCompleted,
    Throughput,
)
from esper.nissa import MemorySink, TelemetryHub
from payload_support import build

MEMBERS, SLOTS = 4, 2


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Screen:
    """A sink that draws into a string."""

    def __init__(self, terminal: bool = False) -> None:
        self.out, self.clock = io.StringIO(), FakeClock()
        console = Console(file=self.out, force_terminal=terminal, width=200)
        self.sink = RunProgressSink(console, self.clock)

    def tell(self, *events: TelemetryEvent, seconds: float = 0.0) -> None:
        self.clock.now += seconds
        for event in events:
            self.sink.emit(event)

    @property
    def lines(self) -> list[str]:
        return self.out.getvalue().splitlines()

    @property
    def progress(self) -> list[str]:
        return [line for line in self.lines if line.startswith("round ")]


def started(rounds: int = 3, length: int = 10) -> TelemetryEvent:
    said = {
        "policy": "ppo",
        "task": "digits_[bold]",
        "seed": 7,
        "rounds": rounds,
        "members": MEMBERS,
        "episode_length": length,
        "batches_per_step": 8,
        "batch_size": 64,
        "control_images": 300,
        "score_images": 200,
        "device": "cpu",
        "profile": "fast",
        "executor": "vmap",
        "executor_reason": "measured faster",
    }
    return TelemetryEvent.of(build(RunStarted, said))


def step_done(round_index: int, step: int, score: float = 0.5) -> TelemetryEvent:
    said = {
        "score_E": np.full(MEMBERS, score),
        "val_accuracy_E": np.full(MEMBERS, 0.25, dtype=np.float32),
    }
    return TelemetryEvent.of(build(StepCompleted, said, E=MEMBERS), round_index, step)


def round_done(
    round_index: int,
    rounds: int = 3,
    score: float = 0.5,
    best: float = 0.75,
    cut: bool = False,
    **stages: int,
) -> TelemetryEvent:
    """The end of a rollout: of its round, or cut in the middle of it."""
    said = {
        "round_index": round_index,
        "rounds_total": rounds,
        "episodes_done": MEMBERS * (round_index + (not cut)),
        "members": MEMBERS,
        "mean_score": score,
        "best_score": best,
        "mean_accuracy": 0.625,
        "stage_counts": tuple(stages.get(stage.name, 0) for stage in SeedStage),
        "member_steps_per_second": 12.5,
    }
    return TelemetryEvent.of(build(BatchSummary, said), round_index)


def moved(
    round_index: int, step: int, member: int, slot: int, after: SeedStage, kind=SeedStageChanged
) -> TelemetryEvent:
    said = {"member_N": np.array([member]), "slot_N": np.array([slot])}
    said["stage_after_N"] = np.array([after], dtype=np.int8)
    return TelemetryEvent.of(build(kind, said, N=1), round_index, step)


FINISHED = {"rounds_done": 3, "episodes_done": 12, "seconds": 3725.0, "best_score": 0.75}


def finished(**changes) -> TelemetryEvent:
    return TelemetryEvent.of(build(RunFinished, FINISHED | changes))


def run(rounds: int, length: int) -> list[TelemetryEvent]:
    events = [started(rounds, length)]
    for r in range(rounds):
        events += [step_done(r, t) for t in range(length)]
        events.append(round_done(r, rounds))
    return [*events, finished(rounds_done=rounds)]


# ---- numbers ----------------------------------------------------------------------------------


def test_it_is_a_sink():
    assert isinstance(RunProgressSink(), SinkProtocol)


def test_heading_says_what_a_member_step_consists_of():
    screen = Screen()
    screen.tell(started())
    (line,) = screen.lines
    assert line == (
        "ppo on digits_[bold], seed 7: 4 members, 3 rounds of 10 steps; a step is 8 batches of 64, "
        "then 300 + 200 validation samples; cpu, profile fast, executor vmap (measured faster)"
    )


def test_speed_leaves_out_the_first_step_and_time_left_follows_from_it():
    screen = Screen()
    screen.tell(started(rounds=1, length=10))
    screen.tell(step_done(0, 0), seconds=50)
    for t in range(1, 6):
        screen.tell(step_done(0, t), seconds=2)
    first, *_, last = screen.progress
    assert first.startswith("round 1/1, step 1/10 (- member-steps/s, - left): ")
    # 4 members in 2 seconds a step; 4 steps to go
    assert last.startswith("round 1/1, step 6/10 (2.0 member-steps/s, 8 s left): ")


def test_time_left_is_that_of_the_whole_run():
    screen = Screen()
    screen.tell(started(rounds=3, length=10))
    for r in range(2):
        for t in range(10):
            screen.tell(step_done(r, t), seconds=600)
        screen.tell(round_done(r))
    # 10 steps of 10 minutes
    assert "step 10/10 (0.0 member-steps/s, 1 h 40 min left)" in screen.progress[-1]


def test_score_is_of_the_step_and_at_the_end_of_the_round():
    screen = Screen()
    screen.tell(started(rounds=2, length=5))
    screen.tell(step_done(0, 0, score=0.125))
    assert screen.progress[-1].endswith("accuracy 25.0 %, training score 0.125; seeds: none")
    screen.tell(round_done(0, 2, score=0.375, best=0.5))
    assert "accuracy 62.5 %, training score 0.375, best 0.500;" in screen.progress[-1]
    screen.tell(step_done(1, 0, score=0.25))
    assert "training score 0.250, best 0.500;" in screen.progress[-1]


def test_rows_of_a_member_are_shown_once_known():
    screen = Screen()
    speed = TelemetryEvent.of(build(Throughput, {"rows_per_member": 1.75}), 0)
    screen.tell(started(), speed, round_done(0))
    assert "1.8 rows (forward passes) per member" in screen.progress[-1]


def test_seeds_by_stage_follow_the_slots():
    screen = Screen()
    stage = SeedStage
    screen.tell(started(rounds=1, length=10))
    screen.tell(moved(0, 0, 0, 0, stage.GERMINATED, SeedGerminated))
    screen.tell(moved(0, 0, 1, 1, stage.GERMINATED, SeedGerminated), step_done(0, 0))
    assert screen.progress[-1].endswith("seeds: 2 germinated")
    screen.tell(moved(0, 1, 0, 0, stage.TRAINING), step_done(0, 1))
    assert screen.progress[-1].endswith("seeds: 1 germinated, 1 training")
    screen.tell(moved(0, 2, 1, 1, stage.PRUNED, SeedPruned), step_done(0, 2))
    assert screen.progress[-1].endswith("seeds: 1 training")
    screen.tell(moved(0, 3, 0, 0, stage.FOSSILIZED, SeedFossilized))
    screen.tell(moved(0, 3, 1, 1, stage.EMBARGOED), step_done(0, 3))
    assert screen.progress[-1].endswith("seeds: 1 fossilized")
    # told twice (as a move and as a germination) is counted once
    screen.tell(moved(0, 4, 2, 0, stage.GERMINATED))
    screen.tell(moved(0, 4, 2, 0, stage.GERMINATED, SeedGerminated), step_done(0, 4))
    assert screen.progress[-1].endswith("seeds: 1 germinated, 1 fossilized")


def test_end_of_a_round_brings_the_true_counts_and_the_next_starts_empty():
    screen = Screen()
    screen.tell(started(rounds=2, length=5), moved(0, 0, 0, 0, SeedStage.TRAINING))
    screen.tell(round_done(0, 2, DORMANT=2, HOLDING=1, FOSSILIZED=3, PRUNED=2))
    assert screen.progress[-1].endswith("seeds: 1 holding, 3 fossilized")
    screen.tell(step_done(1, 0))
    assert screen.progress[-1].endswith("seeds: none")


def test_a_rollout_that_was_cut_does_not_end_its_round():
    screen = Screen(terminal=True)
    screen.tell(started(rounds=2, length=6))
    for t in range(4):
        screen.tell(step_done(0, t), seconds=1)
    screen.tell(round_done(0, 2, score=0.125, cut=True, HOLDING=2))
    run = screen.sink.run
    assert (run.step, run.over, run.done) == (4, False, 4)
    assert (run.score, run.seeds[SeedStage.HOLDING]) == (0.125, 2)
    screen.tell(step_done(0, 4), step_done(0, 5), round_done(0, 2))
    assert (run.step, run.over, run.done) == (6, True, 6)
    screen.tell(round_done(1, 2, cut=True))
    assert (run.round, run.step, run.over) == (1, 0, False)


def test_ending_says_how_it_went_and_what_was_lost():
    screen = Screen()
    screen.tell(finished())
    assert screen.lines == [
        "completed after 3 rounds, 12 episodes, 1 h 2 min; best training score 0.750"
    ]
    screen.tell(finished(status=RunStatus.INTERRUPTED, events_dropped=5))
    assert screen.lines[-1].startswith("interrupted after")
    assert screen.lines[-1].endswith("; 5 events dropped")
    screen.tell(finished(rounds_done=1))
    assert screen.lines[-1].startswith("completed after 1 round, 12 episodes,")


# ---- how much is shown ------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [1, 2, 7, 9, 10, 12, 37])
def test_about_ten_lines_and_one_a_round_up_to_that(rounds):
    screen = Screen()
    screen.tell(*run(rounds, length=24))
    lines = screen.progress
    assert 7 <= len(lines) <= 12
    if rounds < 10:
        shown = {int(line.split("/")[0].removeprefix("round ")) for line in lines}
        assert shown == set(range(1, rounds + 1))
    assert lines[-1].startswith(f"round {rounds}/{rounds}, step 24/24 (")
    assert "\x1b" not in "".join(screen.lines)


@pytest.mark.parametrize("rounds", [3, 12])
def test_line_of_a_round_waits_for_its_score(rounds):
    screen = Screen()
    screen.tell(*run(rounds, length=10))
    ends = [line for line in screen.progress if ", step 10/10 " in line]
    assert len(ends) >= 3
    assert all("accuracy 62.5 %" in line for line in ends)


def test_a_terminal_gets_a_live_display():
    screen = Screen(terminal=True)
    screen.tell(started(rounds=2, length=5), step_done(0, 0), step_done(0, 1), round_done(0, 2))
    screen.tell(step_done(1, 2), finished())
    text = screen.out.getvalue()
    assert "\x1b[" in text
    assert "round 2/2, step 3/5" in text
    assert "training score 0.500, best 0.750; seeds: none" in text
    assert "completed after 3 rounds" in text


def test_closing_gives_the_terminal_back():
    screen = Screen(terminal=True)
    screen.tell(started(), step_done(0, 0))
    screen.sink.close()
    text = screen.out.getvalue()
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l")  # the cursor is shown again


# ---- missing, late, wild ----------------------------------------------------------------------


def test_a_round_whose_end_was_dropped_gets_its_line_late():
    screen = Screen()
    events = [
        e for e in run(9, length=24) if (e.type.name, e.round_index) != ("ROUND_COMPLETED", 3)
    ]
    screen.tell(*events)
    labels = [re.split(r" \(", line)[0] for line in screen.progress]
    assert labels[3] == "round 5/9, step 1/24"
    assert len(labels) == 9


def test_speed_is_measured_when_a_step_completes_not_when_it_is_told_again():
    screen = Screen()
    screen.tell(started(rounds=1, length=10), step_done(0, 0))
    screen.tell(step_done(0, 1), seconds=2)
    screen.tell(step_done(0, 1), seconds=100)
    assert screen.sink.run._speed().startswith("2.0 member-steps/s")


def test_after_the_end_nothing_more_is_shown():
    screen = Screen()
    screen.tell(started(rounds=1, length=10), finished(), step_done(0, 4))
    assert len(screen.lines) == 2


def test_a_resumed_run_starts_where_it_was():
    screen = Screen()
    screen.tell(started(rounds=100, length=10))
    screen.tell(step_done(50, 0), seconds=99)
    for t in range(1, 10):
        screen.tell(step_done(50, t), seconds=1)
    screen.tell(round_done(50, 100))
    assert "round 51/100, step 10/10 (4.0 member-steps/s, 8 min 10 s" in screen.progress[-1]


def test_nan_is_shown_as_it_is():
    screen = Screen()
    screen.tell(started(rounds=1, length=10), step_done(0, 0, score=float("nan")))
    assert "score nan;" in screen.progress[-1]
    screen.tell(finished(seconds=float("nan")))
    assert ", -;" in screen.lines[-1]


WHOLE_RUN = [
    *run(2, length=3)[:-1],
    moved(0, 1, 0, 0, SeedStage.TRAINING),
    moved(1, 1, 9, 9, SeedStage.FOSSILIZED, SeedFossilized),
    TelemetryEvent.of(build(Throughput), 1),
    finished(),
    *(TelemetryEvent.of(build(kind.payload_class)) for kind in TelemetryEventType),
]


@settings(max_examples=60)
@given(st.lists(st.sampled_from(WHOLE_RUN), max_size=25), st.booleans())
def test_any_events_in_any_order_do_not_raise(events, terminal):
    screen = Screen(terminal)
    screen.tell(*events)
    screen.sink.flush()
    screen.sink.close()


@settings(max_examples=40)
@given(st.sets(st.integers(0, 35)))
def test_after_drops_the_end_is_right(dropped):
    screen = Screen()
    events = run(3, length=10)
    kept = [e for i, e in enumerate(events[1:-2]) if i not in dropped]
    screen.tell(events[0], *kept, *events[-2:])
    assert screen.progress[-1].startswith("round 3/3, step 10/10 (")
    assert screen.progress[-1].endswith("training score 0.500, best 0.750; seeds: none")
    assert len(screen.progress) <= 10


def test_it_works_in_the_writer_of_a_hub():
    screen, kept = Screen(), MemorySink()
    with TelemetryHub([screen.sink, kept], TelemetryLevel.DEBUG) as hub:
        for event in run(3, length=10):
            hub.emit(event)
    assert hub.report().complete
    assert len(kept.events) == 1 + 3 * 11 + 1
    assert len(screen.progress) == 9
    assert screen.lines[-1].startswith("completed after 3 rounds")
