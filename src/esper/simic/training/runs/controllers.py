"""Saved controllers: where they are, and what is known of their training.

A controller's folder is one of
    a saved agent     written by PPOAgent.save; nothing is known of its training
    a checkpoint      with the settings of its run
    a run             its best checkpoint is used
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from esper.leyline.errors import EsperError
from esper.simic.agent.agent import PPOAgent
from esper.simic.client import policy_spec
from esper.simic.training.config import TrainingConfig
from esper.simic.training.runs.checkpoint_store import MANIFEST as CHECKPOINT
from esper.simic.training.runs.checkpoints import AGENT, find_checkpoint
from esper.storage.run_files import RUN
from esper.storage.saves import MANIFEST

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class FoundController:
    """Folder of an agent, and its training as far as it is known."""

    folder: Path
    training: TrainingConfig | None = None
    task: str | None = None
    """Name of its task."""
    slots: tuple[str, ...] | None = None
    blueprints: tuple[str, ...] | None = None
    """Blueprints it was trained with."""

    def load(self, device: str | torch.device) -> PPOAgent:
        """Load the agent; raises if it was trained on other features."""
        agent = PPOAgent.load(self.folder, device)
        found = agent.spec
        if found != policy_spec(found.restarts):
            raise EsperError(
                f"{self.folder}: a controller for {found.global_features} + {found.slot_features} "
                f"+ {found.candidate_features} features, which differ in this version of Esper; "
                f"train a new one"
            )
        return agent

    def checksum(self) -> str:
        """Checksum of the agent's save."""
        return str(json.loads((self.folder / MANIFEST).read_bytes())["checksum"])


def find_controller(path: Path) -> FoundController:
    """Find the agent of a folder; raises if it holds none."""
    if (path / MANIFEST).is_file():
        return FoundController(path)
    if not any((path / name).is_file() for name in (CHECKPOINT, RUN)):
        raise EsperError(
            f"{path} holds no controller: give a folder written by PPOAgent.save, a checkpoint, or "
            f"a run (`esper runs` lists them)"
        )
    checkpoint = find_checkpoint(path)
    facts = checkpoint.task if isinstance(checkpoint.task, dict) else {}

    def names(key: str) -> tuple[str, ...] | None:
        known = facts.get(key)
        return tuple(map(str, known)) if isinstance(known, list) else None

    task = facts.get("name")
    return FoundController(
        folder=checkpoint.path / AGENT,
        training=checkpoint.config,
        task=task if isinstance(task, str) else None,
        slots=names("slots"),
        blueprints=names("blueprints"),
    )
