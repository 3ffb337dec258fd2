"""One stop signal saves and exits; a second one exits at once with valid checkpoints."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from esper.karn.views import RunState, list_runs
from esper.leyline.stopping import STOP_SIGNALS
from esper.simic.training.runs.checkpoint_store import CheckpointStore
from esper.simic.training.runs.checkpoints import Checkpoint, read_checkpoint
from esper.simic.training.runs.folder import RunFolder, SessionEnd, read_info
from esper.simic.training.runs.interrupts import Interrupted, Interrupts
from esper.simic.training.vectorized import train_ppo_vectorized
from loop_support import same_agents, tiny_task, untimed
from resume_support import SPEC, resumed_run
from run_driver import EPISODE, small_run, small_trainer


def newest(path: Path) -> Checkpoint:
    return read_checkpoint(CheckpointStore(path / "checkpoints").newest_valid().path)


def whole(path: Path) -> list[str]:
    """Names of the checkpoints; all must be whole."""
    store = CheckpointStore(path / "checkpoints")
    assert store.newest_valid().skipped == ()
    return [path.name for path in store.paths()]


@pytest.fixture(autouse=True)
def usual_handlers():
    """As in a terminal, also where the tests run in the background."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


# ---- as a process -------------------------------------------------------------------------------


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_asked_once_it_saves_and_exits_with_0(tmp_path, server, number):
    job = server.start("train", tmp_path, 500)
    job.until("round")
    job.send(number)
    assert job.wait() == 0
    done = len(job.lines("round"))
    assert f"{number.name}: stopping after this step" in job.errors.read_text()
    assert whole(job.folder)[-1] == f"round-{done:06d}"
    (line,) = job.lines("stopped")
    assert f"stopped by {number.name}: round-{done:06d} is saved" in line
    assert line.endswith(f"resume with: esper train ppo --resume {job.folder}")
    (run,) = list_runs(tmp_path)
    assert run.state is RunState.INTERRUPTED
    rest = server.done("resume", job.folder, done + 1)
    assert rest.lines("from") == [str(done)]
    assert list_runs(tmp_path)[0].state is RunState.FINISHED


def test_asked_twice_it_is_gone_at_once_and_checkpoints_are_whole(tmp_path, server):
    """Steps of ten seconds: that it ends long before shows that the step was not waited for."""
    job = server.start("train", tmp_path, 500, "--step-seconds", 10)
    job.until("step")
    job.send(signal.SIGINT)
    job.until_error("a second signal exits at once")
    began = time.monotonic()
    job.send(signal.SIGINT)
    assert job.wait() == -signal.SIGINT
    assert time.monotonic() - began < 5
    assert whole(job.folder) == []
    assert read_info(job.folder).sessions[-1].end is None
    assert list_runs(tmp_path)[0].state is RunState.KILLED


def test_asked_in_its_first_round_it_begins_anew_later(tmp_path, server):
    job = server.start("train", tmp_path, 500, "--step-seconds", 0.5)
    job.until("step")
    job.send(signal.SIGTERM)
    assert job.wait() == 0
    assert "no round was complete" in job.lines("stopped")[0]
    rest = server.done("resume", job.folder, 1)
    assert rest.lines("from") == ["0"]


def test_a_full_disk_ends_the_run_in_one_line_with_older_checkpoints_whole(tmp_path, server):
    job = server.start("train", tmp_path, 500, "--file-limit", 5000)
    assert job.wait() == 2
    (line,) = job.errors.read_text().splitlines()
    assert "cannot save round 3 to" in line
    assert "File too large; free some space, then" in line
    assert whole(job.folder) == ["round-000001", "round-000002"]
    (run,) = list_runs(tmp_path)
    assert (run.state, run.problem) == (RunState.FAILED, line)
    rest = server.done("resume", job.folder, 3)
    assert rest.lines("from") == ["2"]


# ---- in this process ----------------------------------------------------------------------------


class Press:
    """A listener that sends a signal in a step."""

    def __init__(self, round_index: int, step: int, number: int = signal.SIGINT) -> None:
        self.at = (round_index, step)
        self.number = number
        self.steps = 0

    def on_round_start(self, round_index, members):
        pass

    def on_slot_events(self, round_index, step, payload):
        pass

    def on_step(self, record):
        self.steps += 1
        if (record.signals.round_index, record.signals.step) == self.at:
            signal.raise_signal(self.number)

    def on_round_end(self, rollout):
        pass


def stopped(root: Path, press: Press, every: int = 1, **settings) -> tuple[Path, str]:
    """A run that was asked to stop; its folder and what it said."""
    config = small_run(4)
    with RunFolder.create(root, "x", config) as folder, pytest.raises(Interrupted) as stop:
        train_ppo_vectorized(
            config,
            run_dir=folder,
            checkpoint_every=every,
            listeners=[press],
            spec=tiny_task(episode_length=EPISODE),
            **settings,
        )
    return folder.path, str(stop.value)


def test_the_step_is_finished_and_no_other_is_begun(tmp_path):
    press = Press(1, 1)
    path, said = stopped(tmp_path, press)
    assert press.steps == EPISODE + 2
    assert "round-000001 is saved" in said
    assert read_info(path).sessions[-1].end is SessionEnd.INTERRUPTED


@pytest.mark.slow
def test_only_the_round_under_way_is_lost_however_seldom_is_saved(tmp_path):
    """With `every` at 100 the last whole round is in memory; what was begun leaves no mark."""
    path, _ = stopped(tmp_path, Press(2, 1), every=100)
    checkpoint = newest(path)
    assert checkpoint.summary.round == 2
    plain = small_trainer(small_run(2))
    plain.run()
    assert same_agents(checkpoint.load_agent(), plain.client.agent)
    assert untimed(checkpoint.load_history()) == untimed(plain.history)
    resumed_run(path)
    other = small_trainer(small_run(4))
    other.run()
    assert same_agents(newest(path).load_agent(), other.client.agent)


def test_asked_while_it_learns_the_round_counts(tmp_path):
    class PressInUpdate(Press):
        def on_round_end(self, rollout):
            if rollout.round_index == 0:
                signal.raise_signal(self.number)

    path, _ = stopped(tmp_path, PressInUpdate(9, 9))
    assert newest(path).summary.round == 1


def test_asked_in_the_last_round_the_run_is_done(tmp_path):
    class PressAtTheEnd(Press):
        def on_round_end(self, rollout):
            if rollout.round_index == 3:
                signal.raise_signal(self.number)

    path, said = stopped(tmp_path, PressAtTheEnd(9, 9))
    assert "all 4 rounds are done and saved" in said
    assert read_info(path).sessions[-1].end is SessionEnd.FINISHED


def test_an_error_costs_the_round_under_way_and_is_told(tmp_path):
    class Fail(Press):
        def on_step(self, record):
            if record.signals.round_index == 1:
                raise RuntimeError("out of luck")

    config = small_run(5)
    with (
        pytest.raises(RuntimeError, match="out of luck"),
        RunFolder.create(tmp_path, "x", config) as folder,
    ):
        train_ppo_vectorized(
            config, run_dir=folder, checkpoint_every=100, listeners=[Fail(0, 0)], spec=SPEC
        )
    assert newest(folder.path).summary.round == 1
    (session,) = read_info(folder.path).sessions
    assert (session.end, session.failure) == (SessionEnd.FAILED, "RuntimeError: out of luck")


def test_afterwards_everything_is_as_it_was_before(tmp_path):
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    config = small_run(1)
    with RunFolder.create(tmp_path, "x", config) as folder:
        train_ppo_vectorized(config, run_dir=folder, spec=SPEC)
    assert {number: signal.getsignal(number) for number in STOP_SIGNALS} == before
    stopped(tmp_path, Press(0, 0))
    assert {number: signal.getsignal(number) for number in STOP_SIGNALS} == before


def test_after_the_first_signal_the_system_handles_the_next():
    with Interrupts() as interrupts:
        assert signal.getsignal(signal.SIGTERM) == interrupts._on_signal
        interrupts.check()
        signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        with pytest.raises(Interrupted, match="SIGINT"):
            interrupts.check()


def test_under_torchrun_a_signal_that_it_repeats_counts_once(monkeypatch, capfd):
    """A scheduler signals all processes, and torchrun passes its own signal on to its ranks."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    sent = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    with Interrupts() as interrupts:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert interrupts.signal_name == "SIGTERM"
        assert not sent
        monkeypatch.setattr(interrupts, "_echo_until", 0.0)
        signal.raise_signal(signal.SIGINT)
        assert sent == [(os.getpid(), signal.SIGINT)], "a user who insists"
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    assert not capfd.readouterr().err, "rank 0 says it"


def test_a_terminal_that_closes_may_hang_up_twice(tmp_path):
    """The shell sends SIGHUP, and so does the kernel when the shell ends: saving goes on."""

    class PressTwice(Press):
        def on_step(self, record):
            super().on_step(record)
            super().on_step(record)

    path, said = stopped(tmp_path, PressTwice(1, 0, signal.SIGHUP))
    assert "stopped by SIGHUP: round-000001 is saved" in said
    assert read_info(path).sessions[-1].end is SessionEnd.INTERRUPTED


def test_a_terminal_that_is_gone_does_not_fail_the_run(tmp_path):
    """Ctrl-C in `esper train ppo 2>&1 | tee log` ends tee first: what is told goes nowhere."""
    reader, writer = os.pipe()
    os.close(reader)
    stderr = os.dup(2)
    os.dup2(writer, 2)
    try:
        path, said = stopped(tmp_path, Press(1, 0))
    finally:
        os.dup2(stderr, 2)
        for descriptor in (writer, stderr):
            os.close(descriptor)
    assert "stopped by SIGINT: round-000001 is saved" in said
    assert read_info(path).sessions[-1].end is SessionEnd.INTERRUPTED


def test_a_signal_that_was_ignored_stays_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Interrupts() as interrupts:
        signal.raise_signal(signal.SIGINT)
        assert interrupts.signal_name is None
        signal.raise_signal(signal.SIGTERM)
        assert interrupts.signal_name == "SIGTERM"
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_beside_the_main_thread_signals_are_left_alone():
    heard = []

    def look():
        with Interrupts():
            heard.extend(signal.getsignal(number) for number in STOP_SIGNALS)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert heard == [signal.default_int_handler, signal.SIG_DFL, signal.SIG_DFL]
