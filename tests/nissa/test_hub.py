"""The hub: training is never held up, nothing is lost in silence."""

import logging
import os
import threading
import time

import pytest

from esper.leyline import (
    EsperError,
    TelemetryConfig,
    TelemetryEvent,
    TelemetryEventType,
    TelemetryLevel,
)
from esper.leyline.payloads import StepCompleted, Throughput
from esper.leyline.protocols import SinkProtocol
from esper.nissa import JsonlSink, MemorySink, ParquetSink, TelemetryHub, get_hub
from esper.nissa.hub import MAX_FAILURES, set_hub, use_hub
from event_files import read_jsonl
from payload_support import build

DEBUG = TelemetryLevel.DEBUG


class FailingSink(MemorySink):
    """Raises at its first `failures` calls of `what`."""

    def __init__(self, what: str, failures: int = 10**9) -> None:
        super().__init__()
        self.what = what
        self.left = failures

    def _call(self, what: str) -> None:
        if what == self.what and self.left:
            self.left -= 1
            raise OSError(28, "No space left on device")

    def emit(self, event: TelemetryEvent) -> None:
        self._call("emit")
        super().emit(event)

    def flush(self) -> None:
        self._call("flush")
        super().flush()

    def close(self) -> None:
        self._call("close")
        super().close()


class GatedSink(MemorySink):
    """Blocks in its first emit until it is let through."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = threading.Event()
        self.gate = threading.Event()

    def emit(self, event: TelemetryEvent) -> None:
        self.reached.set()
        self.gate.wait(30)
        super().emit(event)


class SlowSink(MemorySink):
    """Blocks 3 seconds in its first emit."""

    def emit(self, event: TelemetryEvent) -> None:
        if not self.events:
            time.sleep(3)
        super().emit(event)


def steps_of(sink: MemorySink) -> list[int | None]:
    return [event.step for event in sink.events]


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


def test_every_sink_satisfies_the_protocol(tmp_path):
    for sink in (MemorySink(), JsonlSink(tmp_path / "e.jsonl"), ParquetSink(tmp_path)):
        assert isinstance(sink, SinkProtocol)
        sink.close()


def test_settling_waits_for_the_sinks_and_flushes_nothing(numbered):
    class Counting(GatedSink):
        flushes = 0

        def flush(self) -> None:
            self.flushes += 1

    sink = Counting()
    with TelemetryHub([sink], DEBUG, flush_seconds=60) as hub:
        assert hub.drain(), "nothing was emitted"
        for i in range(3):
            hub.emit(numbered(i))
        sink.reached.wait(30)
        assert not hub.drain(timeout=0.02), "the sink is still busy with the first"
        sink.gate.set()
        assert hub.drain()
        assert steps_of(sink) == [0, 1, 2]
        assert sink.flushes == 0
    assert TelemetryHub([], DEBUG).drain(), "no sinks, nothing to wait for"


@pytest.mark.parametrize("step_events", [True, False])
def test_a_hub_records_what_its_config_asks_for(step_events, numbered):
    sink = MemorySink()
    config = TelemetryConfig(TelemetryLevel.MINIMAL, step_events=step_events, queue_size=3)
    with TelemetryHub.from_config([sink], config) as hub:
        assert hub.level is TelemetryLevel.MINIMAL
        assert hub.records(TelemetryEventType.STEP_COMPLETED) is step_events
        assert hub.records(TelemetryEventType.LAST_ACTION) is step_events
        assert not hub.records(TelemetryEventType.THROUGHPUT)
        with hub._changed:  # the writer takes nothing meanwhile
            for i in range(5):
                hub.emit(numbered(i))
    assert hub.report().events_dropped == 2


def test_every_sink_gets_every_event_in_order(numbered, caplog):
    sinks = [MemorySink(), MemorySink()]
    with TelemetryHub(sinks, DEBUG) as hub:
        for i in range(500):
            hub.emit(numbered(i))
    assert steps_of(sinks[0]) == steps_of(sinks[1]) == list(range(500))
    report = hub.report()
    assert report.complete
    assert report.written == {"MemorySink": 500, "MemorySink-2": 500}
    assert warnings_of(caplog) == []


def test_events_of_many_threads_all_arrive_each_in_its_order(numbered):
    sink = MemorySink()
    with TelemetryHub([sink], DEBUG) as hub:

        def emit_hundred(start: int) -> None:
            for i in range(start, start + 100):
                hub.emit(numbered(i))

        threads = [threading.Thread(target=emit_hundred, args=(k * 100,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    steps = steps_of(sink)
    assert sorted(steps) == list(range(400))
    for k in range(4):
        mine = [s for s in steps if s // 100 == k]
        assert mine == sorted(mine)


def test_a_sink_that_blocks_does_not_hold_up_emit(numbered):
    sink = SlowSink()
    hub = TelemetryHub([sink], DEBUG)
    start = time.perf_counter()
    for i in range(1000):
        hub.emit(numbered(i))
    took = time.perf_counter() - start
    report = hub.close()
    assert took < 1.0
    assert report.complete
    assert steps_of(sink) == list(range(1000))


def test_a_full_queue_counts_its_drops_exactly_and_per_type(numbered, caplog):
    sink = GatedSink()
    hub = TelemetryHub([sink], DEBUG, capacity=10)
    hub.emit(numbered(0))
    assert sink.reached.wait(10)  # it is out of the queue, and the writer is stuck in it
    for i in range(1, 16):
        hub.emit(numbered(i))
    for i in range(16, 19):
        hub.emit(numbered(i, build(Throughput)))
    sink.gate.set()
    report = hub.close()
    assert report.emitted == 19
    assert report.dropped == {"CHECKPOINT_LOADED": 5, "THROUGHPUT": 3}
    assert report.events_dropped == 8
    assert steps_of(sink) == list(range(11))
    assert report.missing == {}
    (line,) = warnings_of(caplog)
    assert "8 dropped" in line
    assert "THROUGHPUT 3" in line
    assert "\n" not in line


def test_a_sink_that_raises_is_reported_once_set_aside_and_harms_no_other(numbered, caplog):
    bad, good = FailingSink("emit"), MemorySink()
    with TelemetryHub([bad, good], DEBUG) as hub:
        for i in range(50):
            hub.emit(numbered(i))
    report = hub.report()
    assert steps_of(good) == list(range(50))
    assert bad.closed
    assert report.failures == {"FailingSink": MAX_FAILURES, "MemorySink": 0}
    assert report.disabled == ("FailingSink",)
    assert report.missing == {"FailingSink": 50}
    first, aside, end = warnings_of(caplog)
    assert "emit failed (OSError: [Errno 28]" in first
    assert "disabled after 5 failures" in aside
    assert "FailingSink is missing 50" in end


DISPLAYED = """
import os, pathlib, sys
from esper.karn.run_progress import RunProgressSink
from esper.leyline import *
from esper.leyline.payloads import *
from esper.nissa import *
reader, writer = os.pipe()
os.close(reader)
os.dup2(writer, 1)
hub = TelemetryHub([RunProgressSink(), JsonlSink(pathlib.Path(sys.argv[1]))], TelemetryLevel.DEBUG)
for _ in range(3):
    hub.emit(TelemetryEvent.of(RunFinished(RunStatus.COMPLETED, 1, 2, 3.0, 0.5, 0)))
print(hub.close(), file=sys.stderr)
"""


def test_a_display_whose_stdout_is_a_closed_pipe_costs_other_sinks_nothing(run_python, tmp_path):
    """rich answers a broken pipe with SystemExit, which ended the writer thread in silence."""
    done = run_python(DISPLAYED, tmp_path / "e.jsonl")
    assert len(list(read_jsonl(tmp_path / "e.jsonl"))) == 3, done.stderr
    assert "telemetry: of 3 events, RunProgressSink is missing" in done.stderr


def test_a_sink_that_recovers_goes_on(numbered):
    sink = FailingSink("emit", failures=MAX_FAILURES - 1)
    with TelemetryHub([sink], DEBUG) as hub:
        for i in range(20):
            hub.emit(numbered(i))
    report = hub.report()
    assert steps_of(sink) == list(range(MAX_FAILURES - 1, 20))
    assert report.disabled == ()
    assert report.written == {"FailingSink": 20 - (MAX_FAILURES - 1)}


def test_failures_that_are_not_in_a_row_set_no_sink_aside(numbered):
    class EverySecond(MemorySink):
        def emit(self, event: TelemetryEvent) -> None:
            if event.step % 2:
                raise ValueError("odd")
            super().emit(event)

    sink = EverySecond()
    with TelemetryHub([sink], DEBUG) as hub:
        for i in range(40):
            hub.emit(numbered(i))
    assert steps_of(sink) == list(range(0, 40, 2))
    assert hub.report().failures == {"EverySecond": 20}


def test_failing_flushes_set_a_sink_aside_although_it_takes_events(numbered):
    sink = FailingSink("flush")
    hub = TelemetryHub([sink], DEBUG)
    for i in range(MAX_FAILURES + 2):
        hub.emit(numbered(i))
        assert hub.flush(10)
    assert hub.report().disabled == ("FailingSink",)
    assert hub.report().written == {"FailingSink": 0}
    hub.close()


def test_a_failing_close_leaves_its_events_unconfirmed(numbered):
    hub = TelemetryHub([FailingSink("close")], DEBUG)
    hub.emit(numbered(0))
    report = hub.close()
    assert report.missing == {"FailingSink": 1}


@pytest.mark.parametrize("level", TelemetryLevel)
def test_only_events_of_the_level_are_recorded(level):
    sink = MemorySink()
    with TelemetryHub([sink], level) as hub:
        for kind in TelemetryEventType:
            hub.emit(TelemetryEvent.of(build(kind.payload_class)))
    kinds = [event.type for event in sink.events]
    assert kinds == [kind for kind in TelemetryEventType if kind.level <= level]
    assert hub.report().emitted == len(kinds)


def test_the_level_changes_at_run_time(numbered):
    sink = MemorySink()
    with TelemetryHub([sink], TelemetryLevel.MINIMAL) as hub:
        for i, level in enumerate([TelemetryLevel.MINIMAL, DEBUG, TelemetryLevel.NORMAL]):
            hub.level = level
            hub.emit(numbered(i, build(StepCompleted)))
    assert steps_of(sink) == [1]


def test_types_asked_for_are_recorded_at_every_level_but_off(numbered):
    sink = MemorySink()
    hub = TelemetryHub([sink], TelemetryLevel.MINIMAL, always=[TelemetryEventType.STEP_COMPLETED])
    with hub:
        hub.emit(numbered(0, build(StepCompleted)))
        hub.level = TelemetryLevel.OFF
        hub.emit(numbered(1, build(StepCompleted)))
    assert steps_of(sink) == [0]


def test_flush_waits_until_every_sink_has_everything(numbered):
    sink = MemorySink()
    with TelemetryHub([sink], DEBUG, flush_seconds=3600) as hub:
        for i in range(100):
            hub.emit(numbered(i))
        assert hub.flush(10)
        assert steps_of(sink) == list(range(100))
        assert sink.flushes >= 1
        assert hub.report().written == {"MemorySink": 100}
        hub.emit(numbered(100))
    assert steps_of(sink) == list(range(101))


def test_flush_gives_up_when_its_time_is_over(numbered):
    sink = GatedSink()
    with TelemetryHub([sink], DEBUG) as hub:
        hub.emit(numbered(0))
        assert not hub.flush(0.05)
        sink.gate.set()
        assert hub.flush(10)


def test_events_are_flushed_by_themselves_after_a_while(numbered):
    sink = MemorySink()
    with TelemetryHub([sink], DEBUG, flush_seconds=0.05) as hub:
        hub.emit(numbered(0))
        deadline = time.monotonic() + 10
        while not sink.flushes and time.monotonic() < deadline:
            time.sleep(0.01)
        assert sink.flushes
        time.sleep(0.2)  # the writer finds nothing to do a few times, and goes on
        hub.emit(numbered(1))
    assert steps_of(sink) == [0, 1]


def test_close_gives_up_when_its_time_is_over_and_says_what_is_missing(numbered, caplog):
    sink = GatedSink()
    hub = TelemetryHub([sink], DEBUG)
    for i in range(5):
        hub.emit(numbered(i))
    assert sink.reached.wait(10)
    start = time.perf_counter()
    report = hub.close(timeout=0.05)
    assert time.perf_counter() - start < 2.0
    assert report.missing == {"GatedSink": 5}
    assert "GatedSink is missing 5" in warnings_of(caplog)[-1]
    sink.gate.set()


def test_close_twice_closes_once_and_reports_the_same(numbered, caplog):
    sink = FailingSink("close")
    hub = TelemetryHub([sink], DEBUG)
    hub.emit(numbered(0))
    assert hub.close() == hub.close()
    assert hub.report().failures == {"FailingSink": 1}
    assert len(warnings_of(caplog)) == 2


def test_emit_after_close_does_nothing_but_count(numbered):
    sink = MemorySink()
    hub = TelemetryHub([sink], DEBUG)
    hub.emit(numbered(0))
    hub.close()
    hub.emit(numbered(1))
    assert steps_of(sink) == [0]
    report = hub.report()
    assert (report.emitted, report.after_close) == (1, 1)
    assert "1 emitted after close" in str(report)


def test_a_signal_handler_may_emit_inside_emit(run_python):
    """Its thread already holds the hub's lock then."""
    code = """
from esper.leyline import *
from esper.leyline.payloads import *
from esper.nissa import *
hub = TelemetryHub([MemorySink()], TelemetryLevel.DEBUG)
with hub._changed:
    hub.emit(TelemetryEvent.of(CheckpointLoaded("a", 1)))
print(hub.close())
"""
    assert run_python(code).stdout.strip() == "telemetry: all 1 events written"


def test_capacity_below_one_is_refused():
    with pytest.raises(EsperError, match="capacity=0"):
        TelemetryHub([], DEBUG, capacity=0)


def test_the_hub_of_the_process_does_nothing_until_one_is_set(numbered):
    idle = get_hub()
    idle.emit(numbered(0))
    assert idle.report().emitted == 0
    sink = MemorySink()
    with use_hub(TelemetryHub([sink], DEBUG)) as hub:
        assert get_hub() is hub
        get_hub().emit(numbered(1))
    assert get_hub() is idle
    assert steps_of(sink) == [1]
    assert sink.closed
    other = TelemetryHub([], DEBUG)
    assert set_hub(other) is idle
    assert set_hub(idle) is other


def test_a_hub_that_nobody_closes_is_closed_at_exit(run_python, tmp_path):
    code = """
import sys, pathlib
from esper.leyline import *
from esper.leyline.payloads import *
from esper.nissa import *
hub = TelemetryHub([JsonlSink(pathlib.Path(sys.argv[1]), 10**6, 1e9)], TelemetryLevel.DEBUG)
for i in range(300):
    hub.emit(TelemetryEvent.of(CheckpointLoaded("a", i)))
"""
    done = run_python(code, tmp_path / "events.jsonl")
    assert (done.returncode, done.stderr) == (0, "")
    assert len((tmp_path / "events.jsonl").read_text().splitlines()) == 300


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_in_a_forked_child_the_hub_does_nothing_and_does_not_hang(run_python, tmp_path):
    """The lock is held at the fork, as the writer thread may hold it."""
    code = """
import os, sys, pathlib
from esper.leyline import *
from esper.leyline.payloads import *
from esper.nissa import *
hub = TelemetryHub([JsonlSink(pathlib.Path(sys.argv[1]))], TelemetryLevel.DEBUG)
event = lambda i: TelemetryEvent.of(CheckpointLoaded("a", i))
import threading
held, done = threading.Event(), threading.Event()
def hold():
    with hub._changed:
        held.set(); done.wait(20)
threading.Thread(target=hold).start()
held.wait()
child = os.fork()
if child == 0:
    hub.emit(event(1)); hub.flush(); hub.close(); hub.report()
    sys.exit(0)
_, status = os.waitpid(child, 0)
done.set()
hub.emit(event(2))
hub.close()
print(os.waitstatus_to_exitcode(status), hub.report())
"""
    done = run_python(code, tmp_path / "events.jsonl")
    assert done.stdout.strip() == "0 telemetry: all 1 events written", done.stderr
    (line,) = (tmp_path / "events.jsonl").read_text().splitlines()
    assert '"rounds_done":2' in line
