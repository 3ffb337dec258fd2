"""Helpers for tests of resuming runs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from esper.simic.training.config import TrainingConfig
from esper.simic.training.runs.checkpoint_store import CheckpointStore
from esper.simic.training.runs.checkpoints import Checkpoint, read_checkpoint
from esper.simic.training.runs.folder import RunFolder
from esper.simic.training.runs.resume import Resumed
from esper.simic.training.vectorized import train_ppo_vectorized
from esper.storage.sealed_json import seal
from loop_support import same_agents, tiny_task, untimed
from run_driver import EPISODE

SPEC = tiny_task(episode_length=EPISODE)


def newest(path: Path) -> Checkpoint:
    return read_checkpoint(CheckpointStore(path / "checkpoints").newest_valid().path)


def same_runs(one: Path, two: Path) -> bool:
    """Weights, moments, statistics, counters, and the history of all rounds but for wall time."""
    first, second = newest(one), newest(two)
    return (
        same_agents(first.load_agent(), second.load_agent())
        and untimed(first.load_history()) == untimed(second.load_history())
        and first.engine == second.engine
        and (first.summary, first.config) == (second.summary, second.config)
    )


def trained(root: Path, config: TrainingConfig, **settings: Any) -> Path:
    with RunFolder.create(root, "x", config) as folder:
        train_ppo_vectorized(config, run_dir=folder, spec=SPEC, **settings)
        return folder.path


def resumed_run(
    path: Path, config: TrainingConfig | None = None, run: bool = True, **settings: Any
) -> Resumed:
    """Resume a run; `run` False stops before the first round."""
    found: list[Resumed] = []

    def restored(resumed: Resumed) -> None:
        found.append(resumed)
        if not run:
            raise KeyboardInterrupt

    with contextlib.nullcontext() if run else contextlib.suppress(KeyboardInterrupt):
        train_ppo_vectorized(
            config,
            **({"run_dir": path, "resume": True, "spec": SPEC, "on_begin": restored} | settings),
        )
    return found[0]


# ---- files as others wrote them -----------------------------------------------------------------


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a JSON file; its checksum is right again where it carries one."""
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(seal(document) if "checksum" in document else document))


def edit_checkpoint(path: Path, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a JSON file of a checkpoint, as if it had been written like that."""
    edit(path / name, change)
    blob = (path / name).read_bytes()

    def note(manifest: dict[str, Any]) -> None:
        (facts,) = (file for file in manifest["content"]["files"] if file["name"] == name)
        facts |= {"bytes": len(blob), "sha256": hashlib.sha256(blob).hexdigest()}

    edit(path / "checkpoint.json", note)


# ---- dying ------------------------------------------------------------------------------------


def die_at(call: int, names: tuple[tuple[object, str], ...]) -> None:
    """From the `call`th use of one of these functions on there is no process any more."""
    left = [call]

    def deadly(real):
        def either(*args, **kwargs):
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        return either

    for owner, name in names:
        setattr(owner, name, deadly(getattr(owner, name)))


DEADLY = (
    (os, "mkdir"), (os, "fsync"), (os, "replace"), (os, "rename"), (os, "unlink"), (os, "rmdir"),
)  # fmt: skip
