"""Memory and time of one large network, whole (`loop`) and cut over ranks (`sharded`).

    python lab/scripts/benchmark_sharded.py
    torchrun --standalone --nproc-per-node 2 lab/scripts/benchmark_sharded.py --executor sharded

Trains a transformer with a seed in it by AdamW and prints, for every rank: bytes of parameters and
optimiser state, peak memory of a train batch above that of an empty process, seconds a batch (the
median), and the losses. On a GPU memory is torch's own count, on a CPU the resident size.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
import tyro

from esper.device.selection import parse_device
from esper.kasmina.hosts.transformer import TransformerHost
from esper.kasmina.population import Population, PopulationConfig
from esper.kasmina.saving.saving import population_tensors
from esper.leyline.optim import OptimConfig

VOCAB = 256
MIB = 2**20


@dataclass(frozen=True)
class Settings:
    """Size of the network, and how long it is trained."""

    executor: Literal["loop", "sharded"] = "loop"
    """`sharded` under torchrun."""
    device: str = "cpu"
    width: int = 512
    layers: int = 6
    block: int = 32
    """Tokens of a sample."""
    batch: int = 8
    batches: int = 20


@dataclass(frozen=True)
class Report:
    """What one rank has measured."""

    executor: str
    rank: int
    ranks: int
    device: str
    parameters: int
    """Of the whole network, seed included."""
    state_mib: float
    """Parameters and optimiser state of this rank."""
    peak_mib: float
    seconds: float
    losses: tuple[float, ...]


def main(settings: Settings) -> None:
    """Train and print one line of JSON for every rank."""
    device = parse_device(settings.device)
    start = memory(device)
    population = build(settings)
    device = population.device
    generator = torch.Generator().manual_seed(0)
    losses, seconds = [], []
    for number in range(settings.batches + 2):
        tokens = torch.randint(
            0, VOCAB, (1, settings.batch, settings.block + 1), generator=generator
        )
        x, y = tokens[..., :-1].to(device), tokens[..., 1:].to(device)
        if number == 2:  # the first ones set everything up
            reset_peak(device)
        began = time.perf_counter()
        loss = float(population.train_batch(x, y).loss_E)
        if number >= 2:
            seconds.append(time.perf_counter() - began)
        losses.append(loss)
    shards = population.network.shards
    rows = [t for n, t in population_tensors(population).items() if "values" in n or "optim" in n]
    report = Report(
        settings.executor,
        0 if shards is None else shards.rank,
        1 if shards is None else shards.size,
        torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        int(population.parameters_E()[0]),
        sum(t.numel() * t.element_size() for t in rows) / MIB,
        (peak(device) - start) / MIB,
        statistics.median(seconds),
        tuple(losses),
    )
    print(json.dumps(asdict(report)), flush=True)


def build(settings: Settings) -> Population:
    """One transformer with a planted seed and one in TRAINING."""
    config = PopulationConfig(
        executor=settings.executor,
        host_lr=1e-3,
        seed_lr=1e-3,
        optim=OptimConfig(kind="adamw", weight_decay=0.01),
    )

    def host() -> TransformerHost:
        return TransformerHost(
            VOCAB, settings.width, n_head=8, n_layer=settings.layers, block_size=settings.block
        )

    population = Population(host, ["r0c0", "r1c1"], ["mlp"], 1, 0, settings.device, config)
    population.plant([0], "r0c0", "mlp")
    population.germinate([0], "r1c1", "mlp")
    population.begin_step()
    return population


def memory(device: torch.device) -> float:
    """Bytes in use."""
    if device.type == "cuda":
        return float(torch.cuda.memory_allocated())
    return _status("VmRSS")


def peak(device: torch.device) -> float:
    """Most bytes in use since `reset_peak`."""
    return float(torch.cuda.max_memory_allocated()) if device.type == "cuda" else _status("VmHWM")


def reset_peak(device: torch.device) -> None:
    """Forget the peak so far."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return
    _return_freed_memory()
    Path("/proc/self/clear_refs").write_text("5")


def _return_freed_memory() -> None:
    """Give what set-up has freed back to the system, which counts it as in use otherwise."""
    import ctypes
    import gc

    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def _status(name: str) -> float:
    lines = Path(f"/proc/{os.getpid()}/status").read_text().splitlines()
    line = next(line for line in lines if line.startswith(name))
    return 1024.0 * int(line.split()[1])


if __name__ == "__main__":
    main(tyro.cli(Settings))
