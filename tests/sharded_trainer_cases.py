"""Runs that `ShardedTrainer` trains on several ranks, and `EagerTrainer` in one process.

    python tests/sharded_trainer_cases.py RANKS FOLDER CASE...

What rank r finds goes to FOLDER/CASE-r.pt.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from esper.growing.ranks import ShardRanks
from esper.growing.runs import Recipe
from esper.growing.trainers.data import Batch, Samples, StreamReader
from esper.growing.trainers.eager import EagerTrainer
from esper.growing.trainers.job import Job, Outcome, Running, Tick
from esper.growing.trainers.program import Program
from esper.growing.trainers.sharded import ShardedProgram, ShardedTrainer
from esper.growing.trainers.task import Task, scalar_loss
from esper.kasmina.tracing import Inputs
from esper.leyline.errors import EsperError
from esper.tasks.metrics import make_metric
from esper.tasks.objectives import make_training_loss

Found = dict[str, Any]
SMALL_UNITS = 50
"""Parameters from which a network is cut into units."""
DEVICE = os.environ.get("ESPER_TEST_DEVICE", "cpu")


class Turned(nn.Module):
    """Returns a view, which is changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(0.1 * torch.randn(7, 7, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.kernel, padding=1).mT


class Conv(nn.Module):
    """Batch norms, in-place activations, rows that ranks cannot divide evenly."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(2, 7, 3, bias=False), nn.BatchNorm2d(7))
        self.body = nn.Sequential(
            nn.ReLU(inplace=True),
            nn.Conv2d(7, 7, 3, padding=1, bias=False),
            nn.BatchNorm2d(7),
            Turned(),
        )
        self.head = nn.Linear(7, 3)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        added = self.body(h)  # which changes h as well
        added += h.mT
        return self.head(added.mean(dim=(2, 3))) * self.scale


class Tokens(nn.Module):
    """Tied weights, attention that reads the weights of its parts, a parameter without a use."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 8)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(8, 9, bias=False)
        self.head.weight = self.embed.weight
        self.unused = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h)
        return self.head(h)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(6, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cells(x[:, None].expand(-1, 3, -1))[0][:, -1])


class Dropping(nn.Module):
    """Dropout, a layer that is left out at random, and one that is computed twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(6, 12, bias=False), nn.BatchNorm1d(12), nn.ReLU())
        self.second = nn.Sequential(nn.Linear(12, 12), nn.Dropout(0.2), nn.ReLU())
        self.attention = nn.MultiheadAttention(12, 2, dropout=0.3, bias=False, batch_first=True)
        self.head = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.dropout(self.first(x), 0.3, self.training)
        if not self.training or torch.rand(()) < 0.7:
            h = h + checkpoint(self.second, h, use_reentrant=False)
        h = torch.stack([h, h.flip(1)], dim=1)
        return self.head(self.attention(h, h, h)[0].mean(dim=1))


class Frozen(nn.Module):
    """Frozen parameters, and doubles beside floats."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 9), nn.Linear(9, 3)
        self.shift = nn.Parameter(torch.zeros(3, dtype=torch.float64))
        self.first.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).tanh()) + self.shift.float()


class Mixing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 9), nn.Linear(9, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.last(h - h.mean(dim=0))


class Tracking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.InstanceNorm1d(2, track_running_stats=True)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x.view(-1, 2, 3)).flatten(1))


class Keeping(nn.Module):
    """Computes with a parameter that it has put into a list."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)
        self.kept = [self.head.weight]

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.kept[0])


@dataclass(frozen=True)
class Case:
    model: Callable[[], nn.Module]
    kind: str = "rows"
    optimizer: str = "adamw"
    batch_size: int = 7
    batches: int = 8
    clip: float = 0.5
    amp: bool = False
    class_weights: tuple[float, ...] | None = None
    small: int = SMALL_UNITS


CASES = {
    "conv": Case(Conv, "images"),
    "tokens": Case(Tokens, "tokens", optimizer="sgd", clip=0.1),
    "traced": Case(lambda: torch.fx.symbolic_trace(Conv()), "images"),
    "sgd": Case(Conv, "images", optimizer="sgd", clip=0.0),
    "one unit": Case(Conv, "images", small=10**6),
    "recurrent": Case(Recurrent),
    "dropping": Case(Dropping),
    "frozen": Case(Frozen),
    "weighted": Case(Recurrent, class_weights=(0.1, 1.0, 3.0)),
    "few samples": Case(Recurrent, batch_size=1),
    "half": Case(Conv, "images", amp=True, batches=4),
}
FAILING = {
    "mixing": Case(Mixing),
    "tracking": Case(Tracking),
    "keeping": Case(Keeping),
    "other network": Case(Conv, "images"),
    "no network": Case(Conv, "images"),
    "bad tick": Case(Conv, "images"),
}


def samples(kind: str, count: int, seed: int) -> Samples:
    generator = torch.Generator().manual_seed(seed)
    if kind == "tokens":
        x = torch.randint(9, (count, 5), generator=generator)
        return Samples([x], (x * 2 + 1) % 9)
    shape = (2, 6, 6) if kind == "images" else (6,)
    x = torch.randn(count, *shape, generator=generator)
    return Samples([x], x.flatten(1)[:, :3].argmax(dim=1))


def make_task(case: Case) -> Task:
    train, val = samples(case.kind, 40, 0), samples(case.kind, 19, 1)
    shape = (5, 9) if case.kind == "tokens" else (3,)
    loss = make_training_loss(
        "auto", targets=train.targets, output_shape=shape, class_weights=case.class_weights
    )
    metric = make_metric("log_loss", loss, train.targets, train.targets)
    model = case.model()
    inputs = Inputs.of(model, train.values[0])
    device = torch.device(DEVICE)
    train, val = train.to(device), val.to(device)
    return Task(inputs, train, val, scalar_loss(loss), metric, device, amp=case.amp)


def make_job(case: Case, file: Path, seed: int = 100) -> Job:
    def build() -> nn.Module:
        torch.manual_seed(seed)
        return case.model()

    recipe = Recipe(case.optimizer, 0.02, 0.01, case.clip, case.batch_size, case.batches)  # type: ignore[arg-type]
    return Job(3, build, recipe, 5, file)


def found(outcome: Outcome) -> Found:
    numbers = [outcome.trained, float(outcome.finite), outcome.score, outcome.loss]
    curve = [float(number) for point in outcome.curve for number in point]
    return {"numbers": torch.tensor([*numbers, *curve], dtype=torch.float64)} | outcome.weights


def never(running: Sequence[Running]) -> bool:
    return False


def eager(name: str, folder: Path) -> Found:
    case = CASES[name]
    (outcome,) = EagerTrainer(make_task(case)).train(iter([make_job(case, folder / "none")]), never)
    return found(outcome)


# ---- on ranks ------------------------------------------------------------------------------------


def join() -> ShardRanks:
    from esper.growing.ranks import ranks_of

    ranks = ranks_of("sharded", DEVICE)
    assert isinstance(ranks, ShardRanks)
    return ranks


def train(case: Case, file: Path, tick: Tick = never, task: Task | None = None) -> Outcome:
    ranks = join()
    # Ranks start from different weights, and must not notice.
    job = make_job(case, file, seed=100 + int(os.environ["RANK"]))
    trainer = ShardedTrainer(task or make_task(case), ranks, case.small)
    with ranks.interruptible():
        (outcome,) = trainer.train(iter([job]), tick)
    assert outcome.how.trainer == f"sharded over {ranks.size} rank{'s' * (ranks.size > 1)}"
    return outcome


def stopped(folder: Path) -> Found:
    """The last rank stops all after some batches; a checkpoint is written."""
    last = int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1

    def tick(running: Sequence[Running]) -> bool:
        return last and running[0].trained >= 3

    return found(train(CASES["conv"], folder / "stopped.safetensors", tick))


def resumed(folder: Path) -> Found:
    """Trains on from a checkpoint of one process."""
    first = os.environ["RANK"] == "0"  # the others need not see the file
    return found(train(CASES["conv"], folder / ("eager.safetensors" if first else "none")))


def signalled(folder: Path) -> Found:
    """Ctrl-C on one rank stops all."""
    import signal

    def tick(running: Sequence[Running]) -> bool:
        if os.environ["RANK"] == "0" and running[0].trained >= 2:
            os.kill(os.getpid(), signal.SIGINT)
        return False

    return found(train(CASES["conv"], folder / "signalled.safetensors", tick))


def last_batch(folder: Path) -> Found:
    """A rank stops all after the last batch of the first of two runs."""
    ranks, case = join(), CASES["conv"]
    jobs = iter([make_job(case, folder / "none"), make_job(case, folder / "none")])

    def tick(running: Sequence[Running]) -> bool:
        return not ranks.first and running[0].trained == case.batches

    (outcome,) = ShardedTrainer(make_task(case), ranks).train(jobs, tick)
    return found(outcome) | {"stopped": ranks.stopped}


class Read(StreamReader):
    """A stream that rank 0 alone may read."""

    def __init__(self) -> None:
        self._all = samples("images", 80, 7)

    def batch(self, number: int) -> Batch:
        assert os.environ.get("RANK", "0") == "0"
        return self._all.take(slice(5 * number, 5 * number + 5))


def streamed(folder: Path) -> Found:
    case = CASES["conv"]
    return found(train(case, folder / "none", task=replace(make_task(case), train=Read())))


def memory(folder: Path) -> Found:
    """Bytes that a rank holds, and the most that are whole at a time."""
    case = replace(CASES["tokens"], clip=0.0)
    shards, job = join().shards, make_job(case, folder / "none")
    program = ShardedProgram(job, make_task(case), shards, case.small)
    inner, most = program.network.inner, [0]

    def look(*_: object) -> None:
        whole = [p for p in inner.parameters() if not hasattr(p, "to_local")]
        most[0] = max(most[0], sum(param.nbytes for param in whole))

    for part in inner.modules():
        part.register_forward_hook(look)
    program.run_eager()
    states = [v for s in program.optimizer.state.values() for v in s.values() if v.ndim]
    return {
        "parameters": sum(param.nbytes for param in program.params),
        "state": sum(value.nbytes for value in states),
        "whole": most[0],
    }


def failing(name: str, folder: Path) -> Found:
    case, last = FAILING[name], os.environ["RANK"] == "1"
    if name == "other network" and last:
        case = replace(case, model=lambda: nn.Sequential(Conv()))
    if name == "no network" and last:
        case = replace(case, model=_no_network)
        return found(train(case, folder / "none", task=make_task(CASES["conv"])))
    return found(train(case, folder / "none", _no_tick if name == "bad tick" and last else never))


def _no_network() -> nn.Module:
    raise EsperError("no network today")


def _no_tick(running: Sequence[Running]) -> bool:
    raise EsperError("no time")


OTHERS = {
    "stopped": stopped,
    "resumed": resumed,
    "signalled": signalled,
    "last batch": last_batch,
    "streamed": streamed,
    "memory": memory,
}


def run(name: str, folder: Path) -> Found:
    if name in OTHERS:
        return OTHERS[name](folder)
    if name in FAILING:
        return failing(name, folder)
    return found(train(CASES[name], folder / "none"))


def write_eager_checkpoint(folder: Path) -> None:
    """The state of the run `conv` after three batches in one process."""
    case = CASES["conv"]
    program = Program(make_job(case, folder / "eager.safetensors"), make_task(case))
    for _ in range(3):
        program.run_eager()
    program.save()


if __name__ == "__main__":
    from fork_ranks import fork_ranks

    HOME = Path(sys.argv[2])

    def work() -> None:
        for name in sys.argv[3:]:
            torch.save(run(name, HOME), HOME / f"{name}-{os.environ['RANK']}.pt")
            if DEVICE == "cuda":  # only now: CUDA does not survive a fork
                torch.save(eager(name, HOME), HOME / f"{name}-eager.pt")

    sys.exit(fork_ranks(int(sys.argv[1]), work))
