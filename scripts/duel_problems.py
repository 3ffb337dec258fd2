"""The problems of the duel: data, a model as a user would write it, a cap on its parameters.

`python scripts/duel_problems.py FOLDER --out DATA` packs data sets that lie in FOLDER in their
standard forms (CIFAR-10 as `cifar-10-batches-bin`) into one file for each problem.

Every part is drawn by the seed of a pair: train, validation and test of a contender are those of
the other.
"""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark_grow import Layer, block
from esper.growing.trainers.augment import LEVELS

Part = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Problem:
    """One problem."""

    name: str
    make: Callable[[int, int], nn.Module]
    """(width, depth) -> model."""
    width: int
    """Of the model that `esper.grow` is given."""
    depths: tuple[int, ...]
    """Depths that contenders may choose from; the first is that of the given model."""
    cap: int
    """Most parameters."""
    samples: tuple[int, int, int]
    """Train, validation, test."""
    augments: tuple[str, ...] = ("none",)
    tokens: bool = False
    """The score is minus the mean loss, not the accuracy."""

    def parts(self, folder: Path, seed: int) -> list[Part]:
        """Train, validation and test of a pair."""
        x, y = self._raw(folder, seed)
        order = np.random.default_rng(1000 + seed).permutation(len(x))
        parts, first = [], 0
        for count in self.samples:
            chosen = order[first : first + count]
            parts.append((torch.from_numpy(x[chosen]), torch.from_numpy(y[chosen])))
            first += count
        return parts if self.tokens or self.name == "table" else _standardised(parts)

    def _raw(self, folder: Path, seed: int) -> tuple[Any, Any]:
        if self.name == "digits":
            from sklearn.datasets import load_digits

            data = load_digits()
            return (data.images / 16).astype(np.float32)[:, None], data.target
        if self.name == "table":
            return _table(sum(self.samples), seed)
        with np.load(folder / f"{self.name}.npz") as file:
            x, y = file["x"], file["y"]
        x = x if self.tokens or x.dtype != np.uint8 else x.astype(np.float32) / 255
        return x, y.astype(np.int64)

    def score(self, outputs: Tensor, y: Tensor) -> float:
        """Accuracy, or minus the mean loss of tokens."""
        if self.tokens:
            return -float(F.cross_entropy(outputs.flatten(0, -2), y.flatten()))
        return float((outputs.argmax(-1) == y).float().mean())


def _standardised(parts: list[Part]) -> list[Part]:
    """Numbers of train have mean 0 and standard deviation 1, by channel or column."""
    x = parts[0][0]
    axes = [axis for axis in range(x.dim()) if axis != 1]
    mean, deviation = x.mean(axes, keepdim=True), x.std(axes, keepdim=True) + 1e-6
    return [((some - mean) / deviation, y) for some, y in parts]


CARDINALITIES: Final = (3, 5, 8, 12, 24, 40)
"""Of the categorical columns of the table; eight columns of numbers follow."""


def _table(samples: int, seed: int) -> tuple[Any, Any]:
    """Rows whose class depends on numbers, on categories, and on both together."""
    rng = np.random.default_rng(7)  # the rule is the same for all seeds
    effects = [rng.normal(size=(n, 4)) for n in CARDINALITIES]
    slopes = rng.normal(size=(8, 4)) * 0.7
    crossed = rng.normal(size=(CARDINALITIES[4], 8, 4)) * 0.6
    rng = np.random.default_rng(seed)
    kinds = np.stack([rng.integers(0, n, samples) for n in CARDINALITIES], 1)
    numbers = rng.normal(size=(samples, 8))
    logits = np.tanh(numbers) @ slopes + sum(e[kinds[:, i]] for i, e in enumerate(effects))
    logits += np.einsum("ni,nij->nj", numbers, crossed[kinds[:, 4]])
    logits += rng.gumbel(size=logits.shape)
    x = np.concatenate([kinds, numbers], 1).astype(np.float32)
    return x, logits.argmax(1)


# ---- models ----------------------------------------------------------------------------------


class Residual(nn.Module):
    """A residual CNN of three stages with BatchNorm."""

    def __init__(self, channels: int, w: int, depth: int) -> None:
        super().__init__()
        self.stem = block(channels, w)
        self.stage1 = nn.ModuleList(block(w, w) for _ in range(depth))
        self.down1 = block(w, 2 * w, 2)
        self.stage2 = nn.ModuleList(block(2 * w, 2 * w) for _ in range(depth))
        self.down2 = block(2 * w, 4 * w, 2)
        self.stage3 = nn.ModuleList(block(4 * w, 4 * w) for _ in range(depth))
        self.head = nn.Linear(4 * w, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for part in self.stage1:
            x = x + part(x)
        x = self.down1(x)
        for part in self.stage2:
            x = x + part(x)
        x = self.down2(x)
        for part in self.stage3:
            x = x + part(x)
        out: Tensor = self.head(x.mean((2, 3)))
        return out


def digits_cnn(w: int, depth: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(1, w, 3, padding=1), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Conv2d(w, w, 3, padding=1), nn.ReLU()]
    layers += [nn.MaxPool2d(2), nn.Conv2d(w, 2 * w, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * w, 10))


def signal_cnn(w: int, depth: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv1d(1, w, 5, padding=2), nn.BatchNorm1d(w), nn.ReLU()]
    layers.append(nn.MaxPool1d(2))
    for _ in range(depth):
        layers += [nn.Conv1d(w, w, 3, padding=1), nn.BatchNorm1d(w), nn.ReLU()]
    layers += [nn.MaxPool1d(2), nn.Conv1d(w, 2 * w, 3, padding=1), nn.BatchNorm1d(2 * w), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(20 * w, 10))


class Table(nn.Module):
    """Embeddings of the categories beside the numbers, then an MLP."""

    def __init__(self, w: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.ModuleList(nn.Embedding(n, 4) for n in CARDINALITIES)
        sizes = [4 * len(CARDINALITIES) + 8, *[w] * (depth + 1)]
        parts: list[nn.Module] = []
        for a, b in pairwise(sizes):
            parts += [nn.Linear(a, b), nn.ReLU()]
        self.body, self.head = nn.Sequential(*parts), nn.Linear(w, 4)

    def forward(self, x: Tensor) -> Tensor:
        kinds = x[:, : len(CARDINALITIES)].long()
        found = [embed(kinds[:, place]) for place, embed in enumerate(self.embed)]
        out: Tensor = self.head(self.body(torch.cat([*found, x[:, len(CARDINALITIES) :]], 1)))
        return out


class GPT(nn.Module):
    """A language model on 64 characters."""

    def __init__(self, w: int, depth: int, words: int = 65, length: int = 64) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(words, w), nn.Embedding(length, w)
        self.body = nn.Sequential(*[Layer(w, heads=2) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(w), nn.Linear(w, words)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        out: Tensor = self.head(self.norm(self.body(self.embed(x) + self.places(places))))
        return out


IMAGES, SIGNALS, ROWS = LEVELS[3], LEVELS[2], LEVELS[1]
PROBLEMS: Final = {
    one.name: one
    for one in (
        Problem("digits", digits_cnn, 8, (1, 0, 2), 20_000, (1000, 300, 497), IMAGES),
        Problem("mnist1d", signal_cnn, 8, (1, 0, 2, 3), 20_000, (3200, 800, 1000),
                SIGNALS),
        Problem("fashion", lambda w, d: Residual(1, w, d), 6, (1, 0, 2), 30_000,
                (16_000, 4000, 6000), IMAGES),
        Problem("cifar", lambda w, d: Residual(3, w, d), 6, (1, 0, 2), 50_000,
                (8000, 2000, 3000), IMAGES),
        Problem("table", Table, 32, (1, 0, 2), 20_000, (6000, 2000, 4000), ROWS),
        Problem("shakespeare", GPT, 32, (2, 1, 3), 100_000, (12_000, 1500, 1500), tokens=True),
    )
}  # fmt: skip


# ---- packing ---------------------------------------------------------------------------------


def _idx(path: Path, skip: int) -> Any:
    return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=skip)


def pack(folder: Path, out: Path) -> None:
    """Write the data of the problems that are read from files."""
    out.mkdir(parents=True, exist_ok=True)
    fashion = folder / "fashion-mnist"
    x = _idx(fashion / "train-images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28)[:26_000]
    y = _idx(fashion / "train-labels-idx1-ubyte.gz", 8)[:26_000]
    np.savez_compressed(out / "fashion.npz", x=x, y=y)
    with np.load(folder / "mnist1d" / "mnist1d.npz") as file:
        x = np.concatenate([file["x"], file["x_test"]]).astype(np.float32)[:, None]
        np.savez_compressed(out / "mnist1d.npz", x=x, y=np.concatenate([file["y"], file["y_test"]]))
    raw = [np.fromfile(folder / "cifar-10-batches-bin" / f"data_batch_{n}.bin", np.uint8)
           for n in (1, 2)]  # fmt: skip
    records = np.concatenate(raw).reshape(-1, 3073)[:13_000]
    np.savez_compressed(out / "cifar.npz", x=records[:, 1:].reshape(-1, 3, 32, 32), y=records[:, 0])
    text = (folder / "tinyshakespeare" / "input.txt").read_text()
    known = {char: code for code, char in enumerate(sorted(set(text)))}
    codes = np.array([known[char] for char in text], np.int64)
    rows = codes[: len(codes) // 65 * 65].reshape(-1, 65)
    np.savez_compressed(out / "shakespeare.npz", x=rows[:, :-1], y=rows[:, 1:])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(argv)
    pack(args.folder, args.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
