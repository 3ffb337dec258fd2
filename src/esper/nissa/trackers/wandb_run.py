"""Weights & Biases: offline in the run folder, unless WANDB_MODE says otherwise."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from typing import Any, Final

from esper.leyline.payloads import RunStatus
from esper.nissa.trackers.protocol import TrackedRun, TrackerState

PROJECT: Final = "esper"


class _WandbRun:
    """One W&B run; a resumed run continues under the same id."""

    def __init__(self, run: TrackedRun, before: TrackerState) -> None:
        offline = "WANDB_MODE" not in os.environ
        # Read at import: W&B reports its own crashes to its makers even when it is offline.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        self.state = before if before.run_id else TrackerState(secrets.token_hex(4))
        run.folder.mkdir(parents=True, exist_ok=True)
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=os.environ.get("WANDB_NAME", run.name),
            id=self.state.run_id,
            resume="allow",
            dir=os.environ.get("WANDB_DIR", str(run.folder)),
            config=dict(run.settings),
            mode="offline" if offline else None,
            settings=wandb.Settings(
                # Figures only: no copy of what is printed, of code, or of the machine's load.
                console="off",
                disable_git=True,
                disable_code=True,
                x_disable_stats=True,
                silent=offline,
            ),
        )

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Log one row of the history."""
        self._run.log(dict(figures), step=step)

    def close(self, status: RunStatus) -> None:
        """Finish the run: W&B writes what is left."""
        self._run.finish(exit_code=0 if status is RunStatus.COMPLETED else 1)


open_tracker = _WandbRun
