"""Random small problems for `esper.grow`: data, model and budget, all drawn from one number."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from esper import Budget

ACTIVATIONS: tuple[type[nn.Module], ...] = (nn.ReLU, nn.GELU, nn.Tanh, nn.SiLU)
VOCAB = 12


class Pooled(nn.Module):
    """A trunk, the mean over positions, and a linear head."""

    def __init__(self, trunk: nn.Module, width: int, outputs: int, axes: tuple[int, ...]) -> None:
        super().__init__()
        self.trunk, self.axes = trunk, axes
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.trunk(x).mean(dim=self.axes))


class Encoder(nn.Module):
    """A small transformer over tokens or over vectors `[B, T, C]`."""

    def __init__(self, embed: nn.Module, width: int, depth: int, length: int, drop: float) -> None:
        super().__init__()
        self.embed = embed
        self.positions = nn.Parameter(0.02 * torch.randn(1, length, width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 2 * width, drop, batch_first=True, norm_first=True)
            for _ in range(depth)
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x) + self.positions
        for layer in self.layers:
            h = layer(h)
        return h


@dataclass(frozen=True)
class RandomProblem:
    """Arguments of one call of `grow`."""

    name: str
    kind: str
    """What targets are: classes, binary, multilabel or numbers."""
    model: nn.Module | Callable[[], nn.Module]
    train: tuple[Tensor, Tensor]
    val: tuple[Tensor, Tensor] | None
    budget: Budget
    settings: dict[str, Any] = field(default_factory=dict)


class Drawing:
    """Draws one problem."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.rng = np.random.default_rng((19, number))

    def one_of(self, *options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def whole(self, least: int, most: int) -> int:
        return int(self.rng.integers(least, most + 1))

    # ---- data -----------------------------------------------------------------------------

    def shape(self, form: str) -> tuple[int, ...]:
        if form == "table":
            return (self.whole(3, 10),)
        if form == "signal":
            return self.whole(1, 3), self.one_of(12, 16, 20)
        return (self.one_of(1, 3), 8, 8) if form == "image" else (self.one_of(6, 8),)

    def inputs(self, form: str, shape: tuple[int, ...], samples: int) -> Tensor:
        if form == "tokens":
            return torch.from_numpy(self.rng.integers(0, VOCAB, (samples, *shape)))
        return torch.from_numpy(self.rng.standard_normal((samples, *shape)).astype(np.float32))

    def targets(self, kind: str, inputs: Tensor, outputs: int) -> Tensor:
        """Outputs of a random network of one hidden layer, with noise."""
        x = nn.functional.one_hot(inputs, VOCAB) if not inputs.is_floating_point() else inputs
        flat = x.flatten(1).double().numpy()
        first = self.rng.standard_normal((flat.shape[1], 6)) / math.sqrt(flat.shape[1])
        last = self.rng.standard_normal((6, outputs))
        noise = self.rng.choice([0.0, 0.1, 1.0]) * self.rng.standard_normal((len(flat), outputs))
        values = torch.from_numpy(np.tanh(2.0 * flat @ first) @ last + noise)
        values = values - values.mean(dim=0)
        if kind == "classes":
            return values.argmax(dim=1)
        if kind == "numbers":
            return values.float()
        labels = (values > 0).float()
        return labels[:, 0].long() if kind == "binary" and self.rng.random() < 0.5 else labels

    # ---- models ---------------------------------------------------------------------------

    def factory(self, form: str, shape: tuple[int, ...], outputs: int) -> Callable[[], nn.Module]:
        if form == "table":
            return self.mlp(shape[0], outputs)
        if form == "tokens" or (form == "signal" and self.rng.random() < 0.2):
            return self.transformer(form, shape, outputs)
        return self.convolutional(form, shape, outputs)

    def mlp(self, inputs: int, outputs: int) -> Callable[[], nn.Module]:
        widths = [self.whole(3, 16) for _ in range(self.whole(1, 3))]
        active, drop, norm = self.activation(), self.dropout(), bool(self.rng.random() < 0.3)

        def build() -> nn.Module:
            layers: list[nn.Module] = []
            for before, width in zip([inputs, *widths], widths, strict=False):
                layers += [nn.Linear(before, width)]
                layers += [nn.BatchNorm1d(width)] if norm else []
                layers += [active()] + ([nn.Dropout(drop)] if drop else [])
            return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))

        return build

    def convolutional(
        self, form: str, shape: tuple[int, ...], outputs: int
    ) -> Callable[[], nn.Module]:
        widths = [self.whole(3, 8) for _ in range(self.whole(1, 3))]
        active, drop, norm = self.activation(), self.dropout(), bool(self.rng.random() < 0.5)
        size, flat = self.one_of(3, 5), len(shape) == 2
        conv, pool = (nn.Conv1d, nn.MaxPool1d) if flat else (nn.Conv2d, nn.MaxPool2d)
        batch_norm = nn.BatchNorm1d if flat else nn.BatchNorm2d

        def build() -> nn.Module:
            layers: list[nn.Module] = []
            for place, (before, width) in enumerate(zip([shape[0], *widths], widths, strict=False)):
                layers += [conv(before, width, size, padding=size // 2, bias=not norm)]
                layers += ([batch_norm(width)] if norm else []) + [active()]
                layers += [pool(2)] if place == 0 else []
            layers += [nn.Dropout(drop)] if drop else []
            axes = (2,) if flat else (2, 3)
            return Pooled(nn.Sequential(*layers), widths[-1], outputs, axes)

        return build

    def transformer(
        self, form: str, shape: tuple[int, ...], outputs: int
    ) -> Callable[[], nn.Module]:
        width, depth, drop = self.one_of(4, 8, 12), self.whole(1, 2), self.dropout()

        def build() -> nn.Module:
            if form == "tokens":
                trunk = Encoder(nn.Embedding(VOCAB, width), width, depth, shape[0], drop)
            else:  # a signal as a sequence of its channels
                trunk = Encoder(nn.Linear(shape[1], width), width, depth, shape[0], drop)
            return Pooled(trunk, width, outputs, (1,))

        return build

    def activation(self) -> type[nn.Module]:
        return self.one_of(*ACTIVATIONS)

    def dropout(self) -> float:
        return self.one_of(0.0, 0.0, 0.1, 0.3)

    # ---- the whole ------------------------------------------------------------------------

    def problem(self) -> RandomProblem:
        form = self.one_of("table", "signal", "image", "tokens")
        kind = self.one_of("classes", "classes", "numbers", "binary", "multilabel")
        outputs = {"classes": self.whole(2, 6), "numbers": self.whole(1, 2), "binary": 1}.get(
            kind, self.whole(2, 4)
        )
        shape, samples = self.shape(form), self.whole(160, 360)
        inputs = self.inputs(form, shape, samples)
        targets = self.targets(kind, inputs, outputs)
        factory = self.factory(form, shape, outputs)
        val = None
        if self.rng.random() < 0.5:
            held = samples // 4
            val = (inputs[:held], targets[:held])
            inputs, targets = inputs[held:], targets[held:]
        torch.manual_seed(self.number)
        model = factory()
        budget = Budget(
            params=self.params_cap(model),
            macs=self.macs_cap(model, inputs),
            host_runs=self.one_of(2, 3, 4.5, 6, 8, 8, 16),
        )
        settings = {
            "epochs": self.whole(1, 3), "batch_size": self.one_of(4, 6, 8, 16), "seed": self.number,
            "optimizer": self.one_of("auto", "auto", "sgd"), "slots": self.one_of(1, 2, 8),
            "lr": self.one_of("auto", "auto", 0.01, (0.001, 0.1)),
        }  # fmt: skip
        if self.rng.random() < 0.3:
            settings["widths"] = ()
        given = model if self.rng.random() < 0.5 else factory
        how = "factory" if given is factory else "instance"
        name = f"{form} {tuple(shape)}, {kind} {outputs}, {type(model).__name__} as {how}"
        return RandomProblem(name, kind, given, (inputs, targets), val, budget, settings)

    def params_cap(self, model: nn.Module) -> int | None:
        """From exactly the model's own size to six times that."""
        own = sum(parameter.numel() for parameter in model.parameters())
        drawn = int(own * 6.0 ** self.rng.random())
        return self.one_of(None, None, own, drawn, drawn, drawn, 6 * own)

    def macs_cap(self, model: nn.Module, inputs: Tensor) -> float | None:
        if self.rng.random() < 0.7:
            return None
        return float(self.rng.uniform(1.5, 4.0) * measured_macs(model, inputs[:1]))


def measured_macs(model: nn.Module, one: Tensor) -> float:
    """Multiply-accumulates that torch counts for one sample: of convolutions and products."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # what is fused is not counted
    try:
        counter = FlopCounterMode(display=False)
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
            copy.deepcopy(model).eval()(one)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    return counter.get_total_flops() / 2


def draw_problem(number: int) -> RandomProblem:
    """Return the problem of a number; the same at every call."""
    return Drawing(number).problem()
