"""Networks of a search, and the scripts that train them again."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.growing.code.script import Subject, network_script
from esper.growing.code.training import Training
from esper.growing.runs import Recipe
from esper.growing.trainers.data import Samples
from esper.growing.trainers.eager import EagerTrainer
from esper.growing.trainers.job import Job
from esper.growing.trainers.task import Task, scalar_loss
from esper.kasmina.tracing import (
    HostTrace,
    carry_weights,
    planted_model,
    scaled_model,
    trace_model,
)
from esper.tasks.metrics import make_metric
from esper.tasks.objectives import make_training_loss


class Block(nn.Module):
    """A residual block."""

    def __init__(self, before: int, after: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.skip: nn.Module = nn.Identity()
        if stride > 1:
            self.skip = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.skip(x))


class ResNet(nn.Module):
    """Residual, with BatchNorm, Kaiming's initialisation and a head that starts at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, 1, 1)
        self.blocks = nn.Sequential(Block(8, 8), Block(8, 16, 2), Block(16, 16))
        self.head = nn.Linear(16, 3)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.head.weight)

    def forward(self, x):
        h = self.blocks(F.relu(self.stem(x))).mean((2, 3))
        return self.head(F.dropout(h, 0.1, self.training))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(x).chunk(3, -1)
        q, k, v = (p.view(batch, length, self.heads, -1).transpose(1, 2) for p in parts)
        dropout = 0.1 if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, 2)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Tied weights, positions of its own, a deviation of 0.02."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.tokens = nn.Embedding(7, width)
        self.positions = nn.Parameter(0.02 * torch.randn(1, 6, width))
        self.register_buffer("mask", torch.ones(6, 6).tril(), persistent=False)
        self.layers = nn.ModuleList([Layer(width) for _ in range(2)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 7, bias=False)
        self.head.weight = self.tokens.weight
        for layer in self.modules():
            if isinstance(layer, nn.Linear | nn.Embedding):
                nn.init.normal_(layer.weight, std=0.02)

    def forward(self, x):
        h = self.tokens(x) + self.positions[:, : x.shape[1]] * self.mask[-1, :, None]
        for layer in self.layers:
            h = layer(h)
        return self.head(self.norm(h))


def table(length: int, width: int) -> Tensor:
    place = torch.arange(length)[:, None]
    rate = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width))
    made = torch.zeros(length, width)
    made[:, 0::2], made[:, 1::2] = torch.sin(place * rate), torch.cos(place * rate)
    return made


class Encoder(nn.Module):
    """torch's transformer, with a class token and a table of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.read = nn.Linear(4, 16)
        self.register_buffer("positions", table(5, 16))
        self.token = nn.Parameter(torch.zeros(1, 1, 16))
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(16, 3)

    def forward(self, x):
        h = self.read(x) + self.positions
        h = torch.cat([self.token.expand(len(h), -1, -1), h], 1)
        return self.out(self.encoder(h)[:, 0])


class Own(nn.Module):
    """Parameters of its own, a recurrent layer with a gate that starts open, a list."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(4, 12))
        nn.init.xavier_uniform_(self.weight)
        self.scale = nn.ParameterList([nn.Parameter(torch.full((12,), 0.5)) for _ in range(2)])
        self.lstm = nn.LSTM(12, 8, batch_first=True)
        self.out = nn.Linear(8, 3)
        with torch.no_grad():
            self.lstm.bias_ih_l0[8:16] = 1.0

    def forward(self, x):
        h = torch.tanh(x @ self.weight)
        for scale in self.scale:
            h = h * scale
        return self.out(self.lstm(h)[0][:, -1])


class Norm(nn.Module):
    """Root mean square of the channels, with a weight of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * x.pow(2).mean(-1, keepdim=True).add(1e-6).rsqrt() * self.weight


class ScaledLayer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.linear = Norm(width), nn.Linear(width, width)
        self.gamma = nn.Parameter(1e-3 * torch.ones(width))
        self.shifts = nn.ParameterList([nn.Parameter(torch.full((width,), 0.5))])

    def forward(self, x):
        return x + self.gamma * self.linear(self.norm(x) + self.shifts[0])


class Scaled(nn.Module):
    """Several parameters of a name that belong to modules of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.out = nn.Linear(4, 8), nn.Linear(8, 3)
        self.layers = nn.ModuleList([ScaledLayer(8), ScaledLayer(8)])
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=0.02)

    def forward(self, x):
        x = self.read(x)
        for layer in self.layers:
            x = layer(x)
        return self.out(x)


class Pair(nn.Module):
    def __init__(self, before: int, between: int, after: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(before, between, 1), nn.Conv2d(between, after, 1)

    def forward(self, x):
        return self.second(F.relu(self.first(x)))


class Branch(nn.Module):
    def __init__(self, before: int, between: int, after: int, last: int) -> None:
        super().__init__()
        self.pair, self.conv = Pair(before, between, after), nn.Conv2d(after, last, 1)

    def forward(self, x):
        return self.conv(F.gelu(self.pair(x)))


class Branches(nn.Module):
    """Blocks of blocks that differ in everything."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = Pair(1, 4, 8)
        self.left, self.right = Branch(8, 4, 8, 12), Branch(8, 6, 12, 6)
        self.out = nn.Linear(18, 3)

    def forward(self, x):
        x = self.stem(x)
        batch, channels, *_ = x.shape
        x = torch.cat([self.left(x), self.right(x)], 1) + x.view(batch, channels, -1).mean()
        return self.out(x.mean((2, 3)))


class Group(nn.Module):
    """Called as what scripts hold parts by name with, which it needs."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({"first": nn.Linear(4, 8), "second": nn.Linear(8, 3)})

    def forward(self, x):
        return self.parts["second"](torch.relu(self.parts["first"](x)))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


# ---- data -----------------------------------------------------------------------------------


def rows(samples: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(samples, 4, generator=torch.Generator().manual_seed(samples))
    return x, (x[:, 0] > 0).long() + (x[:, 0] + x[:, 1] > 0).long()


def signals(samples: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(samples, 5, 4, generator=torch.Generator().manual_seed(samples))
    return x, (x[:, :, 0].mean(1) > 0).long() + (x[:, -1, 1] > 0).long()


def images(samples: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(samples)
    y = torch.randint(0, 3, (samples,), generator=generator)
    x = 0.7 * torch.randn(samples, 1, 8, 8, generator=generator)
    for label in range(3):
        x[y == label, 0, 2 * label : 2 * label + 3, 2:6] += 1.0
    return x, y


def texts(samples: int) -> tuple[Tensor, Tensor]:
    start = torch.randint(0, 7, (samples, 1), generator=torch.Generator().manual_seed(samples))
    every = (start + torch.arange(7) * (1 + start % 2)) % 7
    return every[:, :-1], every[:, 1:]


# ---- cases ----------------------------------------------------------------------------------


RECIPE = Recipe("adamw", 0.01, 0.01, 1.0, 32, 150)


@dataclass(frozen=True)
class Case:
    """A model at a width, with a seed at a place, and data for it."""

    model: Callable[[], nn.Module]
    data: Callable[[int], tuple[Tensor, Tensor]]
    width: float = 1.0
    seed: tuple[int, str] | None = None
    """Number of the slot, and blueprint."""
    recipe: Recipe = RECIPE


CASES = {
    "mlp": Case(mlp, rows),
    "mlp with a seed": Case(mlp, rows, 2.0, (0, "mlp")),
    "resnet with a seed": Case(
        ResNet, images, 1.5, (1, "conv_light"), Recipe("sgd", 0.05, 5e-4, 1.0, 32, 60, "shift", 0.1)
    ),
    "gpt": Case(GPT, texts, 2.0),
    "encoder": Case(Encoder, signals, recipe=Recipe("adamw", 0.003, 0.01, 1.0, 32, 200)),
    "own parameters": Case(Own, signals),
}


BUILT = CASES | {
    "scales": Case(Scaled, rows),
    "blocks of blocks": Case(Branches, images),
    "parts by name": Case(Group, rows),
}
"""Those whose networks are built, too; the others are trained besides."""


@dataclass(frozen=True)
class Written:
    """A case with its script."""

    case: Case
    trace: HostTrace
    seeds: dict[str, str]
    training: Training
    text: str

    def build(self, seed: int) -> nn.Module:
        return planted_model(self.trace, self.seeds, seed)

    def trained(self, seed: int, samples: int) -> nn.Module:
        """The network after a run of a search."""
        outcome = self.outcome(seed, samples)
        network = self.build(seed)
        carry_weights(network, outcome.weights)
        return network.eval()

    def outcome(self, seed: int, samples: int):
        task = self.task(samples)
        job = Job(0, lambda: self.build(seed), self.case.recipe, seed)
        (found,) = EagerTrainer(task).train(iter([job]), lambda _: False)
        return found

    def task(self, samples: int) -> Task:
        x, y = self.case.data(samples)
        parts = Samples([x], y)
        return Task(
            self.trace.inputs, parts, parts, scalar_loss(self.training.loss), self.training.metric,
            torch.device("cpu"), self.training.amp,
        )  # fmt: skip


def written(case: Case, **training: Any) -> Written:
    """Write the script of a case."""
    x, y = case.data(64)
    if case.width == 1.0:
        trace = trace_model(case.model, x[:4])
    else:
        trace = scaled_model(case.model, x[:4], case.width).host
    seeds = {} if case.seed is None else {trace.slots[case.seed[0]]: case.seed[1]}
    network = planted_model(trace, seeds, 0).eval()
    with torch.no_grad():
        shape = network(x[:4]).shape[1:]
    loss = make_training_loss("auto", targets=y, output_shape=shape)
    metric = make_metric("auto", loss, y, y)
    chosen = {"amp": False, "classes": None, "weighted": False, "samples": 64} | training
    common = Training(inputs=trace.inputs, loss=loss, metric=metric, **chosen)
    subject = Subject(
        "A title.", ["A note."], trace.name, lambda seed: planted_model(trace, seeds, seed),
        case.recipe,
    )  # fmt: skip
    text = network_script(subject, common, [x[:2]])
    return Written(case, trace, seeds, common, text)


def run_here(text: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of a script, run where Esper cannot be imported."""
    space: dict[str, Any] = {"__name__": "script"}
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "esper", None)
        exec(compile(text, "script.py", "exec"), space)
    return space
