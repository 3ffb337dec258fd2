"""Small runs for tests of trainers: networks as a search builds them, jobs, a task."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, fx, nn

from esper.growing.runs import Recipe
from esper.growing.trainers.data import Samples
from esper.growing.trainers.job import Job, Outcome
from esper.growing.trainers.task import Task, scalar_loss
from esper.kasmina.tracing import Inputs
from esper.tasks.metrics import make_metric
from esper.tasks.objectives import make_training_loss

FEATURES = 8


def make_task(samples: int = 256, metric: object = "auto", loss: object = "auto") -> Task:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(samples, FEATURES, generator=draw)
    y = (x[:, :3].argmax(dim=1)).long()
    train, val = Samples([x[:-64]], y[:-64]), Samples([x[-64:]], y[-64:])
    made = make_training_loss(loss, targets=train.targets, output_shape=(3,))
    score = make_metric(metric, made, train.targets, val.targets)
    inputs = Inputs.of(nn.Identity(), x[:2])
    return Task(inputs, train, val, scalar_loss(made), score, torch.device("cpu"))


def mlp(width: int, seed: int) -> nn.Module:
    """Parameters are registered in another order than they are used in."""
    torch.manual_seed(seed)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(width, 3)
            self.norm = nn.BatchNorm1d(width)
            self.body = nn.Linear(FEATURES, width)
            self.drop = nn.Dropout(0.1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.drop(self.norm(self.body(x)).relu()))

    return fx.symbolic_trace(Net()).train()


def make_job(
    number: int, folder: Path, batches: int = 40, build: Callable[[], nn.Module] | None = None
) -> Job:
    recipe = Recipe("adamw", 0.01, 0.01, 1.0, 32, batches)
    width = 4 + 3 * (number % 4)
    make = build or (lambda: mlp(width, number))
    return Job(number, make, recipe, number, folder / f"{number}.safetensors")


def trained(trainer, jobs, tick=lambda running: False) -> dict[int, Outcome]:
    return {outcome.number: outcome for outcome in trainer.train(iter(jobs), tick)}


def same(one: Outcome, other: Outcome) -> bool:
    """Whether two outcomes agree in everything but time."""
    facts = ("number", "trained", "finite", "score", "loss", "curve", "how")
    return all(repr(getattr(one, fact)) == repr(getattr(other, fact)) for fact in facts) and (
        one.weights.keys() == other.weights.keys()
        and all(torch.equal(one.weights[name], other.weights[name]) for name in one.weights)
    )
