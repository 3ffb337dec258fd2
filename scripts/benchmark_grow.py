"""How fast the trainers of `esper.grow` train many networks, against a plain loop in turn.

    python scripts/benchmark_grow.py --rows gpu --repeats 3 --out benchmark.json

Each row: the trainer of the device; the same networks in a plain eager loop, one batch of each in
turn; on a GPU also the same captured and replayed in turn. All with data on the device, the same
gather, schedule, precision, fused AdamW and no waiting within a batch. The three alternate;
reported is the median of the ratios and their range.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from esper.device.rng import forked_rng
from esper.growing.ranks import Ranks
from esper.growing.runs import Recipe
from esper.growing.trainers.choose import trainer_for
from esper.growing.trainers.data import Samples
from esper.growing.trainers.job import Job, Trainer
from esper.growing.trainers.task import Task, scalar_loss
from esper.kasmina.tracing import Inputs
from esper.tasks.metrics import make_metric
from esper.tasks.objectives import make_training_loss

SECONDS = 1.5
"""How long each loop is timed."""
OURS_SECONDS = 8.0
"""How long the trainer of a GPU takes at most, if it reaches what it must."""
LOOP_SECONDS = 20.0
"""On a CPU: how long the plain loop would take for as much."""
WARM_SECONDS = 8.0
"""Until worker processes have joined."""
SAMPLES = 8192


# ---- networks -------------------------------------------------------------------------------


def block(c_in: int, c_out: int, stride: int = 1) -> nn.Module:
    conv = nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(c_out), nn.ReLU())


class Residual(nn.Module):
    """A residual CNN of three stages."""

    def __init__(self, w: int) -> None:
        super().__init__()
        self.stem, self.down1, self.down2 = block(3, w), block(w, 2 * w, 2), block(2 * w, 4 * w, 2)
        self.r1, self.r2, self.r3 = block(w, w), block(2 * w, 2 * w), block(4 * w, 4 * w)
        self.head = nn.Linear(4 * w, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = self.down1(x + self.r1(x))
        x = self.down2(x + self.r2(x))
        x = x + self.r3(x)
        out: Tensor = self.head(x.mean((2, 3)))
        return out


def signal(w: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(1, w, 5, padding=2), nn.BatchNorm1d(w), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(w, w, 3, padding=1), nn.BatchNorm1d(w), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(w, 2 * w, 3, padding=1), nn.BatchNorm1d(2 * w), nn.ReLU(), nn.Flatten(),
        nn.Linear(20 * w, 10),
    )  # fmt: skip


def mlp(w: int) -> nn.Module:
    return nn.Sequential(nn.Linear(32, w), nn.ReLU(), nn.Linear(w, w), nn.ReLU(), nn.Linear(w, w),
                         nn.ReLU(), nn.Linear(w, 10))  # fmt: skip


class Basic(nn.Module):
    """Block of a ResNet for small images."""

    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        self.one, self.two = block(c_in, c_out, stride), block(c_out, c_out)
        same = stride == 1 and c_in == c_out
        self.skip = nn.Identity() if same else nn.Conv2d(c_in, c_out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.two(self.one(x)) + self.skip(x)
        return out


class ResNet20(nn.Module):
    """Three stages of three blocks, 16 to 64 channels."""

    def __init__(self, w: int = 16) -> None:
        super().__init__()
        parts: list[nn.Module] = [block(3, w)]
        for stage in range(3):
            for place in range(3):
                c_in = w * 2 ** max(0, stage - (place == 0))
                parts.append(Basic(c_in, w * 2**stage, 2 if stage and not place else 1))
        self.body, self.head = nn.Sequential(*parts), nn.Linear(4 * w, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x).mean((2, 3)))
        return out


class Layer(nn.Module):
    """A transformer layer."""

    def __init__(self, w: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.qkv, self.out = nn.LayerNorm(w), nn.Linear(w, 3 * w), nn.Linear(w, w)
        self.norm2, self.up, self.down = nn.LayerNorm(w), nn.Linear(w, 4 * w), nn.Linear(4 * w, w)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        out: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return out


class GPT(nn.Module):
    """Four layers on 256 tokens."""

    def __init__(self, w: int, words: int = 64, length: int = 256) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(words, w), nn.Embedding(length, w)
        self.body = nn.Sequential(*[Layer(w) for _ in range(4)])
        self.norm, self.head = nn.LayerNorm(w), nn.Linear(w, words)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(self.body(self.embed(x) + self.places.weight)))
        return out


# ---- rows -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """Networks that train together."""

    name: str
    title: str
    make: Callable[[int], nn.Module]
    widths: Sequence[int]
    shape: tuple[int, ...]
    batch: int
    amp: bool
    must: tuple[float, float]
    """Over eager, over captured in turn."""


TWICE = [w for w in range(2, 14) for _ in range(2)]
WIDE = [8 * (w - 1) for w in TWICE]
GPU_ROWS = [
    Row("residual", "24 residual CNNs, 256 images 3x32x32", Residual, TWICE, (3, 32, 32), 256, True,
        (5, 1.4)),
    Row("signal", "24 1-D CNNs, 128 signals of 40", signal, TWICE, (1, 40), 128, False, (25, 2.5)),
    Row("mlp", "24 MLPs, 256 rows of 32", mlp, WIDE, (32,), 256, False, (35, 3)),
    Row("resnet20", "8 ResNet-20, 512 images", ResNet20, [16] * 8, (3, 32, 32), 512, True,
        (2.5, 1.3)),
    Row("gpt", "4 GPTs of 4 layers, 32 x 256 tokens", GPT, [128] * 4, (256,), 32, True, (2, 1.2)),
]  # fmt: skip
SMALL = [2, 3, 4, 5, 6, 8, 10, 12, 13, 4, 6, 8]
CPU_ROWS = [
    Row("cpu-residual", "12 residual CNNs, 32 images 3x8x8", Residual, SMALL, (3, 8, 8), 32, False,
        (1.4, 0)),
    Row("cpu-signal", "12 1-D CNNs, 32 signals of 40", signal, SMALL, (1, 40), 32, False, (1.4, 0)),
    Row("cpu-mlp", "12 MLPs, 32 rows of 32", mlp, [8 * w for w in SMALL], (32,), 32, False,
        (1.4, 0)),
]  # fmt: skip


def data_of(row: Row, device: torch.device) -> tuple[Tensor, Tensor]:
    """Random samples and labels."""
    generator = torch.Generator().manual_seed(0)
    count = SAMPLES if row.name != "gpt" else 512
    if row.name == "gpt":
        words = torch.randint(0, 64, (count, 257), generator=generator).to(device)
        return words[:, :-1].contiguous(), words[:, 1:].contiguous()
    x = torch.randn(count, *row.shape, generator=generator)
    return x.to(device), torch.randint(0, 10, (count,), generator=generator).to(device)


def build(row: Row, place: int) -> nn.Module:
    with forked_rng(place):
        made = row.make(row.widths[place]).train()
    return fx.symbolic_trace(made) if row in CPU_ROWS else made  # as a search hands it to workers


def recipe_of(row: Row, batches: int) -> Recipe:
    return Recipe("adamw", 0.003, 0.01, 0.0, row.batch, batches)


# ---- contenders: seconds of one batch of every network ------------------------------------------


def ours(row: Row, data: tuple[Tensor, Tensor], batches: int) -> float:
    """By the trainer of the device, as in a search: with the start and the judging of every run."""
    x, y = data
    trainer = trainer_for(make_task(row, x, y), 600.0, Ranks(), lambda: build(row, 0))
    with tempfile.TemporaryDirectory() as folder:
        jobs = [
            Job(i, lambda i=i: build(row, i), recipe_of(row, batches), i, Path(folder, str(i)))  # type: ignore[misc]
            for i in reversed(range(len(row.widths)))  # long ones first, as a search does
        ]
        if not x.is_cuda:
            _start_workers(trainer, row)
        began = time.perf_counter()
        for outcome in trainer.train(iter(jobs), lambda _: False):
            if outcome.how.note:
                print(f"  {row.name}: run {outcome.number} was not captured: {outcome.how.note}")
        seconds = time.perf_counter() - began
    trainer.close()
    return seconds / batches


def _start_workers(trainer: Trainer, row: Row) -> None:
    """Train until workers have joined, as they have after the first seconds of a search."""
    began = time.perf_counter()
    job = Job(0, lambda: build(row, 0), recipe_of(row, 10**6), 0)
    for _ in trainer.train(iter([job] * 4), lambda _: time.perf_counter() > began + WARM_SECONDS):
        pass


def make_task(row: Row, x: Tensor, y: Tensor) -> Task:
    """A task with a small validation part."""
    outputs = (256, 64) if row.name == "gpt" else (10,)
    loss = make_training_loss(targets=y.cpu(), output_shape=outputs)
    metric = make_metric("auto", loss, y.cpu(), y.cpu())
    inputs = Inputs.of(nn.Identity(), x[:2].cpu())
    val = Samples([x[:256]], y[:256])
    return Task(inputs, Samples([x], y), val, scalar_loss(loss), metric, x.device, row.amp)


class PlainLoop:
    """The networks of a row as a good practitioner trains them, one batch of each in turn."""

    def __init__(self, row: Row, data: tuple[Tensor, Tensor], captured: bool, batches: int) -> None:
        self.x, self.y = data
        self.row, self.device, self.captured = row, self.x.device, captured
        self.on_gpu = self.device.type == "cuda"
        self.images = self.on_gpu and self.x.dim() == 4
        if self.images:
            self.x = self.x.contiguous(memory_format=torch.channels_last)
        self.recipe, self.count = recipe_of(row, batches), 0
        rates = [self.recipe.rate(number) for number in range(batches)]
        self.rates = torch.tensor(rates, dtype=torch.float32, device=self.device)
        self.networks = [self._place(build(row, i)) for i in range(len(row.widths))]
        self.optimizers = [self._optimizer(network) for network in self.networks]
        self.orders = [torch.randperm(len(self.x), device=self.device) for _ in self.networks]
        self.number = torch.zeros(1, dtype=torch.long, device=self.device)
        self.graphs = [self._capture(i) for i in range(len(self.networks))] if captured else []

    def _place(self, network: nn.Module) -> nn.Module:
        network = network.to(self.device)
        return network.to(memory_format=torch.channels_last) if self.images else network  # type: ignore[call-overload]

    def _optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        lr: Any = torch.tensor(0.003, device=self.device) if self.captured else 0.003
        return torch.optim.AdamW(
            network.parameters(), lr=lr, weight_decay=0.01, fused=True, capturable=self.captured
        )

    def batch(self) -> None:
        """One batch of every network."""
        for place in range(len(self.networks)):
            if self.captured:
                self.graphs[place].replay()
            else:
                self._step_eager(place)
        self.count += 1
        if self.captured:
            self.number.add_(1).remainder_(len(self.rates))

    def _step_eager(self, place: int) -> None:
        size, order = self.row.batch, self.orders[place]
        at = self.count % (len(order) // size)
        if not at and self.count:
            order = self.orders[place] = torch.randperm(len(self.x), device=self.device)
        self.optimizers[place].param_groups[0]["lr"] = self.recipe.rate(self.count)
        self._update(place, order[at * size : (at + 1) * size])

    def _step_static(self, place: int) -> None:
        size, order = self.row.batch, self.orders[place]
        rows = order[: len(order) // size * size].view(-1, size)
        index = rows.index_select(0, self.number % len(rows)).view(-1)
        rate = self.optimizers[place].param_groups[0]["lr"]
        torch.index_select(self.rates, 0, self.number, out=rate.view(1))
        self._update(place, index)

    def _update(self, place: int, index: Tensor) -> None:
        x, y = self.x[index], self.y[index]
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.row.amp,
                            cache_enabled=not self.captured):  # fmt: skip
            out = self.networks[place](x)
        loss = F.cross_entropy(out.float().flatten(0, -2), y.flatten())
        self.optimizers[place].zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizers[place].step()

    def _capture(self, place: int) -> torch.cuda.CUDAGraph:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self._step_static(place)
        torch.cuda.current_stream().wait_stream(side)
        self.optimizers[place].zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            self._step_static(place)
        return graph

    def time(self) -> float:
        """Seconds of one batch of every network."""
        for _ in range(3):
            self.batch()
        self._wait()
        began, done = time.perf_counter(), 0
        while time.perf_counter() - began < SECONDS:
            for _ in range(5):
                self.batch()
            done += 5
            if self.captured:
                self._wait()  # so that the queue does not run ahead of the clock
        self._wait()
        return (time.perf_counter() - began) / done

    def _wait(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()


def plain(row: Row, data: tuple[Tensor, Tensor], captured: bool) -> float:
    """A plain loop; on a CPU the better of one and two threads."""
    if data[0].is_cuda:
        return PlainLoop(row, data, captured, 4096).time()
    before, found = torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.append(PlainLoop(row, data, False, 4096).time())
    torch.set_num_threads(before)
    return min(found)


# ---- the table ------------------------------------------------------------------------------


def measure(row: Row, device: torch.device, repeats: int) -> dict[str, Any]:
    """Times of all contenders, in turn."""
    data = data_of(row, device)
    guess = plain(row, data, captured=False)
    seconds = OURS_SECONDS * row.must[0] if device.type == "cuda" else LOOP_SECONDS
    batches = max(40, math.ceil(seconds / guess))
    times: dict[str, list[float]] = {"ours": [], "eager": [], "captured": []}
    for _ in range(repeats):
        times["ours"].append(ours(row, data, batches))
        times["eager"].append(plain(row, data, captured=False))
        if device.type == "cuda":
            times["captured"].append(plain(row, data, captured=True))
            torch.cuda.empty_cache()
    return {"row": row.name, "title": row.title, "must": row.must, "batches": batches, **times}


def ratios(found: dict[str, Any], contender: str) -> list[float]:
    return [other / own for other, own in zip(found[contender], found["ours"], strict=False)]


def spread(values: list[float], unit: str) -> str:
    if not values:
        return "-"
    low, high = min(values), max(values)
    return f"{statistics.median(values):.2f}{unit} ({low:.2f} to {high:.2f})"


def line(found: dict[str, Any]) -> str:
    """One line of the table."""
    ms = {name: [1e3 * value for value in found[name]] for name in ("ours", "eager")}
    columns = [
        found["title"], spread(ms["ours"], " ms"), spread(ms["eager"], " ms"),
        spread(ratios(found, "eager"), "x"), f"{found['must'][0]}x",
        spread(ratios(found, "captured"), "x"), f"{found['must'][1] or '-'}x",
    ]  # fmt: skip
    return "| " + " | ".join(columns) + " |"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", default="all", help="all, gpu, cpu, or names with commas")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="auto", help="of the rows on a GPU")
    parser.add_argument("--out", type=Path, help="JSON file of all times")
    chosen = parser.parse_args(argv)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read once, by the first loop
    named = {"all": [*GPU_ROWS, *CPU_ROWS], "gpu": GPU_ROWS, "cpu": CPU_ROWS}
    names = chosen.rows.split(",")
    rows = named.get(chosen.rows) or [row for row in named["all"] if row.name in names]
    if not rows:
        parser.error(f"--rows {chosen.rows!r}: give {', '.join(r.name for r in named['all'])}")
    print("| networks | ours, ms a batch of all | eager | over eager | must "
          "| over captured in turn | must |\n|---|---|---|---|---|---|---|")  # fmt: skip
    results = []
    for row in rows:
        where = "cpu" if row in CPU_ROWS else chosen.device.replace("auto", "cuda")
        results.append(measure(row, torch.device(where), chosen.repeats))
        print(line(results[-1]), flush=True)
        if chosen.out:
            chosen.out.write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
