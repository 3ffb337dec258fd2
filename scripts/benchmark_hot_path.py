"""Benchmarks the engine's step: member-steps per second, and where the time goes.

    python scripts/benchmark_hot_path.py                      digits, a few population sizes
    python scripts/benchmark_hot_path.py --task synthetic_cifar --device cuda --envs 1 16 64
    python scripts/benchmark_hot_path.py --telemetry off normal     what recording costs

A step is training batches, validation with counterfactuals, transfer, governor, observation,
decision, actions and reward. Half the slots hold a seed, split evenly between TRAINING, BLENDING
and HOLDING, and no action is taken, so that all steps do the same work (`--policy wait`: no seeds,
`--policy random`: random actions). Set-up, warm-up and episode starts are excluded.

Configurations take turns of `--steps` steps; the GPU is synchronised before and after a turn only.
Speeds are medians over turns; ratios are taken within each round of turns and printed as median
(first to third quartile).
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from esper.leyline.compute import ExecutorName
from esper.leyline.errors import EsperError
from esper.scripts.cli.command import run_command
from hot_path_config import (
    MIX,
    POLICY_DESCRIPTIONS,
    HotPath,
    TelemetryName,
    first_samples,
    require_distinct,
    require_positive,
)

if TYPE_CHECKING:
    from esper.tasks.task_data import TaskData
    from hot_path_timing import Case, CaseResult, Ratio
    from plain_loop import PlainLoop
    from timed_engine import StepTimings, TimedEngine


@dataclass(frozen=True)
class BenchmarkHotPath(HotPath):
    """Time the step of populations."""

    envs: tuple[int, ...] = (1, 4, 16)
    """E: population sizes, each a configuration."""
    executors: tuple[ExecutorName, ...] = ("vmap", "loop")
    """vmap computes all members at once, loop one after the other; auto chooses and prints why."""
    telemetry: tuple[TelemetryName, ...] = ("off",)
    """normal: record as in a run, to JSON lines and Parquet files in a temporary folder. The writer
    must catch up by the end of each turn; its periodic disk writes fall into turns at random.
    `off normal` compares both."""
    steps: int = 5
    """Timed steps of each configuration in each turn."""
    pairs: int = 5
    """Turns of each configuration."""
    warmup: int = 2
    """Steps of each configuration before its first turn."""
    plain: bool = False
    """Also time plain torch modules in a loop, in fp32 and without Esper; only without seeds."""
    empty_steps: bool = True
    """Also time the step with minimal data, to measure overhead."""
    out: Path = Path("out/benchmark_hot_path.json")
    """All numbers."""

    def check(self) -> None:
        """Check the settings."""
        super().check()
        for name in ("envs", "steps", "pairs", "warmup"):
            require_positive(self, name)
        for name in ("envs", "executors", "telemetry"):
            require_distinct(self, name)
        if self.plain and self.policy != "wait":
            raise EsperError(
                f"--plain with --policy {self.policy}: the plain loop trains bare hosts; add "
                f"--policy wait"
            )


def main() -> int:
    """Entry point of the command."""
    return run_command(BenchmarkHotPath, benchmark)


def benchmark(config: BenchmarkHotPath) -> None:
    """Time all configurations, print a line each and the ratios, write the numbers."""
    config.check()
    from esper.storage.atomic import require_writable, write_atomic

    require_writable(config.out, "--out")
    spec = config.spec()

    from build_times import count_builds
    from esper.tolaria.device_info import describe_device
    from esper.tolaria.runtime import parse_device
    from hot_path_timing import (
        list_cases,
        ratios,
        start_case,
        summarise_all,
        take_turns,
    )
    from memory_floor import copy_bandwidth

    device = parse_device(config.device)
    data = first_samples(spec.load(), config.val_images)
    bandwidth = copy_bandwidth(device)
    setting = describe_device(device) | _setting(config, spec.episode_length, bandwidth)
    print("; ".join(f"{name}: {value}" for name, value in setting.items()), flush=True)
    cases = list_cases(config.envs, config.executors, config.telemetry, config.empty_steps)
    steps = config.warmup + config.steps * config.pairs
    engines: dict[Case, TimedEngine] = {}
    temporary = tempfile.TemporaryDirectory(prefix="esper-bench-")
    with count_builds(device) as builds, temporary as folder:
        try:
            for case in cases:
                engines[case] = start_case(config, case, data, steps, Path(folder))
            plains = _plain_loops(engines, data) if config.plain else {}
            turns = take_turns({**engines, **plains}, config.warmup, config.steps, config.pairs)
        finally:
            for engine in engines.values():
                engine.close()
    results = summarise_all(engines, turns, spec.episode_length, bandwidth)
    found = ratios(turns, on_cpu=device.type == "cpu")
    _show(results, found, not config.acts)
    for case in plains:
        print(_plain_line(case, turns[case]))
    reports = {case: engine.engine.graph_report() for case, engine in engines.items()}
    for case, report in reports.items():
        print(f"graphs, E={case.members} {case.executor}: {report.line()}")
    print(f"kernels of all configurations: {builds.line()}")
    record = {
        "setting": setting,
        "config": {name: _plain(value) for name, value in asdict(config).items()},
        "bytes_per_second": bandwidth,
        "results": [asdict(result) for result in results],
        "ratios": [asdict(ratio) for ratio in found],
        "plain_turns": {case.members: [t.seconds for t in turns[case]] for case in plains},
        "graphs": [asdict(report) for report in reports.values()],
        "kernel_builds": asdict(builds),
    }
    write_atomic(config.out, (json.dumps(record, indent=1) + "\n").encode())
    print(f"numbers: {config.out}")


def _plain_loops(engines: Mapping[Case, TimedEngine], data: TaskData) -> dict[Case, PlainLoop]:
    """A plain loop for each population size, with the weights of an engine of that size."""
    from hot_path_timing import Case
    from plain_loop import PlainLoop

    some = {case.members: timed.engine for case, timed in engines.items() if not case.empty}
    return {
        Case(members, "plain"): PlainLoop(engine.env.model, engine.spec, data)
        for members, engine in some.items()
    }


def _plain_line(case: Case, turns: Sequence[StepTimings]) -> str:
    from hot_path_timing import quartiles, speed_of

    speed, slow, high = quartiles([speed_of(turn, case) for turn in turns])
    return (
        f"plain loop, E={case.members}: {speed:.1f} ({slow:.1f}-{high:.1f}) member-steps/s of "
        f"ordinary modules in fp32, one after the other"
    )


def _setting(config: BenchmarkHotPath, episode_length: int, bandwidth: float) -> dict[str, str]:
    """Settings to print and record with the results."""
    import numpy as np

    description = POLICY_DESCRIPTIONS.get(config.policy, config.policy)
    return {
        "numpy": np.__version__,
        "task": config.task,
        "T": str(episode_length),
        "E": " ".join(map(str, config.envs)),
        "profile": config.profile,
        "compile": "no",
        "kernels": config.kernels,
        "seeds": f"{config.blueprint}, {description}" if config.policy == MIX else description,
        "copy": f"{bandwidth / 1e9:.1f} GB/s",
    }


def _show(results: Sequence[CaseResult], found: Sequence[Ratio], still: bool) -> None:
    print(_HEAD)
    for result in results:
        print(_line(result))
    print(_LEGEND)
    for result in results:
        share = sorted(result.phase_share.items(), key=lambda one: -one[1])
        shares = ", ".join(f"{name} {value:.1%}" for name, value in share)
        print(f"host time, {_name(result)}: {shares}")
    for reason in dict.fromkeys(f"{r.executor_asked}: {r.executor_reason}" for r in results):
        print(f"executor {reason}")
    for result in results:
        if still and not result.stages_unchanged:
            print(f"{_name(result)}: seeds changed stage during timing")
    for ratio in found:
        print(f"{ratio.name}: {ratio.median:.2f} ({ratio.lower:.2f} to {ratio.upper:.2f})")


_HEAD = (
    f"{'E':>4} {'B':>4} {'M':>3} {'V':>5} {'executor':<8} {'events':<6} {'prec':<4} "
    f"{'m-steps/s':>9} {'(quartiles)':>14} {'CPU ms':>7} "
    f"{'episodes/s':>10} {'images/s':>9} {'p50 ms':>8} {'p95 ms':>8} "
    f"{'rows/m':>6} {'us/row-b':>8} {'x floor':>7} {'train':>6} {'val':>6} {'rest':>6} {'empty':>6}"
)
_LEGEND = (
    "M: training batches per step. V: samples of val_control. CPU ms: process CPU time per "
    "member-step. rows/m: rows (forward passes) per member. us/row-b: "
    "training time of one row on one batch. x floor: training time over the time its memory "
    "traffic takes. train, val, rest: shares of the time by the device's clock; rest is Python and "
    "transfers. empty: time of the same step with minimal data, relative to this one."
)


def _name(r: CaseResult) -> str:
    return f"E={r.members} {r.executor}, telemetry {r.telemetry}"


def _line(r: CaseResult) -> str:
    floor = "-" if r.floor_ratio is None else f"{r.floor_ratio:.1f}"
    empty = "-" if r.empty_step_share is None else f"{r.empty_step_share:.1%}"
    share = r.device_share
    spread = "({:.1f}-{:.1f})".format(*r.member_steps_per_second_quartiles)
    return (
        f"{r.members:>4} {r.batch_size:>4} {r.batches_per_step:>3} {r.val_images:>5} "
        f"{r.executor:<8} {r.telemetry:<6} {r.precision:<4} "
        f"{r.member_steps_per_second:>9.1f} {spread:>14} {r.cpu_ms_per_member_step:>7.1f} "
        f"{r.episodes_per_second:>10.3f} "
        f"{r.images_per_second:>9.0f} {r.step_ms_p50:>8.1f} {r.step_ms_p95:>8.1f} "
        f"{r.rows_per_member:>6.2f} {r.row_batch_us:>8.0f} {floor:>7} "
        f"{share['train']:>6.1%} {share['validation']:>6.1%} {r.overhead_share:>6.1%} {empty:>6}"
    )


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else value


if __name__ == "__main__":
    sys.exit(main())
