"""Commands as processes: closed output, closed terminals, signals, unusual paths.

Where torch is needed, processes are forked by one that has imported it (`process_driver.py`); the
rest are fresh interpreters.
"""

from __future__ import annotations

import json
import os
import pty
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from esper.leyline import TelemetryEventType
from esper.simic.training.runs.folder import SessionEnd, read_info
from event_files import read_jsonl, read_parquet
from run_server import Job, RunServer

FULL = "/dev/full"
TINY = ("--task", "synthetic", "--envs", "2", "--episode-length", "2", "--batches-per-step", "1",
        "--batch-size", "8", "--device", "cpu")  # fmt: skip
LEARN = ("train", "ppo", *TINY, "--rounds", "1")
ENDLESS = ("--rounds", "5000", "--telemetry-dir", "events")
COMPARE = ("compare", "wait", "random", *TINY, "--seeds", "2", "--out", "o")


ODD = os.fsdecode(b"caf\xe9 [/b]\xff")
"""Folders whose names are no UTF-8, and no markup of rich either."""
EVENTS = f"events-{ODD}"


class Commands(RunServer):
    """Starts `esper` in processes whose streams a test chooses."""

    def __init__(self, home: Path, driver: Path) -> None:
        super().__init__(home, driver)
        self.running: set[int] = set()

    def ask(self, **question: object) -> int:
        answer = super().ask(**question)
        if "wait" in question:
            self.running.discard(question["wait"])
        return answer

    def close(self) -> None:
        """Nothing that a failed test left runs on."""
        for pid in self.running:
            os.kill(pid, signal.SIGKILL)
        super().close()

    def run(
        self, cwd: Path, *argv: object, stdin: str = os.devnull, stdout: str = "", stderr: str = ""
    ) -> Job:
        """`esper ARGV`; streams without a name go to the job's files."""
        output, errors = self.place()
        pid = self.ask(
            argv=[*map(str, argv)],
            cwd=str(cwd),
            descriptors=[stdin, stdout or str(output), stderr or str(errors)],
        )
        self.running.add(pid)
        return Job(self, pid, output, errors)


@pytest.fixture(scope="module")
def commands(tmp_path_factory) -> Iterator[Commands]:
    driver = Path(__file__).parents[1] / "process_driver.py"
    server = Commands(tmp_path_factory.mktemp("jobs"), driver)
    yield server
    server.close()


@pytest.fixture(scope="module")
def learnt(commands, tmp_path_factory) -> Path:
    """The run of a command whose reader had left before it printed anything, in an odd place."""
    place = tmp_path_factory.mktemp("learnt")
    job = commands.run(place, *LEARN, "--runs", ODD, "--telemetry-dir", EVENTS, stdout="broken")
    assert job.wait() == 0, job.errors.read_text()
    assert job.errors.read_text() == ""
    (run,) = (place / ODD).iterdir()
    return run


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


# ---- nobody takes the output --------------------------------------------------------------------


@pytest.mark.slow
def test_a_reader_that_left_costs_no_result(commands, tmp_path):
    """`esper train wait --quiet ... | true`"""
    argv = ("train", "wait", *TINY, "--quiet", "--out", "o")
    assert commands.run(tmp_path, *argv, stdout="broken", stderr="broken").wait() == 0
    assert names(tmp_path / "o") == {"train_wait_synthetic.json"}


def test_a_reader_that_left_costs_the_learner_neither_report_nor_checkpoint(learnt):
    report = {"judged.json", "learning.json"}
    assert names(learnt / "report") == report
    assert names(learnt / "checkpoints") == {"round-000001"}
    assert read_info(learnt).sessions[-1].end is SessionEnd.FINISHED


def test_a_full_stdout_is_one_line_and_status_1_with_every_file_written(commands, learnt, tmp_path):
    job = commands.run(tmp_path, "eval", learnt, "--envs", 2, "--out", "o", stdout=FULL)
    assert job.wait() == 1
    assert job.errors.read_text() == (
        "error: stdout: No space left on device; printed output is incomplete, files are complete\n"
    )
    found = json.loads((tmp_path / "o" / "eval_synthetic_judged.json").read_text())
    assert {"ppo", "wait"} <= set(found["judged"])
    assert names(tmp_path / "o") == {"eval_synthetic_judged.json", "eval_synthetic.json"}


@pytest.mark.slow
@pytest.mark.parametrize("stream", ["broken", FULL])
def test_no_other_command_loses_anything_either(commands, tmp_path, stream):
    expected = {
        COMPARE: {
            *("settings.json", "sessions.json", "lock", "policies"),
            *("compare.md", "compare.json", "report.html"),
        },
        ("train", "wait", *TINY, "--dry-run"): set(),
        ("tasks",): set(),
        ("doctor", "--task", "synthetic", "--envs", "2", "--device", "cpu"): set(),
    }
    for number, (argv, files) in enumerate(expected.items()):
        place = tmp_path / str(number)
        place.mkdir()
        job = commands.run(place, *argv, stdout=stream)
        assert job.wait() == (1 if stream == FULL else 0), argv
        assert job.errors.read_text().count("\n") == (1 if stream == FULL else 0), argv
        assert not files or names(place / "o") == files


# ---- terminals and signals ----------------------------------------------------------------------


class Terminal:
    """A terminal that a test closes."""

    def __init__(self) -> None:
        self.master, self.slave = pty.openpty()
        self.name = os.ttyname(self.slave)

    def read_until(self, text: bytes) -> None:
        said = b""
        while text not in said:
            said += os.read(self.master, 65536)

    def close(self) -> None:
        os.close(self.slave)
        os.close(self.master)


def test_a_terminal_that_closes_stops_the_learner_as_sigterm_does(commands, tmp_path):
    """The display is live; the kernel sends SIGHUP, and writing gives EIO from then on."""
    terminal = Terminal()
    argv = ("train", "ppo", *TINY, "--rounds", "5000")
    job = commands.run(tmp_path, *argv, stdout=terminal.name, stderr=terminal.name)
    terminal.read_until(b"round 2/5000")
    terminal.close()
    assert job.wait() == 0
    (run,) = (tmp_path / "runs").iterdir()
    assert read_info(run).sessions[-1].end is SessionEnd.INTERRUPTED
    assert len(names(run / "checkpoints")) >= 1


@pytest.mark.slow
def test_a_run_outlives_a_terminal_that_sends_no_signal(commands, tmp_path):
    """As under `setsid`: only writing fails, in the middle of a live display."""
    terminal = Terminal()
    other = Terminal()  # the session's own, so that the first one's end is no hangup
    argv = ("train", "wait", *TINY, "--rounds", "10", "--out", "o")
    job = commands.run(
        tmp_path, *argv, stdin=other.name, stdout=terminal.name, stderr=terminal.name
    )
    terminal.read_until(b"round 1/10")
    terminal.close()
    assert job.wait() == 0
    other.close()
    found = json.loads((tmp_path / "o" / "train_wait_synthetic.json").read_text())
    assert len(found["rounds"]) == 10


def test_a_signal_ends_a_command_as_ctrl_c_does(commands, tmp_path):
    number = signal.SIGHUP
    job = commands.run(tmp_path, "train", "random", *TINY, *ENDLESS)
    job.until("random")  # the heading: the run is under way
    job.send(number)
    assert job.wait() == 128 + number
    said = job.errors.read_text()
    assert said.endswith(f"\ninterrupted by {number.name}\n")
    assert "rounds are saved; resume with: esper train random --resume" in said
    kinds = [event.type.name for event in read_jsonl(tmp_path / "events" / "events.jsonl")]
    assert kinds[-1] == "RUN_FINISHED"


# ---- paths and characters -----------------------------------------------------------------------


def test_paths_that_are_no_utf8_hold_runs_and_their_events(learnt):
    events = learnt.parents[2] / EVENTS
    lines = [event.type for event in read_jsonl(events / "events.jsonl")]
    for kind in (TelemetryEventType.ROUND_COMPLETED, TelemetryEventType.CHECKPOINT_SAVED):
        assert lines.count(kind) == read_parquet(events, kind).num_rows == 1


@pytest.mark.slow
def test_a_run_in_a_path_that_is_no_utf8_is_resumed_and_compared(commands, tmp_path, learnt):
    """Resuming reads what was written there, and adds to it."""
    shutil.copytree(learnt.parents[2], tmp_path / "copy")
    run = tmp_path / "copy" / ODD / learnt.name
    events = tmp_path / EVENTS
    for rounds in (2, 3):
        more = ("--rounds", rounds, "--telemetry-dir", events)
        job = commands.run(tmp_path, "train", "ppo", "--resume", run, *more)
        assert job.wait() == 0, job.errors.read_text()
        assert r"caf\udce9 [/b]\udcff" in job.output.read_text()
    assert read_parquet(events, TelemetryEventType.ROUND_COMPLETED).num_rows == 2
    job = commands.run(tmp_path, "compare", run, "wait", *TINY, "--seeds", 2, "--out", ODD)
    assert job.wait() == 0, job.errors.read_text()
    assert {"compare.json", "compare.md"} <= names(tmp_path / ODD)


# ---- fresh interpreters, without torch ----------------------------------------------------------


def shell(line: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """A line of bash in which `esper` is this Python's; its status is that of its last process."""
    esper = f'esper() {{ {shlex.quote(sys.executable)} -m esper "$@"; }}'
    path = os.pathsep.join(sys.path)
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{esper}; {line}"],
        cwd=cwd, env=os.environ | {"PYTHONPATH": path} | environment, capture_output=True,
        timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("line", ["esper --help | head -1", "esper train ppo --help | true"])
def test_help_may_be_cut_off(line, tmp_path):
    done = shell(line, tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")


def test_help_that_finds_no_room_says_so(tmp_path):
    done = shell("esper --help > /dev/full", tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(b"error: stdout: No space left on device")
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "utf-8"},
    ],
    ids=["ascii", "utf-8"],
)
def test_characters_that_a_stream_has_not_are_escaped(environment, tmp_path):
    folder = tmp_path / "runs" / os.fsdecode("é±→".encode() + b"\xff")
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{")
    done = shell("esper runs", tmp_path, **environment)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"broken" in done.stdout
    assert rb"\udcff" in done.stdout


def test_python_m_esper_is_the_command_and_tells_its_version(tmp_path):
    import esper

    done = shell("esper --version", tmp_path)
    assert (done.returncode, done.stdout) == (0, f"esper {esper.__version__}\n".encode())
