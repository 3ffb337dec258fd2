"""What does a run go on from? The state between two rounds, captured, written and read back.

Members start every episode from streams named by their round, so between episodes a run is its
agent, a few counters and its history. In the middle of one (`rollout_steps`) nothing can be saved:
the state of the last whole episode is what a checkpoint holds.

Shape letters: E members.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Final

from esper.leyline.codec import Json, default_of, read_record, to_json
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
    CheckpointStore,
    Summary,
    verify,
)
from esper.simic.training.runs.folder import (
    checkpoints_of,
    read_checkpoint_config,
    require_run,
)
from esper.storage.atomic import write_atomic
from esper.storage.sealed_json import parse_json, read_document

if TYPE_CHECKING:
    import torch

    from esper.simic.agent.config import PPOConfig
    from esper.simic.training.vectorized_trainer import VectorizedPPOTrainer
    from esper.tamiyo.network_config import PolicySpec
    from esper.tasks.spec import TaskSpec

logger = logging.getLogger(__name__)

AGENT: Final = "agent"
HISTORY: Final = "history.jsonl"

EngineState = dict[str, int | str]

_NOT_FACTS: Final = ("description", "load_data")
"""Fields of a task that may differ: words for people, and how the data are found."""


# ---- history ------------------------------------------------------------------------------------


def whole_rounds(history: Sequence[RoundRecord]) -> list[RoundRecord]:
    """The records that end an episode: all of them, unless rollouts are shorter."""
    return [r for r in history if r.episodes_done == (r.round_index + 1) * len(r.score_E)]


def best_round(history: Sequence[RoundRecord]) -> RoundRecord | None:
    """The whole round with the highest mean score, of equals the first; None: there is none."""
    scored = [r for r in whole_rounds(history) if not math.isnan(r.mean_score)]
    return max(scored, key=lambda record: record.mean_score, default=None)


def tally_of(history: Sequence[RoundRecord]) -> RunTally:
    """How far a run is, for a telemetry listener of a run that goes on."""
    if not history:
        return RunTally()
    best, last = best_round(history), history[-1]
    score = math.nan if best is None else best.mean_score
    return RunTally(last.round_index + 1, last.episodes_done, score)


class HistoryLines:
    """Records as lines of JSON, each written out once however often the history is saved."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []

    def of(self, history: Sequence[RoundRecord]) -> tuple[bytes, ...]:
        """All lines; records are only ever added to a history."""
        for record in history[len(self._lines) :]:
            self._lines.append(json.dumps(to_json(record), separators=(",", ":")).encode() + b"\n")
        return tuple(self._lines)


def read_history(path: Path) -> list[RoundRecord]:
    """The records of a history file."""
    lines = path.read_bytes().splitlines()
    return [
        read_record(RoundRecord, parse_json(line), f"{path} line {number}")
        for number, line in enumerate(lines, start=1)
    ]


# ---- capturing ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Capture:
    """A run between two rounds, in memory; the run may go on meanwhile."""

    summary: Summary
    agent: AgentCapture
    state: dict[str, Json]
    """Of the engine, with settings and facts of the task."""
    history: tuple[bytes, ...]
    """A line for each record."""

    def fill(self, folder: Path) -> None:
        """Write everything into a folder; the manifest is the store's."""
        self.agent.write(folder / AGENT)
        write_atomic(folder / STATE, (json.dumps(self.state, indent=1) + "\n").encode())
        write_atomic(folder / HISTORY, b"".join(self.history))


def capture(
    trainer: VectorizedPPOTrainer, config: TrainingConfig, lines: HistoryLines | None = None
) -> Capture:
    """The run as it stands between two rounds; in the middle of an episode it is refused."""
    engine, history = trainer.engine, trainer.history
    done = whole_rounds(history)
    best = best_round(history)
    summary = Summary(
        round=engine.round,
        rounds=trainer.rounds,
        score=done[-1].mean_score if done else math.nan,
        best_round=0 if best is None else best.round_index + 1,
        best_score=math.nan if best is None else best.mean_score,
    )
    state: dict[str, Json] = {
        "engine": dict(engine.state_dict()),
        "task": task_facts(engine.spec),
        "config": to_json(config),
    }
    lines = lines or HistoryLines()
    return Capture(summary, capture_agent(trainer.client.agent), state, lines.of(history))


def task_facts(spec: TaskSpec) -> dict[str, Json]:
    """What must be the same about a task to go on with it, as JSON."""
    facts: dict[str, Json] = {}
    for field in fields(spec):
        if field.name in _NOT_FACTS:
            continue
        try:
            facts[field.name] = to_json(getattr(spec, field.name))
        except EsperError:  # a function of the user's: cannot be compared
            continue
    return facts


def with_later_facts(saved: Json, now: object) -> Json:
    """Facts that were saved, and the defaults of what a task (or a part of it) came to have since.

    Only what the dataclasses of the task as it is `now` give a default is filled in.
    """
    if not isinstance(saved, dict) or not is_dataclass(now):
        return saved
    facts = dict(saved)
    for field in fields(now):
        if field.name in saved:
            facts[field.name] = with_later_facts(saved[field.name], getattr(now, field.name))
        elif field.name not in _NOT_FACTS and default_of(field) is not MISSING:
            with contextlib.suppress(EsperError):  # has no JSON form: is not compared
                facts[field.name] = to_json(default_of(field))
    return facts


def save(trainer: VectorizedPPOTrainer, config: TrainingConfig, store: CheckpointStore) -> Path:
    """Write a checkpoint of a run that stands between two rounds."""
    captured = capture(trainer, config)
    return store.write(captured.summary, captured.fill)


# ---- reading ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A checkpoint as read, its checksums right."""

    path: Path
    summary: Summary
    config: TrainingConfig
    """What the run was set to when it was written."""
    engine: EngineState
    """For `VectorizedEngine.load_state_dict`."""
    task: Json
    """Facts of the task, as `task_facts` gives them."""

    def load_agent(
        self,
        device: str | torch.device = "cpu",
        spec: PolicySpec | None = None,
        config: PPOConfig | None = None,
    ) -> PPOAgent:
        """The controller; see `PPOAgent.load`."""
        return PPOAgent.load(self.path / AGENT, device, spec, config)

    def load_history(self) -> list[RoundRecord]:
        """The record of every round until then."""
        return read_history(self.path / HISTORY)


def read_checkpoint(path: Path) -> Checkpoint:
    """A checkpoint, every byte of it checked before any is believed."""
    summary, where = verify(path), path / STATE
    state = read_document(where)
    if not isinstance(state, dict):
        raise EsperError(f"{where}: expected an object")
    engine = state.get("engine")
    if not isinstance(engine, dict):
        raise EsperError(f"{where}: no state of an engine")
    config = read_checkpoint_config(path)
    standing = {name: value for name, value in engine.items() if isinstance(value, int | str)}
    return Checkpoint(path, summary, config, standing, state.get("task"))


def find_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint that is meant: a folder of one, or the best one of a run."""
    if (path / MANIFEST).exists():
        return read_checkpoint(path)
    require_run(path)
    found = CheckpointStore(checkpoints_of(path)).best()
    if found.path is None:
        why = f" ({found.skipped[0]})" if found.skipped else ""
        raise EsperError(f"{path} has no whole checkpoint{why}: give another run")
    for line in found.skipped:
        logger.warning("%s; %s is taken instead", line, found.path)
    return read_checkpoint(found.path)


# ---- while it runs ------------------------------------------------------------------------------


class CheckpointHook:
    """A `RoundHook`: saves every `every` rounds, at the best score, and at the end.

    The state of the last whole round is kept in memory as well, for `flush`: whatever ends the run
    costs at most the round under way.
    """

    def __init__(self, store: CheckpointStore, config: TrainingConfig, every: int = 1) -> None:
        if every < 1:
            raise EsperError(f"checkpoint every={every}: must be 1 round or more")
        self.store = store
        self.config = config
        self.every = every
        self._lines = HistoryLines()
        self._unwritten: Capture | None = None

    def __call__(self, trainer: VectorizedPPOTrainer, record: RoundRecord, /) -> None:
        """After a round; in the middle of an episode nothing can be saved."""
        if trainer.engine.step:
            return
        self._unwritten = capture(trainer, self.config, self._lines)
        reason = self._reason(self._unwritten.summary)
        if reason is not None:
            self.flush(trainer, reason)

    def flush(self, trainer: VectorizedPPOTrainer, reason: CheckpointReason) -> Path | None:
        """Write the state of the last whole round, unless that was done; its path."""
        captured = self._unwritten
        if captured is None:
            return None
        began = perf_counter()
        path = self.store.write(captured.summary, captured.fill)
        self._unwritten = None
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        saved = CheckpointSaved(str(path), reason, size, perf_counter() - began)
        tell(trainer, saved, captured.summary.round - 1)
        return path

    def _reason(self, summary: Summary) -> CheckpointReason | None:
        if summary.round >= summary.rounds:
            return CheckpointReason.FINAL
        if summary.best_round == summary.round:
            return CheckpointReason.BEST
        return CheckpointReason.PERIODIC if summary.round % self.every == 0 else None


def tell(trainer: VectorizedPPOTrainer, payload: Payload, round_index: int | None = None) -> None:
    """Make an event of something that happened to a run's checkpoints."""
    for listener in trainer.listeners:
        event = TelemetryEvent.of(payload, round_index)
        emit_with_env_context(listener.hub, event, None, listener.device)
