"""For tests of trackers: a fake W&B that can fail, and readers of what the real ones wrote.

Every reader returns {name of a figure: [(step, value), ...]}.
"""

from __future__ import annotations

import json
import struct
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

Figures = dict[str, list[tuple[int, float]]]


class FakeWandb(ModuleType):
    """A module `wandb` that keeps rows in memory, and raises or hangs where it is told to."""

    def __init__(self, fails: str = "", after: int = 0) -> None:
        """`fails`: "init", "log", "finish", or "hang", which waits for `let_go`.

        `after`: rows that `log` takes before it fails.
        """
        super().__init__("wandb")
        self.__spec__ = ModuleSpec("wandb", None)
        self.fails, self.after = fails, after
        self.rows: dict[str, list[tuple[int, dict[str, float]]]] = defaultdict(list)
        """By the id of the run."""
        self.exit_codes: list[int] = []
        self.let_go = threading.Event()
        self.Settings = lambda **settings: settings

    def init(self, *, id: str, **settings: Any) -> Any:
        self._call("init")
        return SimpleNamespace(
            log=lambda row, step: self._log(id, step, row), finish=self._finish, settings=settings
        )

    def _log(self, run_id: str, step: int, row: dict[str, float]) -> None:
        if len(self.rows[run_id]) >= self.after:
            self._call("log")
        self.rows[run_id].append((step, row))

    def _finish(self, exit_code: int) -> None:
        self._call("finish")
        self.exit_codes.append(exit_code)

    def _call(self, what: str) -> None:
        if self.fails == "hang":
            self.let_go.wait()
        if self.fails == what:
            raise ConnectionError(f"no {what}\non two lines")

    @property
    def steps(self) -> list[int]:
        """Steps of its only run."""
        (rows,) = self.rows.values()
        return [step for step, _ in rows]


def fake_wandb(monkeypatch: pytest.MonkeyPatch, fails: str = "", after: int = 0) -> FakeWandb:
    """Install the fake W&B."""
    found = FakeWandb(fails, after)
    monkeypatch.setitem(sys.modules, "wandb", found)
    return found


# ---- what the real libraries wrote ------------------------------------------------------------


def read_tensorboard(run: Path) -> Figures:
    """By TensorBoard's own reader."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(run / "trackers" / "tensorboard"), size_guidance={"scalars": 0})
    read.Reload()
    return {
        name: [(one.step, one.value) for one in read.Scalars(name)]
        for name in read.Tags()["scalars"]
    }


def read_mlflow(run: Path, uri: str = "") -> Figures:
    """By MLflow's client."""
    from mlflow import MlflowClient

    client = MlflowClient(uri or f"sqlite:///{run / 'trackers' / 'mlflow' / 'mlflow.db'}")
    (experiment,) = (one for one in client.search_experiments() if one.name == "esper")
    (found,) = client.search_runs([experiment.experiment_id])
    return {
        name: [(one.step, one.value) for one in client.get_metric_history(found.info.run_id, name)]
        for name in found.data.metrics
    }


def read_wandb(run: Path) -> Figures:
    """By W&B's own messages; all sessions of the run, which must have one id."""
    found: Figures = defaultdict(list)
    files = sorted((run / "trackers" / "wandb").glob("offline-run-*/*.wandb"))
    assert len({path.name for path in files}) == 1
    for path in files:
        for record in _wandb_records(path):
            if record.WhichOneof("record_type") == "history":
                for item in record.history.item:
                    name = item.key or "/".join(item.nested_key)
                    if not name.startswith("_"):
                        found[name].append((record.history.step.num, json.loads(item.value_json)))
    return dict(found)


def _wandb_records(path: Path) -> Iterator[Any]:
    """Records of a file: a LevelDB log after a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    raw, at, parts = path.read_bytes(), 7, b""
    while at + 7 <= len(raw):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, size, kind = struct.unpack_from("<IHB", raw, at)
        if kind == 0:
            return
        parts += raw[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            record = Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


READERS = {"tensorboard": read_tensorboard, "wandb": read_wandb, "mlflow": read_mlflow}
