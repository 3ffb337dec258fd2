"""Does `esper.grow` take the minutes that it is given, and how soon does it train?

    python scripts/measure_minutes.py residual --minutes 1 2 5 --device cpu

Prints a JSON line for each run: seconds asked and taken, seconds until the first batch of the first
run, runs, batches, the share of the time in which runs were under way, scores. Data are made here:
images with a pattern for each class, a table with a random rule, text of a Markov chain, sentences
that are decided by two of their words.
"""

from __future__ import annotations

import argparse
import importlib
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

import esper
from benchmark_grow import GPT, Residual, mlp
from esper.growing.search import Search
from esper.growing.trainers.program import Program

SAMPLES: Final = 8192
WORDS: Final = 64


def images() -> tuple[Tensor, Tensor]:
    y = torch.randint(10, (SAMPLES,))
    return torch.randn(10, 3, 32, 32)[y] * 0.3 + torch.randn(SAMPLES, 3, 32, 32), y


def table() -> tuple[Tensor, Tensor]:
    x = torch.randn(SAMPLES, 32)
    rule = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 10))
    return x, (rule(x) * 8 + torch.randn(SAMPLES, 10)).argmax(1)


def text(length: int = 64, samples: int = 2048) -> tuple[Tensor, Tensor]:
    """Each word depends on the two before it."""
    follows = torch.randint(WORDS, (WORDS, WORDS, 4))
    x = torch.randint(WORDS, (samples, length + 1))
    for place in range(2, length + 1):
        choice = torch.randint(4, (samples,))
        x[:, place] = follows[x[:, place - 2], x[:, place - 1], choice]
    return x[:, :-1], x[:, 1:]


def sentences() -> tuple[Tensor, Tensor]:
    x = torch.randint(WORDS, (SAMPLES, 32))
    return x, ((x[:, 0] + x[:, 1]) % 4)


def bert() -> nn.Module:
    library: Any = importlib.import_module("transformers")
    made: nn.Module = library.BertForSequenceClassification(
        library.BertConfig(
            vocab_size=WORDS,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=128,
            max_position_embeddings=32,
            num_labels=4,
        )
    )
    return made


PROBLEMS: Final[dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, Tensor]]]]] = {
    "residual": (lambda: Residual(6), images),
    "table": (lambda: mlp(32), table),
    "gpt": (lambda: GPT(64, WORDS, 64), text),
    "bert": (bert, sentences),
}


class FirstBatch:
    """Notes when a search trains its first batch."""

    def __init__(self) -> None:
        self.at: float | None = None
        self._searching = False
        run, update = Search.run, Program.update

        def searching(search: Search, *args: Any) -> bool:
            self._searching = True
            return run(search, *args)

        def updating(program: Program, *args: Any) -> None:
            update(program, *args)
            if self._searching and self.at is None:
                self.at = time.perf_counter()

        for owner, name, method in (
            (Search, "run", searching),
            (Program, "update", updating),
        ):
            setattr(owner, name, method)

    def begin(self) -> None:
        self.at, self._searching = None, False


def measure(name: str, minutes: float, device: str, first: FirstBatch) -> dict[str, Any]:
    """Grow a model for some minutes."""
    make, data = PROBLEMS[name]
    torch.manual_seed(0)
    x, y = data()
    cut = len(x) * 3 // 4
    first.begin()
    began = time.perf_counter()
    result = esper.grow(
        make, (x[:cut], y[:cut]), test=(x[cut:], y[cut:]), budget=esper.Budget(minutes=minutes),
        device=device, folder=tempfile.mkdtemp(),
    )  # fmt: skip
    seconds = time.perf_counter() - began
    rows = result.table().rows
    return {
        "problem": name, "device": device, "asked": 60 * minutes, "took": round(seconds, 1),
        "first batch": round((first.at or began) - began, 2), "runs": len(rows),
        "network batches": sum(row.trained for row in rows),
        "runs at a time": round(sum(row.seconds for row in rows) / seconds, 2),
        "test": round(result.best.test_score, 4), "your model": round(result.host.test_score, 4),
        "parameters": result.best.params,
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problem", choices=PROBLEMS)
    parser.add_argument("--minutes", type=float, nargs="+", default=[1.0])
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args(argv)
    first = FirstBatch()
    for minutes in args.minutes:
        print(json.dumps(measure(args.problem, minutes, args.device, first)), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
