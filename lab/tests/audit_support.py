"""Small audits for tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine_support import small_task
from esper.leyline.compute import ComputeSettings
from esper.leyline.context import Range
from esper_lab.audit.folder import AuditFolder
from esper_lab.audit.live import LiveRunner
from esper_lab.audit.live_policies import LIVE_POLICIES, LiveMaker
from esper_lab.audit.presets import SMALL, Preset
from esper_lab.audit.records import Audit, read_audit
from esper_lab.audit.regrets import RegretSettings
from esper_lab.audit.report import write_report
from esper_lab.audit.run import (
    AuditRunner,
    AuditSettings,
    describe_audit,
    plan_pieces,
    run_pieces,
)

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


class FinishedAudit:
    """A small audit that was run, and what it takes to train in its contexts."""

    def __init__(self, path: Path) -> None:
        self.made, self.path = SmallAudit(), path
        self.made.run(path, grown=0)
        self.audit: Audit = read_audit(path)
        self._runners: dict[int, LiveRunner] = {}

    def runner(self, envs: int = 8) -> LiveRunner:
        """A runner that others have used, too; its engines are there already."""
        if envs not in self._runners:
            self._runners[envs] = self.new_runner(envs)
        return self._runners[envs]

    def new_runner(self, envs: int = 8) -> LiveRunner:
        settings = replace(self.made.settings, envs=envs)
        return LiveRunner(self.made.spec, self.made.info, settings, self.made.data)


def live_policies(names: Sequence[str]) -> dict[str, LiveMaker]:
    """Some of the built-in live policies."""
    return {name: LIVE_POLICIES[name] for name in names}


def audit_run(path: Path) -> Path:
    """Two contexts, four topologies, two hosts, and its report."""
    SmallAudit().run(path)
    write_report(path, read_audit(path), RegretSettings(draws=2, folds=2))
    return path
