"""Sinks and readers: what is written is read back, whatever happened in between."""

import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet as pq

from esper.leyline import EsperError, TelemetryEvent, TelemetryEventType, TelemetryLevel
from esper.leyline.payloads import (
    CheckpointLoaded,
    GovernorPanic,
    PPOUpdated,
    RewardSummary,
    RunStarted,
)
from esper.leyline.telemetry import SCHEMA_VERSION
from esper.nissa import JsonlSink, MemorySink, ParquetSink, TelemetryHub
from esper.nissa.columns import payload_columns, schema_of
from event_files import read_jsonl, read_parquet
from payload_support import build

PANIC = TelemetryEventType.GOVERNOR_PANIC
LOADED = TelemetryEventType.CHECKPOINT_LOADED
BOTH = [JsonlSink, ParquetSink]
WRITER = """
import sys, pathlib, resource
import numpy as np
from esper.leyline import *
from esper.leyline.payloads import *
from esper.nissa import *
run, limit = pathlib.Path(sys.argv[1]), int(sys.argv[2])
sinks = [JsonlSink(run / "events.jsonl", 7), ParquetSink(run, rows_per_part=50), MemorySink()]
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
hub = TelemetryHub(sinks, TelemetryLevel.DEBUG, flush_seconds=0.01)
i = 0
while i < int(sys.argv[3]):
    ones = np.ones(3, np.int64) * i
    hub.emit(TelemetryEvent.of(CheckpointLoaded("x" * 50, i)))
    hub.emit(TelemetryEvent.of(CounterfactualUnavailable(ones, np.zeros(3, np.int8)), step=i))
    i += 1
    if i % 100 == 0:
        hub.flush()
        print(i, flush=True)
report = hub.close()
print(sinks[2].events[-1].step, len(sinks[2].events), report)
"""


def sink_at(kind: type, run: Path, **settings: Any) -> Any:
    return kind(run / "events.jsonl" if kind is JsonlSink else run, **settings)


def plain(value: Any) -> Any:
    """A value as it stands in a cell, NaN as text so that it equals itself."""
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    if is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    return {k: plain(v) for k, v in value.items()} if isinstance(value, dict) else value


def expected_rows(events: list[TelemetryEvent]) -> list[dict[str, Any]]:
    """What the table of these events, all of one type, must hold: written out cell by cell."""
    rows = []
    for number, event in enumerate(events):
        columns = {
            c.name: (c, getattr(event.payload, c.field)) for c in payload_columns(event.type)
        }
        arrays = [value for column, value in columns.values() if column.is_array]
        for row in range(len(arrays[0]) if arrays else 1):
            own = {"schema_version": SCHEMA_VERSION, "event": number, "row": row}
            own |= {"wall_time": event.wall_time, "round": event.round_index, "step": event.step}
            own |= {"env_id": event.env_id, "device": event.device}
            cells = {n: v[row] if c.is_array else v for n, (c, v) in columns.items()}
            rows.append(
                own
                | {
                    n: plain(np.asarray(v).tolist()) if columns[n][0].is_array else plain(v)
                    for n, v in cells.items()
                }
            )
    return rows


def table_rows(table: pa.Table) -> list[dict[str, Any]]:
    return [plain(row) for row in table.to_pylist()]


@settings(max_examples=10, suppress_health_check=list(HealthCheck))
@given(data=st.data(), rows_per_part=st.integers(1, 5))
def test_any_stream_comes_back_from_both_formats(any_events, data, rows_per_part):
    events = data.draw(any_events)
    with TemporaryDirectory() as folder:
        run = Path(folder)
        sinks = [JsonlSink(run / "e.jsonl"), ParquetSink(run, rows_per_part)]
        with TelemetryHub(sinks, TelemetryLevel.DEBUG) as hub:
            for event in events:
                hub.emit(event)
        assert hub.report().complete
        assert list(read_jsonl(run / "e.jsonl")) == events
        for kind in TelemetryEventType:
            mine = [event for event in events if event.type is kind]
            assert table_rows(read_parquet(run, kind)) == expected_rows(mine)


@pytest.mark.parametrize("kind", TelemetryEventType, ids=lambda kind: kind.name)
def test_every_event_type_has_a_table(kind, tmp_path):
    event = TelemetryEvent.of(build(kind.payload_class))
    sink = ParquetSink(tmp_path)
    sink.emit(event)
    sink.close()
    table = read_parquet(tmp_path, kind)
    assert table.schema.equals(schema_of(kind), check_metadata=True)
    assert table_rows(table) == expected_rows([event])


def test_array_columns_become_rows_and_scalars_are_repeated(tmp_path):
    values = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, math.nan]])
    reward = RewardSummary(("score", "cost"), values, np.array([3.0, 7.0, 5.0]), ())
    sink = ParquetSink(tmp_path)
    sink.emit(TelemetryEvent.of(reward, round_index=4))
    sink.close()
    table = read_parquet(tmp_path, TelemetryEventType.REWARD_SUMMARY)
    assert table["round"].to_pylist() == [4, 4, 4]
    assert table["row"].to_pylist() == [0, 1, 2]
    assert table["parts"].to_pylist() == [["score", "cost"]] * 3
    assert table["value_EP"].to_pylist()[:2] == [[1.0, 2.0], [3.0, 4.0]]
    assert table["total_E"].null_count == 0


def test_a_field_named_like_an_event_column_keeps_both(tmp_path):
    started = build(RunStarted, {"device": "cuda:7"})
    sink = ParquetSink(tmp_path)
    sink.emit(TelemetryEvent.of(started, device="cpu"))
    sink.close()
    table = read_parquet(tmp_path, TelemetryEventType.RUN_STARTED)
    assert table["device"].to_pylist() == ["cpu"]
    assert table["payload_device"].to_pylist() == ["cuda:7"]


def test_records_become_structs(tmp_path):
    sink = ParquetSink(tmp_path)
    sink.emit(TelemetryEvent.of(build(PPOUpdated, {"policy_loss": 0.5})))
    sink.close()
    (metrics,) = read_parquet(tmp_path, TelemetryEventType.PPO_UPDATED)["metrics"].to_pylist()
    assert metrics["policy_loss"] == 0.5


@pytest.mark.parametrize("kind", BOTH)
def test_flushed_events_are_readable_while_the_run_goes_on(kind, tmp_path, numbered):
    sink = sink_at(kind, tmp_path)
    for i in range(3):
        sink.emit(numbered(i))
        sink.flush()
        assert steps_read(kind, tmp_path) == list(range(i + 1))
    sink.close()


@pytest.mark.parametrize("kind", BOTH)
def test_a_resumed_run_adds_to_what_is_there(kind, tmp_path, numbered):
    for start in (0, 5):
        sink = sink_at(kind, tmp_path)
        for i in range(start, start + 5):
            sink.emit(numbered(i))
        sink.close()
    assert steps_read(kind, tmp_path) == list(range(10))
    if kind is ParquetSink:
        assert read_parquet(tmp_path, LOADED)["event"].to_pylist() == list(range(10))


def steps_read(kind: type, run: Path) -> list[int | None]:
    if kind is JsonlSink:
        return [event.step for event in read_jsonl(run / "events.jsonl")]
    return read_parquet(run, LOADED)["step"].to_pylist()


def test_often_flushed_parts_grow_instead_of_multiplying(tmp_path, numbered):
    sink = ParquetSink(tmp_path, rows_per_part=10)
    for i in range(25):
        sink.emit(numbered(i))
        sink.flush()
    sink.close()
    parts = sorted(path.name for path in (tmp_path / "events" / LOADED.name).iterdir())
    assert parts == ["part-00001.parquet", "part-00002.parquet", "part-00003.parquet"]
    assert steps_read(ParquetSink, tmp_path) == list(range(25))


def test_jsonl_writes_after_n_events_or_t_seconds(tmp_path, numbered):
    by_count = JsonlSink(tmp_path / "n.jsonl", flush_events=3, flush_seconds=1e9)
    by_time = JsonlSink(tmp_path / "t.jsonl", flush_events=10**9, flush_seconds=0.05)
    by_count.emit(numbered(0))
    by_count.emit(numbered(1))
    assert list(read_jsonl(tmp_path / "n.jsonl")) == []
    by_count.emit(numbered(2))
    assert len(list(read_jsonl(tmp_path / "n.jsonl"))) == 3
    time.sleep(0.06)
    by_time.emit(numbered(0))
    assert len(list(read_jsonl(tmp_path / "t.jsonl"))) == 1
    by_count.close()
    by_time.close()


@pytest.mark.parametrize("torn", [b'{"type": "CHECK', b"x" * 200_000])
def test_a_torn_last_line_is_skipped_and_cut_off_by_the_next_writer(tmp_path, numbered, torn):
    path = tmp_path / "events.jsonl"
    for start in (0, 2):
        sink = JsonlSink(path)
        sink.emit(numbered(start))
        sink.emit(numbered(start + 1))
        sink.close()
        with path.open("ab") as file:
            file.write(torn)
        assert [event.step for event in read_jsonl(path)] == list(range(start + 2))


def test_a_file_that_is_one_torn_line_is_emptied(tmp_path, numbered):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"y" * 100_000)
    sink = JsonlSink(path)
    sink.emit(numbered(0))
    sink.close()
    assert [event.step for event in read_jsonl(path)] == [0]


def test_foreign_and_newer_parts_are_refused_in_one_line(tmp_path):
    part = tmp_path / "events" / LOADED.name / "part-00001.parquet"
    part.parent.mkdir(parents=True)
    pq.write_table(pa.table({"loss": [0.5]}), part)
    with pytest.raises(EsperError, match="schema version none"):
        read_parquet(tmp_path, LOADED)
    newer = schema_of(LOADED).with_metadata({"esper_schema_version": str(SCHEMA_VERSION + 1)})
    pq.write_table(newer.empty_table(), part)
    with pytest.raises(EsperError, match=rf"schema version {SCHEMA_VERSION + 1}, this Esper"):
        read_parquet(tmp_path, LOADED)
    with pytest.raises(EsperError, match="schema version"):
        ParquetSink(tmp_path).emit(TelemetryEvent.of(CheckpointLoaded("a", 1)))
    part.write_bytes(b"no parquet")
    with pytest.raises(EsperError, match="not a Parquet file"):
        read_parquet(tmp_path, LOADED)
    with pytest.raises(EsperError, match="no such run folder"):
        read_parquet(tmp_path / "none", LOADED)


def test_a_type_without_events_is_an_empty_table(tmp_path):
    table = read_parquet(tmp_path, PANIC)
    assert table.num_rows == 0
    assert "loss_N" in table.column_names


def test_an_event_that_does_not_fit_a_column_harms_no_other(tmp_path, numbered):
    with TelemetryHub([ParquetSink(tmp_path)], TelemetryLevel.DEBUG) as hub:
        hub.emit(numbered(0))
        hub.emit(numbered(1, CheckpointLoaded("a", 2**70)))
        hub.emit(numbered(2))
    assert steps_read(ParquetSink, tmp_path) == [0, 2]
    assert hub.report().missing == {"ParquetSink": 1}


@pytest.mark.parametrize("kind", BOTH)
def test_a_place_that_cannot_be_written_is_refused_at_once(kind, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EsperError, match="cannot be written"):
        sink_at(kind, tmp_path / "file" / "run")


@pytest.mark.parametrize("kind", BOTH)
def test_two_runs_do_not_write_to_one_place(kind, tmp_path, numbered):
    """Their parts would replace each other's; a place is free again when its writer is closed."""
    first = sink_at(kind, tmp_path)
    with pytest.raises(EsperError, match="another run writes its events there"):
        sink_at(kind, tmp_path)
    first.emit(numbered(0))
    first.close()
    second = sink_at(kind, tmp_path)
    second.emit(numbered(1))
    second.close()
    assert steps_read(kind, tmp_path) == [0, 1]


@pytest.mark.parametrize("kind", BOTH)
def test_paths_that_are_no_utf8_are_written_read_and_recorded(kind, tmp_path):
    """As a place, twice (the second writer reads what the first wrote), and inside of an event."""
    run = tmp_path / os.fsdecode(b"caf\xe9")
    for step in range(2):
        sink = sink_at(kind, run)
        sink.emit(TelemetryEvent.of(CheckpointLoaded(str(run), step), step=step))
        sink.close()
    assert steps_read(kind, run) == [0, 1]
    if kind is ParquetSink:
        paths = read_parquet(run, LOADED)["path"].to_pylist()
        assert paths == [str(tmp_path / r"caf\udce9")] * 2
    else:
        assert [event.payload.path for event in read_jsonl(run / "events.jsonl")] == [str(run)] * 2


def test_a_full_disk_costs_events_but_neither_the_run_nor_the_files(tmp_path, run_python):
    done = run_python(WRITER, tmp_path, 6000, 400)
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith("399 800 telemetry: of 800 events, JsonlSink is missing")
    assert "File too large" in done.stderr
    missing = int(last.partition("JsonlSink is missing ")[2].split()[0])
    assert len(list(read_jsonl(tmp_path / "events.jsonl"))) >= 800 - missing > 0
    assert_parts_are_whole(tmp_path)


def test_kill_9_leaves_everything_flushed_readable(tmp_path):
    command = [sys.executable, "-c", WRITER, str(tmp_path), "0", str(10**9)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    flushed = 0
    while flushed < 500:
        flushed = int(writer.stdout.readline())
    time.sleep(0.013)
    os.kill(writer.pid, signal.SIGKILL)
    rest = writer.communicate(timeout=20)[0].split()
    flushed = int(rest[-1]) if rest else flushed
    events = list(read_jsonl(tmp_path / "events.jsonl"))
    loaded = [event.payload.rounds_done for event in events if event.type is LOADED]
    assert loaded == list(range(len(loaded)))
    assert len(loaded) >= flushed
    assert assert_parts_are_whole(tmp_path) >= flushed
    assert read_parquet(tmp_path, LOADED).num_rows >= flushed


def assert_parts_are_whole(run: Path) -> int:
    """Every part is readable and no event stands there by half; how many events there are."""
    gaps = read_parquet(run, TelemetryEventType.COUNTERFACTUAL_UNAVAILABLE)
    steps = np.array(gaps["step"])
    assert np.array_equal(steps, np.repeat(np.arange(len(steps) // 3), 3))
    assert np.array_equal(np.array(gaps["event"]), steps)
    return len(steps) // 3


def test_what_a_killed_writer_left_is_swept(tmp_path, numbered):
    folder = tmp_path / "events" / LOADED.name
    folder.mkdir(parents=True)
    (folder / ".part-00001.parquet.abc.tmp").write_bytes(b"half")
    sink = ParquetSink(tmp_path)
    sink.emit(numbered(0))
    sink.close()
    assert [path.name for path in folder.iterdir()] == ["part-00001.parquet"]


@pytest.mark.parametrize("kind", BOTH)
def test_a_failed_write_is_made_up_for_by_the_next(kind, tmp_path, numbered, monkeypatch):
    sink = sink_at(kind, tmp_path)
    sink.emit(numbered(0))
    with monkeypatch.context() as patch:
        patch.setattr(os, *(("write", half_a_write) if kind is JsonlSink else ("fsync", no_space)))
        with pytest.raises(OSError, match="No space"):
            sink.flush()
    sink.emit(numbered(1))
    sink.close()
    assert steps_read(kind, tmp_path) == [0, 1]


@pytest.mark.parametrize("kind", BOTH)
def test_an_event_refused_by_emit_is_not_written_later(kind, tmp_path, numbered, monkeypatch):
    sink = sink_at(kind, tmp_path, **{"flush_events" if kind is JsonlSink else "rows_per_part": 2})
    sink.emit(numbered(0))
    with monkeypatch.context() as patch:
        patch.setattr(os, *(("write", half_a_write) if kind is JsonlSink else ("fsync", no_space)))
        with pytest.raises(OSError, match="No space"):
            sink.emit(numbered(1))
    sink.emit(numbered(2))
    sink.close()
    assert steps_read(kind, tmp_path) == [0, 2]
    if kind is ParquetSink:
        assert read_parquet(tmp_path, LOADED)["event"].to_pylist() == [0, 1]


WRITE = os.write


def half_a_write(file: int, content: bytes) -> int:
    """As a disk that fills up in the middle of a line."""
    WRITE(file, content[: len(content) // 2])
    return no_space()


def no_space(*_: object) -> int:
    raise OSError(28, "No space left on device")


def test_memory_keeps_the_last_events(numbered):
    sink = MemorySink(capacity=2)
    for i in range(5):
        sink.emit(numbered(i))
    assert [event.step for event in sink.events] == [3, 4]


def test_empty_columns_leave_no_row_and_the_count_goes_on(tmp_path):
    sink = ParquetSink(tmp_path)
    for count in (1, 0, 2):
        sink.emit(TelemetryEvent.of(build(GovernorPanic, N=count)))
    sink.close()
    assert read_parquet(tmp_path, PANIC)["event"].to_pylist() == [0, 2, 2]


def test_limits_below_one_are_refused(tmp_path):
    with pytest.raises(EsperError, match="flush_events=0"):
        JsonlSink(tmp_path / "e.jsonl", flush_events=0)
    with pytest.raises(EsperError, match="rows_per_part=0"):
        ParquetSink(tmp_path, rows_per_part=0)
