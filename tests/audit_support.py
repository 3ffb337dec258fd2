"""Small audits for tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from engine_support import small_task
from esper.audit.folder import AuditFolder
from esper.audit.presets import SMALL, Preset
from esper.audit.run import (
    AuditRunner,
    AuditSettings,
    describe_audit,
    plan_pieces,
    run_pieces,
)
from esper.leyline.compute import ComputeSettings
from esper.leyline.context import Range

SETTINGS = AuditSettings(
    contexts=2,
    topologies=4,
    hosts=2,
    grown=1,
    seed=3,
    envs=8,
    compute=ComputeSettings(device="cpu"),
)
BLUEPRINTS = ("norm", "depthwise", "conv_small")
CHEAP = Preset(replace(SMALL, budget=Range(1.0, 3.0)))


class SmallAudit:
    """An audit of made-up images."""

    def __init__(self, **compute: Any) -> None:
        task = replace(small_task(episode_length=3, batches_per_step=1), blueprints=BLUEPRINTS)
        self.settings = replace(SETTINGS, compute=replace(SETTINGS.compute, **compute))
        self.data = task.load()
        self.spec, self.info = describe_audit(task, self.settings, CHEAP, self.data)

    def run(self, path: Path, listener: Any = None, **changes: Any) -> list[int]:
        """Run what is missing in a folder; returns the contexts of the episodes."""
        settings = replace(self.settings, **changes)
        info = replace(self.info, contexts=settings.contexts)
        with AuditFolder(path, info) as folder:
            pieces = plan_pieces(self.spec, info, settings.envs, folder)
            runner = AuditRunner(self.spec, info, settings, self.data)
            run_pieces(runner, folder, pieces, listener)
        return [piece.context for piece in pieces]
