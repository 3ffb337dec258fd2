"""Runs in several processes: results of one, whatever happens to the others."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from esper.growing.ranks import Ranks
from esper.growing.trainers import workers as module
from esper.growing.trainers.choose import gpus, trainer_for
from esper.growing.trainers.eager import EagerTrainer
from esper.growing.trainers.job import Job, Running
from esper.growing.trainers.messages import Assignment, Ended, Position, Stop, Want
from esper.growing.trainers.process_transport import ProcessTransport
from esper.growing.trainers.program import Program
from esper.growing.trainers.shipping import (
    Forms,
    describe_network,
    rebuild_network,
    tensor_bytes,
)
from esper.growing.trainers.task import Task
from esper.growing.trainers.workers import WorkerTrainer
from esper.jobs.messages import Died
from esper.leyline.errors import EsperError
from run_support import make_job, make_task, mlp, same, trained

TESTS = Path(__file__).parents[2]
LONG = 2000
"""Batches of a run that is under way when something happens to it, on any machine."""


class Counting(WorkerTrainer):
    """Counts what workers have trained."""

    came = 0

    def _ended(self, worker, message):
        self.came += 1
        return super()._ended(worker, message)


class Crew:
    """A trainer with workers, and what its ticks have shown."""

    def __init__(self, task: Task, count: int = 2) -> None:
        self.transport = ProcessTransport()
        self.trainer = Counting(task, count, transport=self.transport)
        self.shown: list[list[Running]] = []

    def tick(self, running) -> bool:
        self.shown.append(list(running))
        return False

    def when(self, ready: Callable[[list[Running]], bool], do: Callable[[], None]):
        """A tick that does something once; it is then done for good."""
        done = []

        def tick(running) -> bool:
            self.tick(running)
            if not done and ready(list(running)):
                done.append(do())
            return False

        return tick

    def make_ready(self, folder: Path) -> None:
        """Train until all workers have asked for a run."""

        def endless() -> Iterator[Job]:
            number, known = 1000, self.trainer._workers
            while not known or not all(worker.wants or worker.held for worker in known.values()):
                number += 1
                yield make_job(number, folder, 30)

        for _ in self.trainer.train(endless(), self.tick):
            pass


@pytest.fixture(scope="module")
def crew(tmp_path_factory) -> Iterator[Crew]:
    made = Crew(make_task())
    made.make_ready(tmp_path_factory.mktemp("ready"))
    yield made
    made.trainer.close()


@pytest.fixture
def alone() -> Iterator[Callable[..., dict]]:
    """Trains in one process with one thread."""
    before = torch.get_num_threads()

    def train(task: Task, jobs, tick=lambda running: False):
        torch.set_num_threads(1)
        try:
            return trained(EagerTrainer(task), jobs, tick)
        finally:
            torch.set_num_threads(before)

    return train


def jobs_in(folder: Path, count: int = 6, batches: int = 40) -> list[Job]:
    folder.mkdir(exist_ok=True)
    return [make_job(number, folder, batches) for number in range(count)]


# ---- without a worker ------------------------------------------------------------------------


@pytest.mark.parametrize(("seconds", "cores", "workers"), [(19, 16, 0), (20, 16, 15), (1e6, 1, 0)])
def test_short_searches_and_single_cores_have_no_workers(monkeypatch, seconds, cores, workers):
    monkeypatch.setattr("esper.growing.trainers.choose.cores", lambda: cores)
    monkeypatch.setattr("esper.growing.trainers.choose.free_bytes", lambda device: math.inf)
    assert trainer_for(make_task(), seconds, Ranks(), lambda: mlp(4, 0)).at_once == 1 + workers


class Mine(nn.Linear):
    """A layer of the user's."""


def hooked() -> nn.Module:
    network = mlp(4, 0)
    network.register_forward_hook(lambda *_: None)
    return network


@pytest.mark.parametrize(
    ("build", "count", "several"),
    [
        (lambda: mlp(4, 0), 3, True),
        (lambda: mlp(4, 0), 1, False),
        (lambda: nn.Sequential(Mine(8, 3)), 3, False),
        (hooked, 3, False),
    ],
)
def test_several_gpus_train_what_can_be_sent_to_their_workers(monkeypatch, build, count, several):
    """What cannot would be trained by this process alone, one after the other, and not captured."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr("esper.growing.trainers.choose.process_trainer", lambda task: "one")
    monkeypatch.setattr("esper.growing.trainers.choose.WorkerTrainer", lambda *a, **k: k["devices"])
    task = replace(make_task(), device=torch.device("cuda"))
    found = trainer_for(task, 1000.0, Ranks(), build)
    assert found == (("cuda:0", "cuda:1", "cuda:2") if several else "one")


def test_a_gpu_without_a_number_means_all_of_them(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert gpus(torch.device("cuda")) == ("cuda:0", "cuda:1", "cuda:2")
    assert gpus(torch.device("cuda:1")) == ("cuda:1",)


def test_a_network_from_its_description_has_the_order_modes_and_buffers_of_the_network():
    network = mlp(6, 1)
    network.norm.eval()
    network.register_buffer("mask", torch.ones(3), persistent=False)
    with network.graph.inserting_before(next(iter(network.graph.nodes)).next):
        network.graph.create_node("get_attr", "mask")
    form, values = describe_network(network)
    again = rebuild_network(form, values)
    assert [n for n, _ in again.named_parameters()] == [n for n, _ in network.named_parameters()]
    assert list(again.state_dict()) == list(network.state_dict())
    assert {n: m.training for n, m in again.named_modules()} == {
        n: m.training for n, m in network.named_modules()
    }
    assert "mask" in dict(again.named_buffers())


def test_a_kind_of_network_is_compared_with_its_description_once(monkeypatch):
    forms, compared = Forms(make_task()), []
    monkeypatch.setattr(Forms, "_same", lambda *args: compared.append(1) or True)
    for seed in range(3):
        assert forms.describe(mlp(6, seed)) is not None
    assert len(compared) == 1
    forms.describe(mlp(7, 0))
    assert len(compared) == 2


def own_loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets)


def test_a_loss_of_the_users_is_computed_in_this_process(tmp_path, alone):
    task = make_task(loss=own_loss)
    trainer = WorkerTrainer(task, 2)
    found = trained(trainer, jobs_in(tmp_path, 2))
    assert not trainer._workers
    assert "a loss of your own" in trainer.note
    assert same(found[1], alone(task, jobs_in(tmp_path, 2))[1])


def test_a_loss_with_class_weights_reaches_the_workers(tmp_path, alone):
    task = make_task(loss=nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0])))
    trainer = WorkerTrainer(task, 1, trains=False)
    found = trained(trainer, jobs_in(tmp_path, 2))
    trainer.close()
    assert same(found[1], alone(task, jobs_in(tmp_path / "alone", 2))[1])


class Unreadable(ProcessTransport):
    """Sends a message that no other program can read."""

    def start(self, worker, setup):
        super().start(worker, setup)
        self.send(worker, nn.Linear(2, 2))


def test_a_message_that_a_worker_cannot_read_ends_the_search(tmp_path):
    trainer = WorkerTrainer(make_task(), 1, trains=False, transport=Unreadable())
    with pytest.raises(RuntimeError, match="AuthenticationError"):
        trained(trainer, jobs_in(tmp_path, 2))
    trainer.close()


@pytest.mark.parametrize(("own", "threads"), [(False, 1), (True, 3)])
def test_what_no_worker_can_train_is_computed_with_all_threads(tmp_path, monkeypatch, own, threads):
    before, seen = torch.get_num_threads(), set()
    run_eager = Program.run_eager

    def noting(program: Program) -> None:
        seen.add(torch.get_num_threads())
        run_eager(program)

    monkeypatch.setattr(Program, "run_eager", noting)
    torch.set_num_threads(3)
    try:
        build = (lambda: nn.Sequential(Mine(8, 3))) if own else None
        trained(WorkerTrainer(make_task(), 0), [make_job(0, tmp_path, 4, build)])
    finally:
        torch.set_num_threads(before)
    assert seen == {threads}


def test_a_run_with_threads_of_its_own_is_trained_here_once_no_worker_trains(tmp_path, monkeypatch):
    before, seen, beside = torch.get_num_threads(), dict[int, set[int]](), list[int]()
    advance, task = module._OwnRun.advance, make_task()
    first, second, wide, last = jobs_in(tmp_path, 4, 5)
    transport = Slow(task)
    trainer = WorkerTrainer(task, 1, transport=transport)

    def noting(run: Any, seconds: float) -> bool:
        number = run.program.job.number
        seen.setdefault(number, set()).add(torch.get_num_threads())
        if number == wide.number:
            beside.extend(held for worker in trainer._workers.values() for held in worker.held)
        return advance(run, 0.0)

    monkeypatch.setattr(module._OwnRun, "advance", noting)
    found = trained(trainer, [first, second, replace(wide, threads=2), last])
    assert sorted(found) == [0, 1, 2, 3]
    assert transport.sent[0].job.number in (0, 1), "the worker has trained one of those before it"
    assert beside == []
    assert seen.pop(2) == {2}
    assert all(threads == {1} for threads in seen.values())
    assert 2 not in [one.job.number for one in transport.sent if isinstance(one, Assignment)]
    assert torch.get_num_threads() == before


def test_threads_and_generators_are_the_users_between_runs(tmp_path):
    before, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(2)
    try:
        for _ in WorkerTrainer(make_task(), 0).train(
            iter(jobs_in(tmp_path, 2)), lambda running: False
        ):
            assert torch.get_num_threads() == 2
            assert torch.equal(torch.get_rng_state(), state)
    finally:
        torch.set_num_threads(before)


def test_samples_that_find_no_room_are_trained_in_this_process(tmp_path, monkeypatch):
    def full(tensors):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_block", full)
    trainer = WorkerTrainer(make_task(), 1)
    assert len(trained(trainer, jobs_in(tmp_path, 2))) == 2
    assert "No space left on device" in trainer.note


class Silent(ProcessTransport):
    """Starts processes that never say anything."""

    def start(self, worker, setup):
        self._processes[worker] = subprocess.Popen(["sleep", "600"])


def test_a_worker_that_hangs_at_its_start_blocks_nothing(tmp_path):
    trainer = WorkerTrainer(make_task(), 1, transport=Silent())
    assert len(trained(trainer, jobs_in(tmp_path, 3))) == 3
    trainer.close()


class Stillborn(ProcessTransport):
    """Starts processes that die at once."""

    def start(self, worker, setup):
        super().start(worker, setup)
        self._processes[worker].kill()


def test_workers_that_die_at_their_start_are_done_without(tmp_path):
    trainer = WorkerTrainer(make_task(), 1, transport=Stillborn())
    assert len(trained(trainer, jobs_in(tmp_path, 3, 300))) == 3
    assert "no worker starts (its process ended with status -9" in trainer.note
    assert sum(trainer._stillborn.values()) == module.TRIES
    trainer.close()


class Pretended:
    """One worker in this process; it dies so many times, and may wait for a stop."""

    remote = False

    def __init__(self, task: Task, deaths: int = 0, waits: bool = False) -> None:
        self.task, self.deaths, self.waits = task, deaths, waits
        self.messages: list[tuple[int, Any]] = []
        self.sent: list[Any] = []

    def start(self, worker: int, setup: Any) -> None:
        self.messages.append((worker, Want(idle=True)))

    def send(self, worker: int, message: Any) -> None:
        self.sent.append(message)
        if isinstance(message, Assignment) and self.deaths:
            self.deaths -= 1
            self.messages.append((worker, Died("it was killed")))
        elif isinstance(message, Assignment) and self.waits:
            self.messages.append((worker, Position((Running(99, 1, 2),))))
        elif isinstance(message, Assignment | Stop):
            self._end(worker, isinstance(message, Stop))

    def _end(self, worker: int, cut: bool) -> None:
        sent = next(one for one in reversed(self.sent) if isinstance(one, Assignment))
        recipe = replace(sent.job.recipe, batches=2) if cut else sent.job.recipe
        job = replace(sent.job, recipe=recipe, checkpoint=None)
        (found,) = EagerTrainer(self.task).train(iter([job]), lambda running: False)
        self.messages += [(worker, Ended(replace(found, score=-1.0, weights={}),
                                         tensor_bytes(found.weights))),
                          (worker, Want(idle=True))]  # fmt: skip

    def receive(self, seconds: float) -> list[tuple[int, Any]]:
        found, self.messages = self.messages, []
        return found

    def end(self, worker: int) -> None:
        """It holds nothing."""

    def close(self) -> None:
        """Nothing is left to end."""


class Slow(Pretended):
    """What it has trained is heard of a while later."""

    def receive(self, seconds: float) -> list[tuple[int, Any]]:
        self.asked = getattr(self, "asked", 0) + 1
        return super().receive(seconds) if self.asked % 40 == 1 else []


def doubled(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    """A metric of the user's."""
    return float((outputs.argmax(1) == targets).float().mean()) * 2


@pytest.mark.parametrize("metric", ["accuracy", doubled])
@pytest.mark.parametrize("deaths", [0, module.TRIES - 1])
def test_a_worker_trains_the_run_of_its_job_and_only_your_metric_is_judged_here(
    tmp_path, alone, metric, deaths
):
    task, jobs = make_task(metric=metric), jobs_in(tmp_path, 2, 5)
    transport = Pretended(task, deaths)
    found = trained(WorkerTrainer(task, 1, trains=False, transport=transport), jobs)
    for number, expected in alone(task, jobs_in(tmp_path, 2, 5)).items():
        assert same(replace(found[number], score=expected.score), expected)
        assert found[number].score == (expected.score if metric is doubled else -1.0)
    assert sum(isinstance(one, Assignment) for one in transport.sent) == 2 + deaths


def test_a_run_that_kills_its_worker_three_times_is_given_up_and_the_others_are_trained(tmp_path):
    transport = Pretended(make_task(), module.TRIES)
    found = trained(WorkerTrainer(make_task(), 1, trains=False, transport=transport),
                    jobs_in(tmp_path, 3, 5))  # fmt: skip
    assert found[0].failed == found[0].how.note == "its worker died 3 times: it was killed"
    assert [found[number].trained for number in (1, 2)] == [5, 5]
    tries = [one.job.number for one in transport.sent if isinstance(one, Assignment)]
    assert tries.count(0) == module.TRIES


class Huge(nn.Linear):
    """There is no memory for a batch of it, here or in a worker."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 GB")


@pytest.mark.parametrize("metric", ["accuracy", doubled])
def test_a_run_for_which_a_worker_has_no_memory_is_given_up(tmp_path, monkeypatch, metric):
    monkeypatch.setattr(Forms, "describe", lambda self, network: (None, {}))
    monkeypatch.setattr(module, "rebuilt", lambda form, values: Huge(8, 3))
    task = make_task(metric=metric)
    transport = Pretended(task)
    found = trained(WorkerTrainer(task, 1, trains=False, transport=transport), jobs_in(tmp_path, 2))
    assert [found[number].failed for number in (0, 1)] == ["out of memory"] * 2


def test_a_stop_reaches_the_worker_and_this_process_saves_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "TICK_SECONDS", 0.0)
    transport, shown = Pretended(make_task(), waits=True), list[Any]()

    def stop(running) -> bool:
        shown.extend(running)
        return any(isinstance(one, Assignment) for one in transport.sent)

    trainer = WorkerTrainer(make_task(), 1, transport=transport)
    jobs = jobs_in(tmp_path, 2, LONG)
    found = trained(trainer, jobs, stop)
    assert isinstance(transport.sent[-1], Stop)
    assert found[1].trained == 2
    assert 0 < found[0].trained < LONG
    assert jobs[0].checkpoint.exists()
    assert Program(jobs[0], make_task()).seconds == found[0].seconds > 0.0
    assert {one.number for one in shown} <= {0, 1}, "of a run that it does not hold it says nothing"


# ---- with workers ----------------------------------------------------------------------------


def test_runs_of_several_processes_are_those_of_one_bit_for_bit(crew, tmp_path, alone):
    before = crew.trainer.came
    found = trained(crew.trainer, jobs_in(tmp_path, 8, 100), crew.tick)
    assert 2 <= crew.trainer.came - before < 8, "all processes train"
    expected = alone(crew.trainer.task, jobs_in(tmp_path, 8, 100))
    assert found.keys() == expected.keys()
    assert all(same(found[number], expected[number]) for number in expected)


def test_what_a_worker_judges_on_the_way_arrives_before_the_end_of_the_run(crew, tmp_path, alone):
    jobs = [replace(job, every=0.05) for job in jobs_in(tmp_path, 3, 600)]
    seen: dict[int, list] = {job.number: [] for job in jobs}
    for outcome in crew.trainer.train(iter(jobs), crew.tick):
        seen[outcome.number].append(outcome)
    for *early, last in seen.values():
        assert early, "this process and each of its workers"
        assert all(one.under_way and one.trained < 600 for one in early)
        assert not last.under_way
    number = max(seen)
    expected = alone(crew.trainer.task, [make_job(number, tmp_path / "x", 600)])
    assert same(seen[number][-1], expected[number])


def test_workers_stay_for_the_next_runs_and_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    crew = Crew(make_task(), 1)
    crew.make_ready(tmp_path)
    pid = crew.transport.pid(0)
    trained(crew.trainer, jobs_in(tmp_path, 4))
    assert crew.transport.pid(0) == pid
    assert not list((tmp_path / "temporary").iterdir())  # so that kill -9 leaves nothing either
    crew.trainer.close()
    assert not Path(f"/proc/{pid}").exists()


def test_stopped_runs_are_saved_judged_and_continued_to_the_same_end(crew, tmp_path, alone):
    ticks: list[list[Running]] = []

    def stop(running) -> bool:
        ticks.append(running)
        return len(running) == 3

    jobs = jobs_in(tmp_path, 6, LONG)
    cut = trained(crew.trainer, jobs, stop)
    assert len(cut) == 3
    assert all(0 < outcome.trained < LONG for outcome in cut.values())
    assert all(jobs[number].checkpoint.exists() for number in cut)
    again = [make_job(number, tmp_path, LONG) for number in cut]
    found = trained(crew.trainer, again)
    (tmp_path / "fresh").mkdir()
    number = max(cut)
    expected = alone(crew.trainer.task, [make_job(number, tmp_path / "fresh", LONG)])
    assert same(found[number], expected[number])


def test_a_stopped_search_does_not_wait_for_a_worker_that_hangs(tmp_path, monkeypatch):
    monkeypatch.setattr("esper.growing.trainers.workers.STOP_SECONDS", 2.0)
    crew, hung = Crew(make_task()), []
    crew.make_ready(tmp_path)

    def stop(running) -> bool:
        if len(running) == 3 and not hung:
            hung.append(crew.transport.pid(0))
            os.kill(hung[0], signal.SIGSTOP)
        return bool(hung)

    found = trained(crew.trainer, jobs_in(tmp_path, 3, 10**6), stop)
    assert len(found) == 2, "those of this process and of the worker that goes on"
    assert not Path(f"/proc/{hung[0]}").exists()
    crew.trainer.close()


def test_a_stop_takes_its_time_here_and_what_workers_have_said_meanwhile_counts(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("esper.growing.trainers.workers.STOP_SECONDS", 0.5)
    crew = Crew(make_task(), 1)
    crew.make_ready(tmp_path)
    cut = module._OwnRun.cut
    monkeypatch.setattr(module._OwnRun, "cut", lambda run: (time.sleep(1.5), cut(run))[1])
    found = trained(crew.trainer, jobs_in(tmp_path, 2, 10**6), lambda running: len(running) == 2)
    assert len(found) == 2
    crew.trainer.close()


def test_a_killed_worker_is_replaced_and_its_run_continues(crew, tmp_path, alone):
    pid = crew.transport.pid(0)
    crew.shown.clear()
    tick = crew.when(
        lambda running: len(running) == 3,
        lambda: os.kill(pid, signal.SIGKILL),
    )
    found = trained(crew.trainer, jobs_in(tmp_path, 4, LONG), tick)
    expected = alone(crew.trainer.task, jobs_in(tmp_path, 4, LONG))
    assert all(same(found[number], expected[number]) for number in expected)
    assert crew.transport.pid(0) != pid


def test_a_run_whose_workers_die_three_times_is_one_line(tmp_path):
    crew = Crew(make_task(), 1)
    seen: set[int] = set()

    def kill(running) -> bool:
        process = crew.transport._processes.get(0)  # one that has ended is replaced in a moment
        if len(running) == 2 and process is not None and process.pid not in seen:
            seen.add(process.pid)
            process.kill()
        return False

    jobs = [make_job(0, tmp_path, 10**6), make_job(1, tmp_path, 10**6)]
    first = next(iter(crew.trainer.train(iter(jobs), kill)))
    why = "its worker died 3 times: its process ended with status -9 (killed, or out of memory)"
    assert (first.number, first.failed) == (1, why)
    crew.trainer.close()


def test_an_error_of_a_run_in_a_worker_reaches_the_caller(crew, tmp_path):
    jobs = jobs_in(tmp_path, 6, 200)
    for job in jobs[1:]:
        job.checkpoint.write_bytes(b"nonsense")
    with pytest.raises(EsperError, match="not the state of this run"):
        trained(crew.trainer, jobs)
    crew.make_ready(tmp_path)


def test_a_metric_of_the_users_is_judged_by_the_search(tmp_path, alone):
    calls = []

    def mine(outputs, targets):
        calls.append(os.getpid())
        return float((outputs.argmax(1) == targets).float().mean()) * 2

    task = make_task(metric=mine)
    crew = Crew(task, 1)
    crew.make_ready(tmp_path)
    before = crew.trainer.came
    found = trained(crew.trainer, jobs_in(tmp_path, 6, 100), crew.tick)
    assert crew.trainer.came > before
    crew.trainer.close()
    expected = alone(task, jobs_in(tmp_path, 6, 100))
    assert all(same(found[number], expected[number]) for number in expected)
    assert set(calls) == {os.getpid()}


def test_networks_with_code_of_the_users_are_trained_in_this_process(crew, tmp_path, alone):
    def own() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(Mine(8, 3))

    def mixed() -> list[Job]:
        builds = [own, own, None, own, None, None]
        return [make_job(n, tmp_path, 60, build) for n, build in enumerate(builds)]

    before = crew.trainer.came
    found = trained(crew.trainer, mixed())
    assert 0 < crew.trainer.came - before <= 3
    expected = alone(crew.trainer.task, mixed())
    expected |= trained(EagerTrainer(crew.trainer.task), [mixed()[n] for n in (0, 1, 3)])
    assert all(same(found[number], expected[number]) for number in expected)
    assert len(found) == 6


SCRIPT = """
import os, sys, tempfile
from pathlib import Path
sys.path.insert(0, {tests!r})
from run_support import make_job, make_task, mlp
from esper.growing.trainers.workers import WorkerTrainer

print("once", flush=True)
trainer = WorkerTrainer(make_task(), 2)
folder = Path(tempfile.mkdtemp())
most = 0
def tick(running):
    global most
    if len(running) == 3 and most < 3:
        print("all train", flush=True)
    most = max(most, len(running))
    return False
def jobs():
    number = 0
    while most < 3 or {forever}:
        number += 1
        yield make_job(number, folder, {batches}, lambda number=number: mlp(5, number))
for outcome in trainer.train(jobs(), tick):
    pass
trainer.close()
"""


def script(forever: bool) -> subprocess.Popen[str]:
    text = SCRIPT.format(tests=str(TESTS), forever=forever, batches=10**7 if forever else 30)
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", text], stdout=pipe, stderr=pipe, text=True,
                            env=env, start_new_session=True)  # fmt: skip


def test_a_script_without_a_main_guard_runs_once_and_may_give_lambdas():
    running = script(forever=False)
    said, errors = running.communicate(timeout=120)
    assert running.returncode == 0, errors
    assert said.splitlines() == ["once", "all train"]
    assert errors == ""


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_workers_end_within_five_seconds_of_a_killed_search():
    running = script(forever=True)
    try:
        assert running.stdout.readline() == "once\n"
        assert running.stdout.readline() == "all train\n"
        workers = children(running.pid)
        assert len(workers) == 2
        running.kill()
        running.wait()
        until = time.monotonic() + 5
        while any(Path(f"/proc/{pid}").exists() for pid in workers):
            assert time.monotonic() < until
            time.sleep(0.05)
    finally:
        running.kill()


def test_ctrl_c_is_for_the_search_alone():
    running = script(forever=True)
    try:
        running.stdout.readline(), running.stdout.readline()
        workers = children(running.pid)
        for pid in workers:
            os.kill(pid, signal.SIGINT)
        time.sleep(1)
        assert all(Path(f"/proc/{pid}").exists() for pid in workers)
        os.killpg(running.pid, signal.SIGINT)
        _, errors = running.communicate(timeout=20)
        assert errors.count("KeyboardInterrupt") == 1
        assert errors.count("Traceback") == 1
    finally:
        running.kill()
