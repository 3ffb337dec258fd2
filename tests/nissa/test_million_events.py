"""A million events: none is lost where the writer keeps up, all others are counted."""

from __future__ import annotations

from esper.leyline import CheckpointLoaded, TelemetryEvent, TelemetryLevel
from esper.nissa import JsonlSink, ParquetSink, TelemetryHub

EVENTS = 1_000_000


def test_every_event_is_written_or_counted_as_dropped(tmp_path):
    payload = CheckpointLoaded("runs/a", 1)
    with TelemetryHub([JsonlSink(tmp_path / "events.jsonl")], TelemetryLevel.DEBUG) as hub:
        for number in range(EVENTS):
            hub.emit(TelemetryEvent.of(payload, step=number))
    report = hub.report()
    with (tmp_path / "events.jsonl").open("rb") as file:
        lines = sum(1 for _ in file)
    assert report.emitted == EVENTS
    assert lines == report.written["JsonlSink"]
    assert lines + report.events_dropped == EVENTS


def test_none_is_lost_where_the_writer_keeps_up(tmp_path):
    sinks = [JsonlSink(tmp_path / "events.jsonl"), ParquetSink(tmp_path)]
    with TelemetryHub(sinks, TelemetryLevel.DEBUG) as hub:
        for number in range(EVENTS // 10):
            hub.emit(TelemetryEvent.of(CheckpointLoaded("runs/a", number), step=number))
            if number % 4000 == 3999:
                assert hub.flush(timeout=60)
    assert hub.report().complete
