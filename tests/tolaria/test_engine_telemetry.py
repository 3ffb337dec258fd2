"""Recording a run changes nothing it computes, and a broken sink loses events, never a run."""

from __future__ import annotations

import errno
import os
import threading
import time

import numpy as np
import pytest

from engine_support import histories, random_policy, small_engine, small_task
from esper.leyline.payloads import EpisodeOutcome, SeedGerminated, SeedPruned, SeedStageChanged
from esper.leyline.telemetry import TelemetryConfig, TelemetryEvent, TelemetryLevel
from esper.nissa import JsonlSink, MemorySink, TelemetryHub
from esper.simic.telemetry.listener import TelemetryListener
from esper.tasks.spec import OptimSettings
from esper.tolaria.env_factory import configure_slot_telemetry

SPEC = small_task(episode_length=8)


def run(hub: TelemetryHub, level: TelemetryLevel):
    config = TelemetryConfig(level=level)
    listener = TelemetryListener(
        hub, config, "cpu", 1, batches_per_step=2, batch_size=16, optim=OptimSettings()
    )
    engine = small_engine(SPEC, listener, seed=3, members=3)
    configure_slot_telemetry(engine.slot_events, config)
    engine.train(random_policy(3, SPEC), 1)
    return engine


@pytest.fixture(scope="module")
def silent() -> dict[str, np.ndarray]:
    """The run without anyone listening."""
    engine = small_engine(SPEC, seed=3, members=3)
    engine.train(random_policy(3, SPEC), 1)
    return histories(engine.episode)


def assert_same(engine, silent) -> None:
    for name, values in histories(engine.episode).items():
        assert np.array_equal(values, silent[name], equal_nan=True), name


@pytest.mark.parametrize("level", [TelemetryLevel.OFF, TelemetryLevel.DEBUG])
def test_recording_everything_or_nothing_is_bit_identical(level, silent):
    sink = MemorySink()
    with TelemetryHub([sink], level) as hub:
        assert_same(run(hub, level), silent)
    assert bool(sink.events) == (level is not TelemetryLevel.OFF)


def test_events_tell_the_life_of_every_seed():
    """Following the events slot by slot ends where the population stands."""
    sink = MemorySink()
    with TelemetryHub([sink], TelemetryLevel.DEBUG) as hub:
        engine = run(hub, TelemetryLevel.DEBUG)
    life = engine.env.model.lifecycle
    stage_ES = np.zeros_like(life.stage_ES)
    births = prunes = 0
    for event in sink.events:
        payload = event.payload
        if isinstance(payload, SeedStageChanged):
            at = (payload.member_N, payload.slot_N)
            for n in range(len(payload.member_N)):
                place = (at[0][n], at[1][n])
                assert stage_ES[place] == payload.stage_before_N[n], "no move was left out"
                stage_ES[place] = payload.stage_after_N[n]
        births += len(payload.member_N) if isinstance(payload, SeedGerminated) else 0
        prunes += len(payload.member_N) if isinstance(payload, SeedPruned) else 0
    assert np.array_equal(stage_ES, life.stage_ES)
    assert births == life.births_ES.sum() > 0
    (outcome,) = [e.payload for e in sink.events if isinstance(e.payload, EpisodeOutcome)]
    assert outcome.germinated_E.sum() == births
    assert prunes <= outcome.pruned_E.sum(), "a prune by a ramp may still be under way"


class Broken:
    """A sink with one fault."""

    def __init__(self, fault) -> None:
        self.fault = fault

    def emit(self, event: TelemetryEvent) -> None:
        self.fault()

    def flush(self) -> None:
        self.fault()

    def close(self) -> None:
        pass


def raises() -> None:
    raise ValueError("no room for this")


def full_disk() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("fault", [raises, full_disk])
def test_a_sink_that_raises_is_reported_and_the_run_goes_on(fault, silent):
    good = MemorySink()
    hub = TelemetryHub([Broken(fault), good], TelemetryLevel.NORMAL)
    assert_same(run(hub, TelemetryLevel.NORMAL), silent)
    report = hub.close()
    assert not report.complete
    assert report.failures["Broken"] >= 1
    assert "Broken" in str(report)
    assert len(good.events) == report.emitted, "the other sink has everything"


def test_a_sink_that_blocks_loses_events_and_not_time(silent):
    """The sink hangs for as long as the run takes; training does not wait for it."""
    released = threading.Event()
    hub = TelemetryHub([Broken(lambda: released.wait(60))], TelemetryLevel.DEBUG, capacity=4)
    engine = run(hub, TelemetryLevel.DEBUG)
    assert not released.is_set(), "the run ended while the sink still hung"
    released.set()
    report = hub.close()
    assert_same(engine, silent)
    assert sum(report.dropped.values()) > 0
    assert "dropped" in str(report)


def test_a_full_disk_under_a_real_file(silent, tmp_path):
    """/dev/full takes nothing: every write fails with ENOSPC."""
    sink = JsonlSink(tmp_path / "events.jsonl")
    os.dup2(os.open("/dev/full", os.O_WRONLY), sink._file)
    hub = TelemetryHub([sink], TelemetryLevel.NORMAL, flush_seconds=0.05)
    assert_same(run(hub, TelemetryLevel.NORMAL), silent)
    time.sleep(0.1)
    report = hub.close()
    assert not report.complete
    assert report.failures["JsonlSink"] >= 1
