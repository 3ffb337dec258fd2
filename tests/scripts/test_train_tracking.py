"""`esper train --track`: for policies that do not learn, too, and kept when a run resumes."""

from __future__ import annotations

import numpy as np
import pytest

from esper.leyline.errors import install_hint
from esper.scripts.train import main
from esper.simic.training.runs.folder import read_session_settings
from esper.simic.training.runs.round_store import RoundStore
from tracker_support import fake_wandb

TINY = ("--task", "synthetic", "--envs", "2", "--episode-length", "3", "--batches-per-step", "1",
        "--batch-size", "16", "--device", "cpu", "--quiet", "--keep-members", "0")  # fmt: skip


@pytest.mark.slow
def test_a_resumed_run_keeps_its_trackers(tmp_path, monkeypatch):
    library = fake_wandb(monkeypatch)
    assert main(["wait", *TINY, "--runs", str(tmp_path), "--track", "wandb"]) == 0
    (run,) = tmp_path.iterdir()
    assert read_session_settings(run).track == ("wandb",)
    assert main(["wait", "--resume", str(run), "--rounds", "2", "--quiet"]) == 0
    (rows,) = library.rows.values()
    stored = [one.result["outcome"]["score_E"] for one in RoundStore(run).read_all()[0]]
    assert [(step, row["mean_score"]) for step, row in rows] == [
        (step, float(np.mean(score_E))) for step, score_E in enumerate(stored)
    ]
    assert len(rows) == 2


def test_a_missing_or_unknown_tracker_is_one_line_before_the_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("esper.nissa.trackers.names.find_spec", lambda module: None)
    for policy in ("ppo", "wait"):
        assert main([policy, *TINY, "--runs", str(tmp_path / "runs"), "--track", "mlflow"]) == 2
        assert capsys.readouterr().err == (
            "error: --track mlflow: mlflow and sqlalchemy and alembic not installed; "
            f"{install_hint('mlflow')}\n"
        )
    assert main(["ppo", *TINY, "--track", "tensorbord"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "runs").exists()
