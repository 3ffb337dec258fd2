"""Synchronising lines are found in the source, and in steps on a GPU."""

import json
import warnings
from pathlib import Path

import pytest
import torch

import sync_sites
from esper.scripts.cli.command import run_command
from profile_gpu_sync import ProfileGpuSync, profile
from sync_sites import (
    NOT_IN_A_STEP,
    ON_THE_HOST,
    ROOT,
    STEP_FOLDERS,
    TRANSFER,
    Site,
    comment_at,
    recorded_waits,
    static_sites,
    watch_steps,
)

MESSAGE = "called a synchronizing CUDA operation"
FLAGS = [
    "--task",
    "synthetic",
    "--batch-size",
    "4",
    "--batches-per-step",
    "2",
    "--envs",
    "2",
    "--steps",
    "3",
]


def call(*flags: str) -> int:
    return run_command(ProfileGpuSync, profile, flags)


@pytest.fixture
def debug_mode(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What torch's sync debug mode was set to, without a GPU."""
    modes: list[object] = []
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    return modes


# ---- in the source ------------------------------------------------------------------------


def test_every_line_of_the_step_path_that_waits_says_why():
    silent = [site for site in static_sites() if not site.sound]
    assert silent == []


def test_the_lists_of_what_was_looked_at_are_not_stale():
    sites = static_sites()
    assert set(NOT_IN_A_STEP) <= {site.module for site in sites}
    calls = {(site.module, site.call) for site in sites}
    listed = {(m, f"{owner}.tolist()") for m, owners in ON_THE_HOST.items() for owner in owners}
    assert listed <= calls


def test_acting_waits_in_transfer_2_and_nowhere_else():
    """Of simic, one line waits in a step; those of the update are marked too."""
    simic = [site for site in static_sites() if site.module.startswith("simic/")]
    marked = [site for site in simic if site.comment]
    assert {site.module for site in marked if TRANSFER.match(site.comment)} == {
        "simic/agent/agent.py"
    }
    others = {site.module for site in marked if not TRANSFER.match(site.comment)}
    assert others >= {"simic/agent/buffer.py", "simic/agent/update.py"}


def test_a_call_that_waits_is_found_with_its_comment(tmp_path: Path):
    for folder in STEP_FOLDERS:
        (tmp_path / folder).mkdir()
    (tmp_path / "tolaria" / "new.py").write_text(
        '"""Text that says x.item() is no call."""\n'
        "a = x.item()\n"
        "b = x.cpu()  # SYNC: transfer 1\n"
        "# SYNC: once a run\n"
        "torch.cuda.synchronize()\n"
        "c = x.mean()\n"
    )
    found = static_sites(tmp_path)
    assert [(site.line, site.call, site.comment, site.sound) for site in found] == [
        (2, "x.item()", "", False),
        (3, "x.cpu()", "transfer 1", True),
        (5, "torch.cuda.synchronize()", "once a run", True),
    ]


def test_a_comment_counts_on_the_line_or_right_above():
    lines = ["# SYNC: above", "x.item()", "x.item()", "x.item()  # SYNC:  here "]
    assert [comment_at(lines, n, n) for n in (1, 2, 3, 4)] == ["above", "above", "", "here"]


# ---- while steps run ----------------------------------------------------------------------


def test_a_wait_is_attributed_to_its_line(debug_mode: list[object]):
    with recorded_waits() as places:
        warnings.warn("something else", stacklevel=1)
        for _ in range(2):
            warnings.warn(MESSAGE, stacklevel=1)
    ((file, line), count), *others = places.items()
    assert (file, count, others) == (__file__, 2, [])
    assert "MESSAGE" in Path(file).read_text().splitlines()[line - 1]
    assert debug_mode == ["warn", 0]


def test_a_transfer_is_allowed_once_a_step(debug_mode: list[object]):
    steps = iter(range(3))
    begun: list[int] = []

    def step() -> None:
        warnings.warn(MESSAGE, stacklevel=1)  # SYNC: transfer 1, for this test

        for _ in range(next(steps)):
            warnings.warn(MESSAGE, stacklevel=1)  # SYNC: transfer 2, for this test

        warnings.warn(MESSAGE, stacklevel=1)  # SYNC: a check, for this test

        warnings.warn(MESSAGE, stacklevel=1)

    found = watch_steps(lambda: begun.append(1), step, 3)
    assert [(wait.count, wait.most, wait.allowed) for wait in found] == [
        (3, 1, True),
        (3, 2, False),
        (3, 1, False),
        (3, 1, False),
    ]
    assert [bool(wait.comment) for wait in found] == [True, True, True, False]
    assert len(begun) == 3


# ---- the command --------------------------------------------------------------------------


def test_on_a_cpu_there_is_nothing_to_synchronise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "sync.json"
    assert call(*FLAGS, "--device", "cpu", "--out", str(path)) == 0
    assert "nothing to synchronise" in capsys.readouterr().out
    record = json.loads(path.read_text())
    assert (record["sound"], record["waits"], record["steps"]) == (True, [], 0)
    assert any(site["module"] == "device/transfer.py" for site in record["sites"])


def test_exit_status_is_1_where_a_line_says_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    silent = Site("tolaria/new.py", 7, "x.item()", "", "")
    monkeypatch.setattr(sync_sites, "static_sites", lambda: [silent])
    assert call(*FLAGS, "--device", "cpu", "--out", str(tmp_path / "sync.json")) == 1
    assert "tolaria/new.py:7: x.item() has no # SYNC: comment" in capsys.readouterr().out


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_transfer_of_each_step_is_seen(tmp_path: Path):
    path = tmp_path / "sync.json"
    assert call(*FLAGS, "--device", "cuda", "--policy", "mix", "--out", str(path)) == 0
    waits = {wait["place"]: wait for wait in json.loads(path.read_text())["waits"]}
    line = (ROOT / "tolaria" / "transfer.py").read_text().split("# SYNC:")[0].count("\n") + 1
    assert waits[f"device/transfer.py:{line}"]["count"] == 3


@pytest.mark.parametrize("flags", [["--steps", "0"], ["--device", "abacus"], ["--envs", "-1"]])
def test_bad_input_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
):
    assert call(*flags, "--out", str(tmp_path / "sync.json")) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert flags[0].removeprefix("--") in printed.err
    assert (len(printed.err.splitlines()), printed.out) == (1, "")
