"""Benchmarks the training of a user's own network against plain PyTorch.

    python lab/scripts/benchmark_own_network.py --device cuda       a minute or more on an H200
    python lab/scripts/benchmark_own_network.py --quick             small networks, on a CPU

ResNet-18 and ResNet-20 with batch norm and a GPT of GPT-2's size: one member without seeds and
with a seed in TRAINING (loop executor, captured graphs) against plain PyTorch (channels last,
autocast bf16, fused optimiser), and E members of ResNet-20 against as many plain runs in turn.
Captured and compiled plain runs are further columns. Contenders alternate; times are medians
(first to third quartile) over rounds, ratios are taken within a round.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Final

from esper.leyline.errors import EsperError
from esper.scripts.cli.command import run_command

if TYPE_CHECKING:
    import torch

    from own_network_timing import Case, Contender

BARE_LIMIT: Final = 1.15
SEED_LIMIT: Final = 1.15
GPT_LIMIT: Final = 1.2
POPULATION_GAIN: Final = 2.0
"""Targets: time over plain, time over plain relative to the FLOPs, and throughput over plain."""


@dataclass(frozen=True, slots=True)
class BenchmarkOwnNetwork:
    """Time a user's networks against plain PyTorch."""

    device: str = "cpu"
    """torch device."""
    quick: bool = False
    """Small networks and few rounds, to try the script."""
    rounds: int = 9
    """Rounds of turns."""
    batches: int = 10
    """Train batches of each contender in a turn."""
    members: int = 8
    """E: members of the population."""
    compiled: bool = True
    """Also time torch.compile, on a GPU; its compilation takes most of the time."""
    budget: float = 200.0
    """Seconds after which no further compiled run is started."""
    out: Path = Path("out/benchmark_own_network.json")
    """All numbers."""

    def check(self) -> None:
        """Check the settings."""
        for name in ("rounds", "batches", "members"):
            if getattr(self, name) < 1:
                raise EsperError(f"--{name} {getattr(self, name)}: must be 1 or more")


@dataclass(frozen=True, slots=True)
class Quartiles:
    """Median, first and third quartile."""

    median: float
    lower: float
    upper: float


@dataclass(frozen=True, slots=True)
class Target:
    """A ratio and what it should be."""

    name: str
    ratio: Quartiles
    limit: float
    at_least: bool
    met: bool


def main() -> int:
    """Entry point of the command."""
    return run_command(BenchmarkOwnNetwork, benchmark)


def benchmark(config: BenchmarkOwnNetwork) -> None:
    """Time all cases, print a line for each contender and target, write the numbers."""
    config.check()
    from esper.storage.atomic import require_writable, write_atomic
    from esper.tolaria.device_info import describe_device
    from esper.tolaria.runtime import parse_device, set_profile

    require_writable(config.out, "--out")
    device = parse_device(config.device)
    set_profile("fast", device)
    setting = describe_device(device)
    print("; ".join(f"{name}: {value}" for name, value in setting.items()), flush=True)
    bench = _Bench(config, device)
    resnet_18, resnet_20, gpt = _cases(config.quick)
    bench.single(resnet_20, BARE_LIMIT)
    bench.single(resnet_18, BARE_LIMIT)
    bench.single(gpt, GPT_LIMIT, seed=False, share=0.2)
    bench.population(resnet_20)
    record = {
        "setting": setting,
        "config": {k: str(v) if isinstance(v, Path) else v for k, v in asdict(config).items()},
        "seconds": bench.elapsed,
        "times_ms": bench.times,
        "targets": [asdict(target) for target in bench.targets],
    }
    write_atomic(config.out, (json.dumps(record, indent=1) + "\n").encode())
    print(f"{bench.elapsed:.0f} s; numbers: {config.out}")


def _cases(quick: bool) -> tuple[Case, Case, Case]:
    """ResNet-18, ResNet-20 and a GPT with their batches."""
    import torch

    from esper.kasmina import TransformerHost
    from own_network_models import RESNET_18, RESNET_20, ResNet, ResNetShape
    from own_network_timing import Case

    draws = torch.Generator().manual_seed(0)

    def images(name: str, shape: ResNetShape, batch: int) -> Case:
        x = torch.randn(batch, 3, 32, 32, generator=draws)
        target = torch.randint(10, (batch,), generator=draws)
        return Case(name, lambda: ResNet(shape), "conv_light", x, target)

    small = ResNetShape((8, 16), 1)
    vocab, width, heads, layers, length, batch = 50257, 768, 12, 12, 1024, 8
    if quick:
        vocab, width, heads, layers, length, batch = 101, 32, 2, 2, 32, 2
    tokens = torch.randint(vocab, (batch, length + 1), generator=draws)
    gpt = Case(
        "GPT",
        lambda: TransformerHost(vocab, width, heads, layers, length),
        "mlp_small",
        tokens[:, :-1].contiguous(),
        tokens[:, 1:].contiguous(),
        "adamw",
    )
    return (
        images("ResNet-18", small if quick else RESNET_18, 4 if quick else 256),
        images("ResNet-20", small if quick else RESNET_20, 4 if quick else 512),
        gpt,
    )


class _Bench:
    """Times of all contenders so far."""

    def __init__(self, config: BenchmarkOwnNetwork, device: torch.device) -> None:
        self.config, self.device = config, device
        self.on_gpu = device.type == "cuda"
        self.rounds = 2 if config.quick else config.rounds
        self.batches = 1 if config.quick else config.batches
        self.times: dict[str, dict[str, list[tuple[float, float]]]] = {}
        self.targets: list[Target] = []
        self._began = perf_counter()

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return perf_counter() - self._began

    def single(self, case: Case, limit: float, seed: bool = True, share: float = 1.0) -> None:
        """One member against one plain network; `share`: of the batches a turn."""
        from own_network_timing import Grown, Plain, flops_ratio

        makers: dict[str, Callable[[], Contender]] = {
            "plain": lambda: Plain(case, self.device, "eager"),
            "Esper bare": lambda: Grown(case, self.device, "loop"),
        }
        if seed:
            makers["Esper, one seed"] = lambda: Grown(case, self.device, "loop", seed=True)
        if self.on_gpu:
            makers["plain, CUDA graph"] = lambda: Plain(case, self.device, "graph")
            if self.config.compiled and self.elapsed < self.config.budget:
                makers["plain, compiled"] = lambda: Plain(case, self.device, "compile")
        self._time(case.name, makers, max(1, round(share * self.batches)))
        self._target(f"{case.name} bare over plain", case.name, "Esper bare", "plain", limit)
        if seed:
            flops = flops_ratio(case)
            self._target(
                f"{case.name} with one seed over plain, relative to {flops:.2f} times the FLOPs",
                case.name, "Esper, one seed", "plain", SEED_LIMIT, 1 / flops,
            )  # fmt: skip

    def population(self, case: Case) -> None:
        """E members against E plain networks in turn."""
        from own_network_timing import Grown, Plain

        members = 2 if self.config.quick else self.config.members
        makers: dict[str, Callable[[], Contender]] = {
            "plain in turn": lambda: Plain(case, self.device, "eager", members),
            "Esper loop": lambda: Grown(case, self.device, "loop", members),
            "Esper vmap": lambda: Grown(case, self.device, "vmap", members),
        }
        if self.on_gpu:
            makers["plain in turn, CUDA graph"] = lambda: Plain(case, self.device, "graph", members)
        name = f"{case.name}, E={members}"
        times = self._time(name, makers, max(1, self.batches // 4))
        best = min(("Esper loop", "Esper vmap"), key=lambda one: _spread(times[one]).median)
        self._target(
            f"{name}: throughput over plain runs in turn ({best})",
            name, "plain in turn", best, POPULATION_GAIN, at_least=True,
        )  # fmt: skip

    def _time(
        self, name: str, makers: Mapping[str, Callable[[], Contender]], batches: int
    ) -> dict[str, list[tuple[float, float]]]:
        from own_network_timing import take_turns

        contenders = dict(self._built(name, makers))
        times = take_turns(contenders, self.device, self.rounds, batches)
        self.times[name] = times
        for one, turns in times.items():
            ms, cpu = _spread(turns), _spread(turns, cpu=True)
            print(
                f"{name}, {one}: {ms.median:.2f} ms a batch ({ms.lower:.2f} to {ms.upper:.2f}), "
                f"CPU {cpu.median:.2f} ms",
                flush=True,
            )
        return times

    def _built(
        self, name: str, makers: Mapping[str, Callable[[], Contender]]
    ) -> Iterator[tuple[str, Contender]]:
        """Build and warm up each contender; one that fails is reported and left out."""
        from esper.tolaria.runtime import synchronize_device
        from own_network_timing import Grown

        for one, make in makers.items():
            print(f"[{self.elapsed:.0f} s] {name}: {one}", flush=True)
            try:
                contender = make()
                contender.train(6)  # kernels are chosen, the graph is captured and replayed
                synchronize_device(self.device)
            except (RuntimeError, EsperError) as error:
                print(f"  left out: {str(error).splitlines()[0]}", flush=True)
                continue
            if isinstance(contender, Grown):
                print(f"  {contender.line()}", flush=True)
            yield one, contender

    def _target(
        self,
        name: str,
        case: str,
        above: str,
        below: str,
        limit: float,
        factor: float = 1.0,
        at_least: bool = False,
    ) -> None:
        times = self.times[case]
        if above not in times or below not in times:
            print(f"{name}: not measured", flush=True)
            return
        ratio = _quartiles(
            [factor * a / b for (a, _), (b, _) in zip(times[above], times[below], strict=True)]
        )
        met = ratio.median >= limit if at_least else ratio.median <= limit
        self.targets.append(Target(name, ratio, limit, at_least, met))
        print(
            f"{name}: {ratio.median:.2f} ({ratio.lower:.2f} to {ratio.upper:.2f}), target "
            f"{'at least' if at_least else 'at most'} {limit}: {'met' if met else 'missed'}",
            flush=True,
        )


def _spread(turns: Sequence[tuple[float, float]], cpu: bool = False) -> Quartiles:
    return _quartiles([turn[cpu] for turn in turns])


def _quartiles(values: Sequence[float]) -> Quartiles:
    import numpy as np

    lower, median, upper = (float(v) for v in np.percentile(values, [25, 50, 75]))
    return Quartiles(median, lower, upper)


if __name__ == "__main__":
    sys.exit(main())
