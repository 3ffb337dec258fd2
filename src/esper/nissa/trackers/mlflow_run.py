"""MLflow: a SQLite database in the run folder, unless MLFLOW_TRACKING_URI names a place.

A database, because MLflow 3 refuses to write to plain folders of files any more.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from typing import Any, Final

from esper.leyline.payloads import RunStatus
from esper.nissa.trackers.protocol import TrackedRun, TrackerState, flatten

FOLDER: Final = "mlflow"
DATABASE: Final = "mlflow.db"
EXPERIMENT: Final = "esper"
MAX_PARAM_CHARS: Final = 500
"""Characters of a setting; the least that any store of MLflow takes."""
_STATUS: Final = {
    RunStatus.COMPLETED: "FINISHED",
    RunStatus.INTERRUPTED: "KILLED",
    RunStatus.FAILED: "FAILED",
}


class _MlflowRun:
    """One MLflow run; a resumed run continues under the same id."""

    def __init__(self, run: TrackedRun, before: TrackerState) -> None:
        # Read at import: MLflow reports its use to its makers, wherever runs are kept.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        for noisy in ("mlflow.store.db.utils", "alembic"):  # a line for each table they make
            logging.getLogger(noisy).setLevel(logging.WARNING)
        self._metric: Any = Metric
        place = os.environ.get("MLFLOW_TRACKING_URI", "")
        home = run.folder.absolute() / FOLDER
        if not place:
            home.mkdir(parents=True, exist_ok=True)
        self._client: Any = MlflowClient(tracking_uri=place or f"sqlite:///{home / DATABASE}")
        if before.run_id and before.place == place:
            self.state = before
            self._client.update_run(before.run_id, status="RUNNING")
            return
        artifacts = None if place else (home / "artifacts").as_uri()
        found = self._client.create_run(self._experiment(artifacts), run_name=run.name)
        self.state = TrackerState(found.info.run_id, place)
        params = [Param(k, str(v)[:MAX_PARAM_CHARS]) for k, v in flatten(run.settings)]
        for at in range(0, len(params), 100):  # as many as MLflow takes at once
            self._client.log_batch(found.info.run_id, params=params[at : at + 100])

    def _experiment(self, artifacts: str | None) -> str:
        named = os.environ.get("MLFLOW_EXPERIMENT_ID")
        if named:
            return named
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        return str(self._client.create_experiment(name, artifact_location=artifacts))

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Write the figures to the database or server."""
        now = int(time.time() * 1000)
        rows = [self._metric(name, value, now, step) for name, value in figures.items()]
        self._client.log_batch(self.state.run_id, metrics=rows)

    def close(self, status: RunStatus) -> None:
        """Mark the run as ended."""
        self._client.set_terminated(self.state.run_id, _STATUS[status])


open_tracker = _MlflowRun
