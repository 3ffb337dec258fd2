"""Runs captured as CUDA graphs and replayed side by side are the eager ones, bit for bit."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from captured_support import (
    CPU,
    digest,
    image_data,
    make_job,
    make_task,
    never,
    table_data,
    token_data,
    train_all,
)
from cuda_support import DEVICE, NEEDS_CUDA
from esper.growing.trainers import captured
from esper.growing.trainers.augment import LEVELS, NONE, Augmentation
from esper.growing.trainers.captured import CapturedTrainer
from esper.growing.trainers.data import Samples
from esper.growing.trainers.determinism import deterministic_kernels
from esper.growing.trainers.eager import EagerTrainer
from esper.growing.trainers.job import Outcome
from esper.growing.trainers.kinds import Kinds
from esper.growing.trainers.lanes import CudaMachine
from esper.growing.trainers.own_training import OwnTraining

pytestmark = NEEDS_CUDA


def block(a: int, b: int, stride: int = 1) -> nn.Module:
    conv = nn.Conv2d(a, b, 3, stride, 1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(b), nn.ReLU())


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem, self.body, self.down = (
            block(3, width), block(width, width), block(width, 2 * width, 2))  # fmt: skip
        self.head = nn.Linear(2 * width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(self.down(x + self.body(x)).mean((2, 3)))


class Viewing(Residual):
    """`view` refuses channels-last images of more than one channel."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.down(self.stem(x))
        return self.head(h.view(len(x), h.shape[1], -1).mean(2))


def mlp(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                         nn.Linear(width, 3))  # fmt: skip


def dropout(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Dropout(0.3), nn.Linear(width, 3))


def signal_net(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8)), nn.Conv1d(1, width, 3, padding=1), nn.BatchNorm1d(width),
        nn.ReLU(), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(4 * width, 3),
    )  # fmt: skip


class Recurrent(nn.Module):
    def __init__(self, width: int, drop: float = 0.0) -> None:
        super().__init__()
        self.rnn = nn.LSTM(1, width, num_layers=2, batch_first=True, dropout=drop)
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x.unsqueeze(-1))[0][:, -1])


class GPT(nn.Module):
    def __init__(self, width: int, drop: float = 0.0) -> None:
        super().__init__()
        self.width, self.drop = width, drop
        self.embed, self.places = nn.Embedding(11, width), nn.Embedding(16, width)
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out, self.head = nn.Linear(width, width), nn.Linear(width, 11)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x) + self.places.weight
        q, k, v = (
            part.unflatten(-1, (2, -1)).transpose(1, 2)
            for part in self.qkv(self.norm(h)).chunk(3, -1)
        )
        p = self.drop if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        return self.head(h + self.out(mixed.transpose(1, 2).flatten(2)))


def attention_with_dropout(width: int) -> nn.Module:
    return GPT(width, 0.2)


class Unused(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body, self.other = mlp(width), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class Stash(Unused):
    """Keeps its last output, which a replay writes as well."""

    def forward(self, x: Tensor) -> Tensor:
        self.last = self.body(x)
        return self.last


class Counter(Unused):
    batches = 0

    def forward(self, x: Tensor) -> Tensor:
        self.batches += 1
        return self.body(x) * (0.5 if self.batches > 10 else 1.0)


class PythonsRandom(Unused):
    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) * random.uniform(0.9, 1.1) if self.training else self.body(x)


class Waiting(Unused):
    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) / max(1.0, float(x.abs().max()))


class Synchronizing(Unused):
    """Waits in a way that is found by a capture only."""

    def forward(self, x: Tensor) -> Tensor:
        torch.cuda.current_stream().synchronize()
        return self.body(x)


class Poisson(Unused):
    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) * torch.poisson(torch.full_like(x[:, :1], 5.0)) / 5.0


class Explodes(Unused):
    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) / 0.0


def momentum_none(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(8, width), nn.BatchNorm1d(width, momentum=None), nn.ReLU(),
                         nn.Linear(width, 3))  # fmt: skip


def recurrent_dropout(width: int) -> nn.Module:
    return Recurrent(width, 0.5)


class NoKernel(nn.Module):
    """Adaptive pooling has no deterministic backward kernel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem, self.head = block(3, width), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.adaptive_avg_pool2d(self.stem(x), (3, 3))
        return self.head(h.mean((2, 3)))


TABLE, IMAGES, TOKENS = table_data(), image_data(), token_data()
CLASSES = {"table": TABLE, "images": IMAGES, "signals": (TABLE[0].unsqueeze(1), TABLE[1])}


def task_of(data: str, amp: bool = False):
    if data == "tokens":
        return make_task(TOKENS, (16, 11), DEVICE, amp)
    return make_task(CLASSES[data], (3,), DEVICE, amp)


def jobs_of(folder: Path, make, count: int = 3, **recipe):
    widths = [4, 8, 6, 10, 12]
    return [
        make_job(lambda w=widths[i % 5]: make(w), i, folder, **({"batches": 50} | recipe))
        for i in range(count)
    ]


CASES = [
    ("table", mlp, False), ("table", mlp, True), ("images", Residual, True),
    ("images", Residual, False), ("images", Viewing, True), ("table", dropout, False),
    ("table", signal_net, False), ("tokens", GPT, True), ("tokens", GPT, False),
    ("tokens", attention_with_dropout, True), ("tokens", attention_with_dropout, False),
    ("table", Recurrent, False), ("table", Unused, False), ("table", Stash, False),
]  # fmt: skip


WITH_ADAMW = [(*case, "adamw") for case in CASES]
WITH_SGD = [(*case, "sgd") for case in CASES if case[1] in (mlp, Residual)]


@pytest.mark.parametrize(("data", "make", "amp", "optimizer"), WITH_ADAMW + WITH_SGD)
def test_captured_is_eager_bit_for_bit(tmp_path, data, make, amp, optimizer):
    task = task_of(data, amp)
    jobs = jobs_of(tmp_path, make, optimizer=optimizer)
    eager = train_all(EagerTrainer(task), jobs)
    replayed = train_all(CapturedTrainer(task), jobs)
    assert [outcome.how.note for outcome in replayed.values()] == [""] * 3
    assert {outcome.how.trainer for outcome in replayed.values()} == {"captured"}
    for number, outcome in replayed.items():
        assert digest(outcome) == digest(eager[number]), f"run {number}"
        assert outcome.how.bitwise
        assert outcome.finite


AUGMENTED = [
    (kind, make, name)
    for kind, make, shape in (
        ("images", Residual, 3), ("signals", lambda w: signal_net(w)[1:], 2), ("table", mlp, 1))
    for name in (*LEVELS[shape], *(("cutout+mixup",) if shape == 3 else ()))
    if name != NONE
]  # fmt: skip


@pytest.mark.parametrize(("kind", "make", "augment"), AUGMENTED)
def test_augmented_runs_are_the_eager_ones(kind, make, augment, tmp_path):
    jobs = jobs_of(tmp_path, make, augment=augment, label_smoothing=0.1)
    replayed = train_all(CapturedTrainer(task_of(kind)), jobs)
    eager = train_all(EagerTrainer(task_of(kind)), jobs)
    assert [digest(replayed[n]) for n in range(3)] == [digest(eager[n]) for n in range(3)]


@pytest.mark.parametrize("augment", ["shift", "flip+shift", "flip+shift+cutout"])
def test_augmentation_is_the_same_on_every_device(augment):
    x = IMAGES[0][:16]
    here, there = (Augmentation(augment, 3, d)(x.to(d), 9).cpu() for d in (CPU, DEVICE))
    assert torch.equal(here, there)
    assert not torch.equal(here, x)


OPTIMIZERS = {
    "Adam": lambda params: torch.optim.Adam(params, lr=0.01),
    "fused AdamW": lambda params: torch.optim.AdamW(params, lr=0.01, fused=True),
    "SGD": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "plain SGD": lambda params: torch.optim.SGD(params, lr=0.1, foreach=True),
    "RMSprop": lambda params: torch.optim.RMSprop(params, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_users_step_and_optimiser_are_captured_bit_for_bit(name, tmp_path):
    def step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    own = OwnTraining(step, OPTIMIZERS[name])
    task = replace(task_of("table"), own=own)
    jobs = [jobs_of(tmp_path / part, mlp, 3, optimizer="own", lr=1.0) for part in ("a", "b")]
    for part in ("a", "b"):
        (tmp_path / part).mkdir()
    eager, captured = (
        train_all(EagerTrainer(task), jobs[0]),
        train_all(CapturedTrainer(task), jobs[1]),
    )
    assert {one.how.trainer for one in captured.values()} == {"captured"}
    assert all(digest(captured[n]) == digest(eager[n]) for n in eager)


class Lookahead(torch.optim.SGD):
    """Every fifth step is another one; steps are also counted on the host."""

    def step(self, closure=None):
        super().step()
        for group in self.param_groups:
            group["counter"] = (group.get("counter", 0) + 1) % 5
            if group["counter"] == 0:
                torch._foreach_mul_([param.detach() for param in group["params"]], 0.9)
            for param in group["params"]:
                self.state[param].setdefault("steps", torch.zeros(())).add_(1)


LOOKAHEAD = partial(Lookahead, lr=0.1, momentum=0.9)


@pytest.mark.parametrize("name", [*OPTIMIZERS, "Lookahead"])
def test_a_run_with_a_users_optimiser_resumes_bit_for_bit(name, tmp_path):
    own = OwnTraining(optimizer=OPTIMIZERS.get(name, LOOKAHEAD))
    task = replace(task_of("table"), own=own)
    (job,) = jobs_of(tmp_path, mlp, 1, optimizer="own", lr=1.0)
    ends = []
    for cut_at in (0, 7):
        with deterministic_kernels(DEVICE):
            program = Kinds(task).program(job)
            while program.trained < cut_at:
                program.run_eager()
            program.save()
            program = Kinds(task).program(job)
            assert program.trained == cut_at
            held = program.optimizer.kept().tensors
            assert {held[key].device.type for key in held if key.endswith("steps")} <= {"cpu"}
            while not program.done:
                program.run_eager()
        ends.append(digest(program.outcome(program.how("eager"))))
        job.checkpoint.unlink()
    assert ends[0] == ends[1]


def test_an_optimiser_that_counts_in_python_trains_eagerly(tmp_path):
    task = replace(task_of("table"), own=OwnTraining(optimizer=LOOKAHEAD))
    jobs = jobs_of(tmp_path, mlp, 2, optimizer="own", lr=1.0)
    found = train_all(CapturedTrainer(task), jobs)
    eager = train_all(EagerTrainer(task), jobs)
    assert {one.how.trainer for one in found.values()} == {"eager"}
    assert "'counter'" in found[0].how.note
    assert all(digest(found[n]) == digest(eager[n]) for n in eager)


def test_a_users_step_that_waits_for_the_device_is_trained_eagerly(tmp_path):
    def step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = F.cross_entropy(model(batch[0]), batch[1])
        return loss * (1.0 if loss.item() > 0 else 2.0)

    task = replace(task_of("table"), own=OwnTraining(step))
    found = train_all(CapturedTrainer(task), jobs_of(tmp_path, mlp, 1))[0]
    assert found.how.trainer == "eager"
    assert found.trained == 50


def test_half_precision_is_entered_inside_the_capture(tmp_path):
    jobs = jobs_of(tmp_path, Residual)
    half = train_all(CapturedTrainer(task_of("images", amp=True)), jobs)
    whole = train_all(CapturedTrainer(task_of("images")), jobs)
    assert half[0].how.precision == "bfloat16"
    assert digest(half[0])[0] != digest(whole[0])[0]


EAGER = [
    ("table", momentum_none, "waits for the device"), ("table", Counter, "batches"),
    ("table", PythonsRandom, "Python's random"), ("table", Waiting, "waits for the device"),
    ("table", Poisson, "torch.poisson"), ("table", recurrent_dropout, "random numbers"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "make", "reason"), EAGER)
def test_what_cannot_be_captured_trains_eagerly_and_says_why(tmp_path, data, make, reason):
    task, jobs = task_of(data), jobs_of(tmp_path, make)
    found = train_all(CapturedTrainer(task), [*jobs, *jobs_of(tmp_path, mlp, 5)[3:]])
    eager = train_all(EagerTrainer(task), jobs)
    for number in range(3):
        assert found[number].how.trainer == "eager"
        assert reason in found[number].how.note
        if found[number].how.bitwise:
            assert digest(found[number]) == digest(eager[number])
    assert found[4].how.trainer == "captured"


def test_operations_without_a_deterministic_kernel_are_not_called_bitwise(tmp_path):
    task = task_of("images")
    outcome = train_all(CapturedTrainer(task), jobs_of(tmp_path, NoKernel, 1))[0]
    assert not outcome.how.bitwise
    assert outcome.trained == 50
    assert torch.get_deterministic_debug_mode() == 0


def test_a_capture_that_fails_leaves_others_as_they_are(tmp_path):
    task = task_of("table")
    others = jobs_of(tmp_path, dropout, 5)[3:]
    expected = train_all(CapturedTrainer(task), others)
    found = train_all(CapturedTrainer(task), [*jobs_of(tmp_path, Synchronizing), *others])
    assert found[0].how.trainer == "eager"
    assert found[0].how.note
    assert all(digest(found[n]) == digest(expected[n]) for n in (3, 4))
    assert torch.rand(2, device=DEVICE).isfinite().all()  # the generator is in order
    poisson = train_all(CapturedTrainer(task), jobs_of(tmp_path, Poisson, 1))
    assert poisson[0].trained == 50


@pytest.mark.parametrize("seed", range(4))
def test_a_run_depends_on_nothing_beside_it(tmp_path, seed):
    draw = random.Random(seed)
    makes = [mlp, dropout, signal_net, Recurrent, Unused, Counter]
    task = task_of("table")
    jobs = []
    for i in range(10):
        network = partial(draw.choice(makes), draw.choice([4, 8, 12]))
        recipe = {
            "batches": draw.choice([7, 20, 60]), "batch_size": draw.choice([8, 16]),
            "lr": draw.choice([0.003, 0.03]), "clip": draw.choice([0.0, 1.0]),
        }  # fmt: skip
        jobs.append(make_job(network, i, tmp_path, **recipe))
    whole = train_all(CapturedTrainer(task), jobs)
    some = draw.sample(jobs, 4)
    apart = train_all(CapturedTrainer(task, lanes=draw.choice([1, 2, 3])), some)
    for job in some:
        assert digest(apart[job.number]) == digest(whole[job.number])


def test_a_diverging_neighbour_ends_alone(tmp_path):
    task = task_of("table")
    jobs = jobs_of(tmp_path, dropout, 4, batches=100)
    expected = train_all(CapturedTrainer(task), jobs)
    nan = replace(jobs[1], build=lambda: Explodes(4).train())
    found = train_all(CapturedTrainer(task), [jobs[0], nan, *jobs[2:]])
    assert not found[1].finite
    assert found[1].trained == train_all(EagerTrainer(task), [nan])[1].trained
    assert all(digest(found[n]) == digest(expected[n]) for n in (0, 2, 3))


def test_a_stopped_search_resumes_bit_for_bit(tmp_path, monkeypatch):
    monkeypatch.setattr(captured, "TICK_SECONDS", 0.0)
    monkeypatch.setattr(captured, "STARTING_SECONDS", 0.0)  # else they end before the first tick
    task = task_of("images", amp=True)
    jobs = jobs_of(tmp_path, Residual, 4, batches=4000)  # far more than a start queues
    expected = train_all(CapturedTrainer(task), jobs)
    calls = []

    def stop(running):
        calls.append(running)
        return sum(run.trained for run in running) > 300

    monkeypatch.setattr(captured, "STARTING_SECONDS", 0.1)
    cut = train_all(CapturedTrainer(task), jobs, stop)
    under_way = [n for n, outcome in cut.items() if 0 < outcome.trained < 4000]
    assert under_way
    kind = Kinds(task, CudaMachine(DEVICE, 1).capture)
    saved = [kind.program(jobs[n]).trained for n in under_way]
    assert saved == [cut[n].trained for n in under_way], "nothing is queued after the stop"
    resumed = train_all(CapturedTrainer(task), [j for j in jobs if j.number in cut][::-1])
    assert all(digest(outcome) == digest(expected[n]) for n, outcome in resumed.items())


@pytest.mark.parametrize(("data", "make"), [("images", Residual), ("tokens", GPT)])
def test_a_run_judged_on_the_way_ends_the_same_and_its_average_is_the_eager_one(
    tmp_path, monkeypatch, data, make
):
    monkeypatch.setattr(captured, "STARTING_SECONDS", 0.0)  # else they end before they are judged
    task = task_of(data, amp=True)
    jobs = [replace(j, every=1e-4, checkpoint=None) for j in jobs_of(tmp_path, make, batches=400)]
    plain = train_all(CapturedTrainer(task), [replace(job, every=0.0) for job in jobs])
    seen: dict[int, list[Outcome]] = {job.number: [] for job in jobs}
    for outcome in CapturedTrainer(task).train(iter(jobs), never):
        seen[outcome.number].append(outcome)
    for number, (*early, last) in seen.items():
        assert digest(last) == digest(plain[number])
        assert early, "it was judged before its end"
        assert all(one.under_way for one in early)
        eager = Kinds(task, CudaMachine(DEVICE, 1).capture).program(jobs[number])
        with deterministic_kernels(DEVICE):
            while eager.trained < early[-1].trained:
                eager.run_eager()
            expected = eager.outcome(eager.how("captured"))
        assert digest(early[-1])[0] == digest(expected)[0]


KILLED = """
import sys, pathlib
sys.path[:0] = {paths!r}
import test_captured_runs as t
from esper.growing.trainers import captured, lanes
captured.CHECKPOINT_SECONDS = 0.02
record, count = captured.Program.record, [0]
def slow(self, feed, capture):
    count[0] += 1
    if count[0] > 3:
        def held(work):
            def stay():
                work()
                print("capturing", flush=True)
                import time; time.sleep(60)
            return capture(stay)
        return record(self, feed, held)
    return record(self, feed, capture)
captured.Program.record = slow
jobs = t.jobs_of(pathlib.Path({folder!r}), t.mlp, 3, batches=20000)
trainer = captured.CapturedTrainer(t.task_of("table"), most=2)
for _ in trainer.train(iter(jobs), lambda running: False):
    pass
"""


def test_a_kill_during_a_capture_leaves_the_checkpoints_intact(tmp_path):
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1]), *sys.path]
    code = KILLED.format(paths=paths, folder=str(tmp_path))
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert "capturing" in child.stdout.readline()
    child.send_signal(signal.SIGKILL)
    child.wait()
    jobs = jobs_of(tmp_path, mlp, 3, batches=20000)
    assert jobs[0].checkpoint.exists()
    resumed = train_all(CapturedTrainer(task_of("table")), jobs)
    (tmp_path / "fresh").mkdir()
    fresh = train_all(
        CapturedTrainer(task_of("table")), jobs_of(tmp_path / "fresh", mlp, 3, batches=20000)
    )
    assert all(digest(resumed[n]) == digest(fresh[n]) for n in range(3))


def test_memory_does_not_grow_over_many_runs(tmp_path):
    trainer = CapturedTrainer(task_of("images", amp=True))
    seen = []
    for outcome in trainer.train(iter(jobs_of(tmp_path, Residual, 200, batches=3)), never):
        if outcome.number % 50 == 49:
            seen.append(torch.cuda.memory_allocated())
    trainer.close()
    assert max(seen[1:]) <= seen[0] * 1.1 + 2**22
    assert trainer._kinds.trials == 1
    before = torch.cuda.memory_reserved()
    train_all(trainer, jobs_of(tmp_path, Residual, 24, batches=3))
    trainer.close()
    assert torch.cuda.memory_reserved() <= before + 2**26


def test_data_on_the_host_train_the_same_runs(tmp_path):
    resident = task_of("images", amp=True)
    x, y = IMAGES
    cut = len(x) * 3 // 4
    far = replace(resident, train=Samples([x[:cut]], y[:cut]))
    jobs = jobs_of(tmp_path, Residual)
    one, other = (train_all(CapturedTrainer(task), jobs) for task in (resident, far))
    assert {outcome.how.trainer for outcome in other.values()} == {"captured"}
    assert all(digest(one[n]) == digest(other[n]) for n in range(3))


def test_settings_of_the_caller_are_put_back(tmp_path, monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    before = torch.backends.cudnn.deterministic, torch.get_deterministic_debug_mode()
    for _ in CapturedTrainer(task_of("table")).train(iter(jobs_of(tmp_path, dropout)), never):
        assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
        assert (torch.backends.cudnn.deterministic, torch.get_deterministic_debug_mode()) == before


def test_a_stop_takes_effect_within_a_fifth_of_a_second(tmp_path):
    task = task_of("images", amp=True)
    jobs = jobs_of(tmp_path, Residual, 24, batches=100_000)
    asked = []

    def stop(running):
        if len(running) == captured.LANES and min(run.trained for run in running) > 50:
            asked.append(time.monotonic())
        return bool(asked)

    outcomes = CapturedTrainer(task).train(iter(jobs), stop)
    next(outcomes)
    assert time.monotonic() - asked[0] < 0.2
    outcomes.close()


def test_no_run_goes_out_of_memory(tmp_path):
    """With most of the memory taken, runs train fewer at a time."""
    task = task_of("images", amp=True)
    trainer = CapturedTrainer(task)
    train_all(trainer, jobs_of(tmp_path, Residual, 1, batches=3))
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    taken = torch.empty(free - 2**29, dtype=torch.uint8, device=DEVICE)
    found = train_all(trainer, jobs_of(tmp_path, Residual, 12, batches=10))
    del taken
    assert sorted(found) == list(range(12))


class NoisyResidual(Residual):
    """Draws that no capture repeats."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * torch.poisson(torch.ones_like(x[:, :1])))


def test_no_eager_run_goes_out_of_memory(tmp_path):
    task = task_of("images", amp=True)
    trainer = CapturedTrainer(task)
    train_all(trainer, jobs_of(tmp_path, NoisyResidual, 1, batches=3))
    torch.cuda.empty_cache()
    taken = torch.empty(torch.cuda.mem_get_info()[0] - 2**29, dtype=torch.uint8, device=DEVICE)
    found = train_all(trainer, jobs_of(tmp_path, NoisyResidual, 12, batches=10))
    del taken
    assert sorted(found) == list(range(12))
    assert {one.how.trainer for one in found.values()} == {"eager"}
    assert not any(one.failed for one in found.values())


class Huge(Residual):
    """No GPU has the memory for a batch."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.empty(2**50, device=x.device)[0]


def test_a_network_that_does_not_fit_is_given_up_and_the_others_are_as_ever(tmp_path):
    task = task_of("images")
    others = jobs_of(tmp_path, Residual, 3)
    expected = train_all(CapturedTrainer(task), others)
    for job in others:
        job.checkpoint.unlink(missing_ok=True)
    found = train_all(
        CapturedTrainer(task), [*others[:2], *jobs_of(tmp_path, Huge, 4)[3:], others[2]]
    )
    assert found.pop(3).failed == "out of memory"
    assert {n: digest(one) for n, one in found.items()} == {
        n: digest(one) for n, one in expected.items()
    }
