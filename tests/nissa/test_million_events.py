"""A million events through both sinks: none is lost where the writer keeps up, all others are
counted, and what was written is in order and read back."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
from pyarrow import parquet as pq

from esper.leyline import TelemetryEvent, TelemetryEventType, TelemetryLevel
from esper.leyline.payloads import CheckpointLoaded
from esper.nissa import JsonlSink, ParquetSink, TelemetryHub
from esper.nissa.parquet import PARTS, folder_of

EVENTS = 1_000_000


def hub_of(folder: Path) -> TelemetryHub:
    return TelemetryHub(
        [JsonlSink(folder / "events.jsonl"), ParquetSink(folder)], TelemetryLevel.DEBUG
    )


def event(number: int) -> TelemetryEvent:
    return TelemetryEvent.of(CheckpointLoaded("runs/a", number), step=number)


def steps_in_jsonl(folder: Path) -> np.ndarray:
    with (folder / "events.jsonl").open() as file:
        return np.array([json.loads(line)["step"] for line in file], dtype=np.int64)


def steps_in_parquet(folder: Path) -> np.ndarray:
    parts = sorted(folder_of(folder, TelemetryEventType.CHECKPOINT_LOADED).glob(PARTS))
    return np.concatenate(
        [pq.read_table(part, columns=["step"])["step"].to_numpy() for part in parts]
    )


def test_none_is_lost_where_the_writer_keeps_up(tmp_path):
    began = time.perf_counter()
    with hub_of(tmp_path) as hub:
        for number in range(EVENTS):
            hub.emit(event(number))
            if number % 4000 == 3999:
                assert hub.drain(timeout=60)
    report, seconds = hub.report(), time.perf_counter() - began
    print(f"\n{EVENTS / seconds:,.0f} events a second through both sinks")
    assert (report.complete, report.emitted, report.events_dropped) == (True, EVENTS, 0)
    expected = np.arange(EVENTS)
    assert np.array_equal(steps_in_jsonl(tmp_path), expected)
    assert np.array_equal(steps_in_parquet(tmp_path), expected)


def test_in_a_burst_every_event_is_written_in_order_or_counted_as_dropped(tmp_path):
    with hub_of(tmp_path) as hub:
        for number in range(EVENTS):
            hub.emit(event(number))
    report = hub.report()
    print(f"\n{report.events_dropped:,} of {EVENTS:,} dropped")
    written = steps_in_jsonl(tmp_path)
    assert report.emitted == EVENTS
    assert report.events_dropped > 0, "the writer kept up: no burst"
    assert len(written) + report.events_dropped == EVENTS
    assert (np.diff(written) > 0).all()
    assert np.array_equal(steps_in_parquet(tmp_path), written)
    assert report.written == {"JsonlSink": len(written), "ParquetSink": len(written)}
