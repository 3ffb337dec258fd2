"""Profiles the operations of a step, the torch operations of a training batch, and its input.

    python scripts/profile_hot_path_operations.py
    python scripts/profile_hot_path_operations.py --task synthetic_cifar --device cuda

Operations alternate, so the alternatives (forward, backward and update under both executors, main
and fused rows, one transfer and many) are comparable. Seeds are placed as in `benchmark_hot_path`.
Times are medians (first to third quartile) in microseconds; the device is synchronised around each
part, so the parts add up to more than a step. Inputs are timed between two training batches,
without synchronisation.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from esper.leyline.compute import ExecutorName
from esper.scripts.cli.command import run_command
from esper.tolaria.device_info import describe_device
from hot_path_config import HotPath, first_samples, require_positive

WARM_UP = 2
"""Warm-up steps."""


@dataclass(frozen=True)
class ProfileOperations(HotPath):
    """Profile the operations of a step."""

    envs: int = 8
    """E: members trained in parallel."""
    executor: ExecutorName = "auto"
    """Executor of validation and of the profiled training batches; training is timed under both."""
    pairs: int = 9
    """Turns per operation."""
    repeats: int = 3
    """Calls per turn; its time is their mean."""
    top: int = 12
    """Number of torch operations to list, most expensive first."""
    out: Path = Path("out/profile_hot_path_operations.json")
    """All numbers."""

    def check(self) -> None:
        """Check the settings."""
        super().check()
        for name in ("envs", "pairs", "repeats", "top"):
            require_positive(self, name)


def main() -> int:
    """Entry point of the command."""
    return run_command(ProfileOperations, measure)


def measure(config: ProfileOperations) -> None:
    """Profile, print three tables, write the numbers."""
    config.check()
    from esper.storage.atomic import require_writable, write_atomic

    require_writable(config.out, "--out")
    spec = config.spec()

    from batch_writing import writing_times
    from hot_path_engine import build_engine
    from operation_timing import all_operations, heaviest_ops, take_turns

    data = first_samples(spec.load(), config.val_images)
    timed = build_engine(config, config.envs, config.executor, data, WARM_UP + 1)
    engine = timed.engine
    timed.time_steps(WARM_UP)
    record = timed.step()
    choice = engine.env.model.choice
    assert choice is not None  # chosen when the engine was built
    setting = describe_device(engine.device) | {
        "task": config.task,
        "E": str(config.envs),
        "B": str(spec.batch_size),
        "T": str(spec.episode_length),
        "val images": str(len(engine.validator.control)),
        "precision": engine.precision,
        "profile": config.profile,
        "compile": "no",
        "executor": f"{choice.executor.name} ({choice.reason})",
    }
    print("; ".join(f"{name}: {value}" for name, value in setting.items()), flush=True)
    times = take_turns(all_operations(engine, data, record), config.pairs, config.repeats)
    heavy = heaviest_ops(engine, config.repeats, config.top)
    writing = writing_times(engine, data, config.pairs)
    print(f"{'operation':<50} {'us':>10}  quartiles, for one ...")
    for one in times:
        between = f"{one.lower_us:.0f} to {one.upper_us:.0f}"
        print(f"{one.name:<50} {one.median_us:>10.0f}  {between}, {one.per}")
    print(f"{'torch operation in a train batch':<50} {'us':>10}  share, calls")
    for op in heavy:
        print(f"{op.name[:50]:<50} {op.self_us:>10.0f}  {op.share:.1%}, {op.calls}")
    print(f"{'input of a train batch':<50} {'us':>10}  share of batch, training on it, isolated")
    for way in writing:
        name = f"written, data placement {way.placement}"
        rest = f"{way.share:.2%}, {way.train_us:.0f}, {way.isolated_us:.0f}"
        print(f"{name:<50} {way.write_us:>10.0f}  {rest}")
    result = {
        "setting": setting,
        "operations": [asdict(one) for one in times],
        "train_batch": [asdict(op) for op in heavy],
        "batch_writing": [asdict(way) for way in writing],
    }
    write_atomic(config.out, (json.dumps(result, indent=1) + "\n").encode())
    print(f"numbers: {config.out}")


if __name__ == "__main__":
    sys.exit(main())
