"""Checkpoints of a run: capture the state between two rounds, write it and read it back.

Every episode starts from random streams keyed by its round, so between episodes the state of a run
is its agent, a few counters and its history. With `rollout_steps`, nothing can be saved in the
middle of an episode: a checkpoint holds the state after the last completed one.

Shape letters: E members.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Final

from esper.leyline.codec import Json, read_record, to_json
from esper.leyline.context import saved_rounds_vary
from esper.leyline.errors import EsperError
from esper.leyline.payloads import CheckpointReason, CheckpointSaved, Payload
from esper.leyline.telemetry import TelemetryEvent
from esper.simic.agent.agent import PPOAgent
from esper.simic.agent.saving import AgentCapture, capture_agent
from esper.simic.telemetry.emitters import emit_with_env_context
from esper.simic.telemetry.listener import RunTally
from esper.simic.training.config import TrainingConfig
from esper.simic.training.history import RoundRecord
from esper.simic.training.runs.checkpoint_store import (
    MANIFEST,
    STATE,
    CheckpointSearch,
    CheckpointStore,
    Summary,
    verify,
)
from esper.simic.training.runs.folder import checkpoints_dir, read_checkpoint_config, require_run
from esper.storage.atomic import write_atomic
from esper.storage.run_files import HISTORY as HISTORY
from esper.storage.sealed_json import parse_json, read_document

if TYPE_CHECKING:
    import torch

    from esper.simic.agent.config import PPOConfig
    from esper.simic.training.vectorized_trainer import EngineState, VectorizedPPOTrainer
    from esper.tamiyo.network_config import PolicySpec
    from esper.tasks.spec import TaskSpec

logger = logging.getLogger(__name__)

AGENT: Final = "agent"

_NOT_COMPARED: Final = ("description", "load_data")
"""Task fields that may differ on resume."""


# ---- history ------------------------------------------------------------------------------------


def completed_rounds(history: Sequence[RoundRecord]) -> list[RoundRecord]:
    """Records of the rollouts that end an episode; all of them unless `rollout_steps` is set."""
    return [r for r in history if r.episodes_done == (r.round_index + 1) * len(r.score_E)]


def best_round(history: Sequence[RoundRecord], varied: bool = False) -> RoundRecord | None:
    """The completed round with the highest mean score, the first of ties; None if there is none.

    `varied`: as in `Summary`; then there is none.
    """
    done = () if varied else completed_rounds(history)
    scored = [r for r in done if not math.isnan(r.mean_score)]
    return max(scored, key=lambda record: record.mean_score, default=None)


def run_tally(history: Sequence[RoundRecord]) -> RunTally:
    """Progress counters for the telemetry listener of a resumed run."""
    if not history:
        return RunTally()
    best, last = best_round(history), history[-1]
    score = math.nan if best is None else best.mean_score
    return RunTally(last.round_index + 1, last.episodes_done, score)


class _HistoryEncoder:
    """Encodes records as JSON lines and caches them, so that each is encoded once."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []

    def encode(self, history: Sequence[RoundRecord]) -> tuple[bytes, ...]:
        """Return all lines; `history` must extend the one passed before."""
        for record in history[len(self._lines) :]:
            self._lines.append(json.dumps(to_json(record), separators=(",", ":")).encode() + b"\n")
        return tuple(self._lines)


# ---- capturing ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Capture:
    """In-memory copy of a run's state between two rounds; training may continue meanwhile."""

    summary: Summary
    agent: AgentCapture
    state: dict[str, Json]
    """Engine state, settings and task facts."""
    history: tuple[bytes, ...]
    """One JSON line per record."""

    def write_files(self, folder: Path) -> None:
        """Write all files but the manifest, which `CheckpointStore.write` adds."""
        self.agent.write(folder / AGENT)
        write_atomic(folder / STATE, (json.dumps(self.state, indent=1) + "\n").encode())
        write_atomic(folder / HISTORY, b"".join(self.history))


def capture(
    trainer: VectorizedPPOTrainer, config: TrainingConfig, encoder: _HistoryEncoder | None = None
) -> _Capture:
    """Capture the state of a run between two rounds; raises in the middle of an episode."""
    engine, history = trainer.engine, trainer.history
    done = completed_rounds(history)
    varied = engine.spec.context.varies_rounds
    best = best_round(history, varied)
    summary = Summary(
        varied=varied,
        round=engine.round,
        rounds=trainer.rounds,
        score=done[-1].mean_score if done else math.nan,
        best_round=0 if best is None else best.round_index + 1,
        best_score=math.nan if best is None else best.mean_score,
    )
    state: dict[str, Json] = {
        "engine": dict(trainer.engine_state()),
        "task": task_facts(engine.spec),
        "config": to_json(config),
    }
    encoder = encoder or _HistoryEncoder()
    return _Capture(summary, capture_agent(trainer.client.agent), state, encoder.encode(history))


def task_facts(spec: TaskSpec) -> dict[str, Json]:
    """Properties of a task that must not change on resume, as JSON."""
    facts: dict[str, Json] = {}
    for field in fields(spec):
        if field.name in _NOT_COMPARED:
            continue
        try:
            facts[field.name] = to_json(getattr(spec, field.name))
        except EsperError:  # a user's function cannot be compared
            continue
    return facts


# ---- reading ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A checkpoint that passed verification."""

    path: Path
    summary: Summary
    config: TrainingConfig
    """Settings of the run when it was written."""
    engine: EngineState
    """State dict for `VectorizedEngine.load_state_dict`."""
    task: Json
    """Task facts; see `task_facts`."""

    def load_agent(
        self,
        device: str | torch.device = "cpu",
        spec: PolicySpec | None = None,
        config: PPOConfig | None = None,
    ) -> PPOAgent:
        """Load the agent; see `PPOAgent.load`."""
        return PPOAgent.load(self.path / AGENT, device, spec, config)

    def load_history(self) -> list[RoundRecord]:
        """Load the records of all rounds up to this checkpoint."""
        path = self.path / HISTORY
        return [
            read_record(RoundRecord, parse_json(line), f"{path} line {number}")
            for number, line in enumerate(path.read_bytes().splitlines(), start=1)
        ]


def read_checkpoint(path: Path) -> Checkpoint:
    """Verify the checksums of a checkpoint, then read it."""
    summary, where = verify(path), path / STATE
    state = read_document(where)
    if not isinstance(state, dict):
        raise EsperError(f"{where}: expected an object")
    engine = state.get("engine")
    if not isinstance(engine, dict):
        raise EsperError(f"{where}: no engine state")
    config = read_checkpoint_config(path)
    engine_state = {name: value for name, value in engine.items() if isinstance(value, int | str)}
    return Checkpoint(path, summary, config, engine_state, state.get("task"))


def find_checkpoint(path: Path) -> Checkpoint:
    """Read the checkpoint in `path`, or the best one if `path` is a run folder."""
    if (path / MANIFEST).exists():
        return read_checkpoint(path)
    require_run(path)
    found = _find_best(CheckpointStore(checkpoints_dir(path)))
    if found.path is None:
        why = f" ({found.skipped[0]})" if found.skipped else ""
        raise EsperError(f"{path} has no valid checkpoint{why}: give another run")
    for line in found.skipped:
        logger.warning("%s; using %s instead", line, found.path)
    return read_checkpoint(found.path)


def _find_best(store: CheckpointStore) -> CheckpointSearch:
    """As `best`; in older runs only the task of a checkpoint says that rounds varied."""
    found = store.best()
    task = None if found.path is None else read_checkpoint(found.path).task
    varied = isinstance(task, dict) and saved_rounds_vary(task.get("context"))
    return store.newest_valid() if varied else found


# ---- while it runs ------------------------------------------------------------------------------


class CheckpointHook:
    """A `RoundHook` that saves every `every` rounds, at each new best score and after the last.

    Where rounds are `varied` (`Summary`) there is no best score.

    It also keeps the state of the last completed round in memory for `flush`, so that an
    interruption loses at most the round in progress.
    """

    def __init__(self, store: CheckpointStore, config: TrainingConfig, every: int = 1) -> None:
        if every < 1:
            raise EsperError(f"checkpoint every={every}: must be 1 round or more")
        self.store = store
        self.config = config
        self.every = every
        self._encoder = _HistoryEncoder()
        self._unwritten: _Capture | None = None

    def __call__(self, trainer: VectorizedPPOTrainer, record: RoundRecord, /) -> None:
        """Capture the state and save it if due; a no-op in the middle of an episode."""
        if trainer.engine.step:
            return
        self._unwritten = capture(trainer, self.config, self._encoder)
        reason = self._reason(self._unwritten.summary)
        if reason is not None:
            self.flush(trainer, reason)

    def flush(self, trainer: VectorizedPPOTrainer, reason: CheckpointReason) -> Path | None:
        """Write the state of the last completed round if it is not saved yet; returns the path."""
        captured = self._unwritten
        if captured is None:
            return None
        began = perf_counter()
        path = self.store.write(captured.summary, captured.write_files)
        self._unwritten = None
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        saved = CheckpointSaved(str(path), reason, size, perf_counter() - began)
        emit_checkpoint_event(trainer, saved, captured.summary.round - 1)
        return path

    def _reason(self, summary: Summary) -> CheckpointReason | None:
        if summary.round >= summary.rounds:
            return CheckpointReason.FINAL
        if summary.best_round == summary.round:
            return CheckpointReason.BEST
        return CheckpointReason.PERIODIC if summary.round % self.every == 0 else None


def emit_checkpoint_event(
    trainer: VectorizedPPOTrainer, payload: Payload, round_index: int | None = None
) -> None:
    """Emit a checkpoint event to the hub of every telemetry listener."""
    for listener in trainer.listeners:
        event = TelemetryEvent.of(payload, round_index)
        emit_with_env_context(listener.hub, event, None, listener.device)
