"""`esper train ppo` under torchrun: killed workers, other numbers of ranks, wrong worlds."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from data_support import mnist1d_arrays, write_mnist1d

FLAGS = [
    "ppo", "--task", "synthetic", "--envs", "6", "--episode-length", "4", "--batches-per-step", "1",
    "--executor", "loop", "--device", "cpu", "--evaluation-envs", "1", "--width", "16",
    "--embedding", "4", "--quiet", "--telemetry", "off",
]  # fmt: skip


def environment(*folders: Path) -> dict[str, str]:
    """Of a rank: it imports from `folders` first, then what this process can import."""
    path = os.pathsep.join([*map(str, folders), *sys.path])
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def command(ranks: int, *flags: str, restarts: int = 0) -> list[str]:
    if ranks == 1:
        return [sys.executable, "-m", "esper.scripts.train", *flags]
    job = ["--standalone", f"--nproc-per-node={ranks}", f"--max-restarts={restarts}"]
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        *job,
        "-m",
        "esper.scripts.train",
        *flags,
    ]


def train(ranks: int, *flags: str) -> subprocess.CompletedProcess[str]:
    argv = command(ranks, *flags)
    return subprocess.run(argv, env=environment(), capture_output=True, text=True, timeout=300)


def figures(runs: Path) -> list[dict[str, object]]:
    """The history of the only run in a folder, without its times."""
    (path,) = runs.glob("*/report/learning.json")
    history = json.loads(path.read_text())["history"]
    return [{k: v for k, v in record.items() if "seconds" not in k} for record in history]


def sessions(runs: Path) -> list[tuple[int, str]]:
    (path,) = runs.glob("*/run.json")
    return [(it["from_round"], it["end"]) for it in json.loads(path.read_text())["sessions"]]


def worker_pids(agent: int) -> dict[int, int]:
    """Processes of the ranks of a torchrun process."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            parent = int(path.with_name("stat").read_text().rpartition(")")[2].split()[1])
            argv = path.read_bytes().split(b"\0") if parent == agent else []
        except OSError:
            continue
        found |= {int(w[5:]): int(path.parent.name) for w in argv if w.startswith(b"RANK=")}
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    """Three rounds in one process."""
    runs = tmp_path_factory.mktemp("alone")
    done = train(1, *FLAGS, "--rounds", "3", "--runs", str(runs))
    assert done.returncode == 0, done.stderr
    return runs


def assert_alike(mine: list[dict[str, object]], expected: list[dict[str, object]]) -> None:
    assert len(mine) == len(expected)
    for one, two in zip(mine, expected, strict=True):
        metrics, theirs = one.pop("metrics"), two.pop("metrics")
        assert one == two
        assert isinstance(metrics, dict)
        assert isinstance(theirs, dict)
        for name, value in theirs.items():
            np.testing.assert_allclose(
                np.array(metrics[name], float), np.array(value, float), rtol=1e-4, atol=1e-5
            )


def test_a_run_resumes_with_another_number_of_ranks(alone, tmp_path):
    """Two ranks, then three, then one process: the figures of one process all along."""
    for ranks, rounds in ((2, "1"), (3, "2"), (1, "3")):
        again = [] if ranks == 2 else ["--resume"]
        flags = [*FLAGS, "--rounds", rounds, "--runs", str(tmp_path), *again]
        done = train(ranks, *flags)
        assert done.returncode == 0, done.stderr
    assert [start for start, _ in sessions(tmp_path)] == [0, 1, 2]
    assert_alike(figures(tmp_path), figures(alone))
    (members,) = tmp_path.glob("*/members/members.json")
    (theirs,) = alone.glob("*/members/members.json")
    kept, expected = (
        [(it["round"], it["member"], it["score"]) for it in json.loads(path.read_text())["members"]]
        for path in (members, theirs)
    )
    assert kept == expected
    assert all((members.parent / f"{r:06d}-{m:04d}").is_dir() for r, m, _ in kept)


@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_worker_is_restarted_and_the_run_resumes(alone, tmp_path, victim):
    flags = [*FLAGS, "--rounds", "3", "--runs", str(tmp_path)]
    log = (tmp_path / "log").open("wb")
    job = subprocess.Popen(
        command(3, *flags, restarts=1), env=environment(), stdout=log, stderr=log
    )
    until = time.monotonic() + 120
    while not [*tmp_path.glob("*/checkpoints/round-000001")]:
        assert job.poll() is None, (tmp_path / "log").read_text()
        assert time.monotonic() < until
        time.sleep(0.01)
    os.kill(worker_pids(job.pid)[victim], signal.SIGKILL)
    assert job.wait(timeout=200) == 0, (tmp_path / "log").read_text()
    assert len(sessions(tmp_path)) == 2, "killed before the run was done"
    assert_alike(figures(tmp_path), figures(alone))
    assert not [*tmp_path.glob(".torchrun*")]


DIES_IN_IMPORTS = """
import os
if os.environ.get("RANK") == "1" and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
    os._exit(7)
"""


def test_a_rank_that_dies_in_its_imports_does_not_bring_back_the_run_of_an_earlier_job(
    alone, tmp_path
):
    """The earlier job had the same id and was killed; this one is restarted before any note."""
    (earlier,) = alone.glob("*/run.json")
    gone = f"{socket.gethostname()}:99999999:1"
    stale = {"folder": str(earlier.parent), "agent": gone, "agents": [gone]}
    runs = tmp_path / "runs"
    runs.mkdir()
    (runs / ".torchrun-job1.json").write_text(json.dumps(stale))
    (tmp_path / "sitecustomize.py").write_text(DIES_IN_IMPORTS)
    argv = command(2, *FLAGS, "--rounds", "3", "--runs", str(runs), restarts=1)
    at = argv.index("--standalone")
    argv[at : at + 1] = ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=job1"]
    done = subprocess.run(
        argv, env=environment(tmp_path), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert [start for start, _ in sessions(runs)] == [0], "it begins a run of its own"
    assert_alike(figures(runs), figures(alone))
    assert len(json.loads(earlier.read_text())["sessions"]) == 1
    assert not [*runs.glob(".torchrun*")]


SLOW_RANK_1 = """
import os, time
if os.environ.get("RANK") == "1":
    from esper.tolaria.engine import VectorizedEngine
    observe = VectorizedEngine._observe_step

    def slow(self):
        time.sleep(2.0)
        return observe(self)

    VectorizedEngine._observe_step = slow
"""
"""Python runs it at its start in all processes of a job."""


def test_a_slow_rank_is_cut_where_asked_for_and_the_round_says_so(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(SLOW_RANK_1)
    runs = tmp_path / "runs"
    flags = [word for word in FLAGS if word not in ("--quiet", "--telemetry", "off")]
    flags += ["--rounds", "2", "--runs", str(runs), "--cut-stragglers", "0.5"]
    done = subprocess.run(
        command(2, *flags),
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    records = figures(runs)
    cut = [sum(4 - steps for steps in it["steps_E"]) for it in records]
    assert all(it["steps"] == 4 and it["steps_E"][:3] == [4] * 3 for it in records)
    assert all(0 < steps <= 9 for steps in cut), "a quarter is completed"
    (events,) = runs.glob("*/events.jsonl")
    reported = [json.loads(line) for line in events.read_text().splitlines()]
    rounds = [it["payload"] for it in reported if it["type"] == "ROUND_COMPLETED"]
    assert [it["cut_steps"] for it in rounds] == cut
    for record, said in zip(records, rounds, strict=True):
        assert said["mean_score"] == pytest.approx(np.mean(record["score_E"][:3]))
    (last,) = [line for line in done.stdout.splitlines() if "round 2/2, step 4/4" in line]
    assert f"{cut[1]} steps cut" in last
    (members,) = runs.glob("*/members/members.json")
    kept = json.loads(members.read_text())["members"]
    assert {it["member"] for it in kept} <= {0, 1, 2}, "cut members are not among the best"
    alone = train(1, *flags, "--resume", "--rounds", "3")
    assert alone.returncode == 0, alone.stderr
    assert figures(runs)[2]["steps_E"] == [4] * 6


@pytest.mark.parametrize(
    ("number", "everyone"),
    [(signal.SIGTERM, False), (signal.SIGINT, False), (signal.SIGTERM, True)],
    ids=["torchrun gets SIGTERM", "Ctrl-C", "a scheduler signals all processes"],
)
def test_a_stop_signal_ends_all_ranks_and_the_printed_command_resumes(
    alone, tmp_path, number, everyone
):
    """Processes that are signalled themselves get torchrun's signal as well, a moment later."""
    runs = tmp_path / "runs"
    flags = [*FLAGS, "--rounds", "500", "--runs", str(runs), "--keep-members", "0"]
    pipe = subprocess.PIPE
    job = subprocess.Popen(command(3, *flags), env=environment(), stderr=pipe, text=True)
    until = time.monotonic() + 120
    while not [*runs.glob("*/checkpoints/round-000002")]:
        assert job.poll() is None, job.communicate()
        assert time.monotonic() < until
        time.sleep(0.01)
    ranks = worker_pids(job.pid)
    assert len(ranks) == 3
    for pid in [*ranks.values()] * everyone:
        os.kill(pid, number)
    os.kill(job.pid, number)
    _, errors = job.communicate(timeout=60)
    assert not worker_pids(job.pid)
    said = [line for line in errors.splitlines() if "resume with: " in line]
    assert len(said) == 1, errors
    assert errors.count("stopping after this step") == 1, "one line for all ranks"
    assert said[0].startswith(f"stopped by {number.name}: round-")
    assert sessions(runs) == [(0, "INTERRUPTED")]
    torchrun, *rest = shlex.split(said[0].partition("resume with: ")[2])
    assert torchrun == "torchrun"
    done = max(int(path.name[6:]) for path in runs.glob("*/checkpoints/round-*"))
    argv = [sys.executable, "-m", "torch.distributed.run", *rest, "--rounds", str(done + 1)]
    again = subprocess.run(argv, env=environment(), capture_output=True, text=True, timeout=300)
    assert again.returncode == 0, again.stderr
    assert sessions(runs)[1][0] == done, "from the last completed round"
    assert_alike(figures(runs)[:3], figures(alone))


@pytest.mark.parametrize(
    ("setup", "line"),
    [
        ("--envs 1", "envs=1 on 2 ranks: each rank needs a member"),
        (
            "--envs $((4 + RANK))",
            "rank 1 (HOST): its command line differs from rank 0's (has ['5'])",
        ),
        ("--task mnist1d", "rank 1 (HOST): MNIST-1D is not in"),
        ("--batch-size -3", "batch_size"),
    ],
    ids=["more ranks than members", "other settings", "no data", "bad setting"],
)
def test_a_wrong_world_ends_with_one_line_of_rank_0(setup, line, tmp_path):
    script = tmp_path / "rank.sh"
    python = f"exec {sys.executable} -m esper.scripts.train"
    data = f"export ESPER_DATA_DIR={tmp_path}/data$RANK"
    flags = f"{' '.join(FLAGS)} --runs {tmp_path}/runs {setup}"
    script.write_text(f"#!/bin/sh\n{data}\n{python} {flags}\n")
    write_mnist1d(tmp_path / "data0", **mnist1d_arrays(4000, 1000))
    script.chmod(0o755)
    job = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    argv = [*job, "--no-python", str(script)]
    done = subprocess.run(argv, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    errors = [text for text in done.stderr.splitlines() if text.startswith("error: ")]
    assert len(errors) == 1, done.stderr
    assert line.replace("HOST", socket.gethostname()) in errors[0]
    assert not [*tmp_path.glob("runs/*")], "nothing is left behind"
