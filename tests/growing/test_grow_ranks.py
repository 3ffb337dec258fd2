"""`esper.grow` on several ranks finds what it finds on one, and is stopped and resumed as one.

Runs the code of docs/sharded.md.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "sharded.md"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def start(out: Path, case: str, executor: str) -> subprocess.CompletedProcess[str]:
    """The user's script in one process, or under torchrun with two ranks."""
    launcher = TORCHRUN if executor == "sharded" else ()
    script = str(TESTS / "grow_ranks_script.py")
    return run_python(*launcher, script, str(out), case, executor, folder=out)


def run_python(*argv: str, folder: Path) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(folder), *sys.path])
    return subprocess.run(
        [sys.executable, *argv],
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )


def grown(out: Path, case: str, executor: str, rank: int = 0) -> dict[str, Any]:
    done = start(out, case, executor)
    assert done.returncode == 0, done.stderr
    return reported(out, executor, rank)


def reported(out: Path, executor: str, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / f"{executor}-{rank}.json").read_text())
    return found


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for mine, other in zip(found["networks"], expected["networks"], strict=True):
        assert mine["topology"] == other["topology"]
        assert mine["figures"] == pytest.approx(other["figures"], abs=1e-5)
    assert found["weights"] == pytest.approx(expected["weights"], rel=1e-4, abs=1e-4)


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> dict[str, Any]:
    return grown(tmp_path_factory.mktemp("alone"), "class", "auto")


def test_two_ranks_find_what_one_process_finds(tmp_path, alone):
    assert_same(grown(tmp_path, "class", "sharded"), alone)
    other = reported(tmp_path, "sharded", 1)
    assert other["networks"] == reported(tmp_path, "sharded", 0)["networks"]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [Path(other["folder"]).name]
    assert (alone["stages"] > 0, other["stages"]) == (True, 0), "rank 0 alone calls back"


def test_all_ranks_start_from_the_weights_of_rank_0(tmp_path):
    """An instance has other weights on every rank, unless a script seeds them alike."""
    (one := tmp_path / "one").mkdir()
    assert_same(grown(tmp_path, "instance", "sharded"), grown(one, "instance", "auto"))


def test_a_stopped_search_resumes_with_and_without_ranks(tmp_path, alone):
    stopped = grown(tmp_path, "stopped", "sharded")
    assert not stopped["complete"]
    assert reported(tmp_path, "sharded", 1)["networks"] == stopped["networks"]
    resumed = grown(tmp_path, "resumed", "auto")
    assert_same(resumed, alone)


def test_other_data_on_a_rank_end_all_with_one_line(tmp_path):
    done = start(tmp_path, "other data", "sharded")
    assert done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if "EsperError: " in line]
    assert len(lines) == 2, done.stderr
    assert all("rank 1: other data than on rank 0" in line for line in lines)


def test_the_page_shows_a_script_that_works(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    (tmp_path / "mine.py").write_text(
        "import grow_ranks_script as given\nmake_model, data = given.Small, given.data()\n"
    )
    short = code.replace("host_runs=10), ", "host_runs=2), epochs=1, widths=(), ")
    (tmp_path / "grow_mine.py").write_text(short)
    done = run_python(*TORCHRUN, "grow_mine.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("run folder: ") == 1


def test_the_command_prints_once(tmp_path):
    argv = ["grow", "--demo", "--executor", "sharded", "--host-runs", "1", "--epochs", "0.2",
             "--widths", "1", "--device", "cpu", "--quiet"]  # fmt: skip
    done = run_python(*TORCHRUN, "-m", "esper", *argv, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("report: ") == 1
    assert len(list((tmp_path / "runs").iterdir())) == 1
