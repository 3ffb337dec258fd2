"""The real trackers, offline: each read back by its own library, beside the run's own records.

Needs the extras: pip install -c constraints.txt -e '.[tensorboard,wandb,mlflow]'
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from esper.nissa.trackers.names import LIBRARIES
from esper.nissa.trackers.tracking import track_run
from resume_support import same_runs
from tracker_support import READERS, Figures, read_mlflow

MISSING = {
    name: [module for module in library.modules if find_spec(module) is None]
    for name, library in LIBRARIES.items()
}
INSTALLED = [name for name, missing in MISSING.items() if not missing]
EACH = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(
            bool(missing), reason=f"{' and '.join(missing)} not installed: extra {name}"
        ),
    )
    for name, missing in MISSING.items()
]
pytestmark = pytest.mark.slow
TINY = ["--task", "synthetic", "--device", "cpu", "--episode-length", "4", "--batches-per-step",
        "1", "--batch-size", "16"]  # fmt: skip
TRAIN = ["train", "ppo", *TINY, "--envs", "2", "--keep-members", "0", "--quiet"]
GUARD = """
import socket, sys
def refuse(self, address):
    if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "localhost", "::1"):
        sys.stderr.write(f"NETWORK {address}\\n")
        raise OSError("no network here")
    return connect(self, address)
connect, socket.socket.connect = socket.socket.connect, refuse
from esper.scripts.main import main
sys.exit(main())
"""


def esper(*argv: str, cwd: Path, track: bool = True) -> None:
    """Run a command with all trackers that are installed; it may not use the network."""
    flags = ["--track", *INSTALLED] if track else []
    tracking = ("WANDB", "MLFLOW")
    env = {k: v for k, v in os.environ.items() if not k.startswith(tracking)}
    done = subprocess.run(
        [sys.executable, "-c", GUARD, *argv, *flags],
        cwd=cwd, env=env, check=False, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "NETWORK" not in done.stderr
    assert "tracker" not in done.stderr, done.stderr


def the_run(root: Path) -> Path:
    (run,) = (root / "runs").iterdir()
    return run


def expect(figures: Figures, name: str, figure: str, values: list[float]) -> None:
    """The figure has these values; TensorBoard's are float32."""
    kind = np.float32 if name == "tensorboard" else np.float64
    assert figures[figure] == [(step, float(kind(v))) for step, v in enumerate(values)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """Two rounds, then a session of two more."""
    if not INSTALLED:
        pytest.skip("no tracker is installed")
    root = tmp_path_factory.mktemp("train")
    esper(*TRAIN, "--rounds", "2", cwd=root)
    resume = ["train", "ppo", "--resume", str(the_run(root)), "--rounds", "4", "--quiet"]
    esper(*resume, cwd=root, track=False)  # remembers its trackers
    return the_run(root)


@pytest.mark.parametrize("name", EACH)
def test_training_and_its_resume_are_read_back_as_one_run(trained, name):
    found = READERS[name](trained)
    history = json.loads((trained / "report" / "learning.json").read_text())["history"]
    assert len(history) == 4
    scores = [float(np.mean(record["score_E"])) for record in history]
    expect(found, name, "mean_score", scores)
    for metric in ("approx_kl", "policy_loss", "grad_norm", "learning_rate"):
        expect(found, name, f"ppo/{metric}", [record["metrics"][metric] for record in history])
    expect(found, name, "episodes_done", [record["episodes_done"] for record in history])


def test_the_trained_controller_is_the_same_without_trackers(trained, tmp_path):
    esper(*TRAIN, "--rounds", "4", cwd=tmp_path, track=False)
    assert same_runs(the_run(tmp_path), trained)


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> Path:
    if not INSTALLED:
        pytest.skip("no tracker is installed")
    root = tmp_path_factory.mktemp("compare")
    argv = [*TINY, "--seeds", "2", "--quiet", "--out", "out"]
    esper("compare", "wait", "fixed:r0c0=norm,r0c1=norm", *argv, cwd=root)
    return root / "out"


@pytest.mark.parametrize("name", EACH)
def test_a_comparison_is_read_back(compared, name):
    found = READERS[name](compared)
    files = [json.loads(path.read_text()) for path in (compared / "policies").iterdir()]
    assert len(files) == 2
    for saved in files:
        wait = saved["label"] == "wait"
        ((step, value),) = found[f"score/{'wait' if wait else 'fixed:r0c0-norm-r0c1-norm'}"]
        mean = np.mean(saved["result"]["score_N"])
        assert step == (0 if wait else 1)
        assert value == (np.float32(mean) if name == "tensorboard" else mean)


@pytest.fixture(scope="module")
def grown(tmp_path_factory) -> Path:
    if not INSTALLED:
        pytest.skip("no tracker is installed")
    root = tmp_path_factory.mktemp("grow")
    few = ["--epochs", "2", "--host-runs", "4", "--widths", "0.5", "--device", "cpu", "--quiet"]
    esper("grow", "--demo", *few, cwd=root)
    return the_run(root)


@pytest.mark.parametrize("name", EACH)
def test_a_search_is_read_back(grown, name):
    from esper.growing.folder import read_table

    found, runs = READERS[name](grown), read_table(grown)
    assert runs.rungs > 1
    expect(found, name, "round", list(map(float, range(runs.rungs))))
    best = max(row.score for row in runs.rows if row.ended)
    step, value = found["best_score"][-1]
    assert step == runs.rungs - 1
    assert value == (np.float32(best) if name == "tensorboard" else best)


@pytest.mark.skipif(bool(MISSING["tensorboard"]), reason="tensorboard not installed")
def test_tensorboard_shows_rounds_as_they_were_repeated(tmp_path):
    for first, rounds in ((0, range(4)), (2, range(2, 5))):
        with track_run(["tensorboard"], tmp_path, "x", {}, first) as tracking:
            for step in rounds:
                tracking.log(step, {"score": step + 10.0 * first})
    found = READERS["tensorboard"](tmp_path)["score"]
    assert found == [(0, 0.0), (1, 1.0), (2, 22.0), (3, 23.0), (4, 24.0)]


@pytest.mark.skipif(bool(MISSING["mlflow"]), reason="mlflow not installed")
def test_mlflow_goes_where_the_environment_says(tmp_path, monkeypatch):
    uri = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with track_run(["mlflow"], tmp_path, "x", {"seed": 0}) as tracking:
        tracking.log(0, {"score": 0.1})
    assert read_mlflow(tmp_path, uri) == {"score": [(0, 0.1)]}
    assert not (tmp_path / "trackers" / "mlflow").exists()
