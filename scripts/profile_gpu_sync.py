"""Finds host-device synchronisation in a step outside its two transfers.

    python scripts/profile_gpu_sync.py --device cuda

On a GPU, steps run under torch's sync debug mode, and every wait is attributed to a line. On any
device, the source of the step path is searched for calls that would wait and have no `# SYNC:`
comment. Exit status 1 if there are unexpected waits.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from esper.leyline.compute import ExecutorName
from esper.scripts.cli.command import run_command
from hot_path_config import HotPath, require_positive

if TYPE_CHECKING:
    from sync_sites import Site, Wait

FOUND = 1
"""Exit status for unexpected waits."""


@dataclass(frozen=True)
class ProfileGpuSync(HotPath):
    """Find synchronisation in steps."""

    policy: str = "random"
    """random: any legal action, so that seeds come and go. mix: half the slots hold a seed, split
    evenly between TRAINING, BLENDING and HOLDING, without actions. Or any policy of `esper
    train`."""
    envs: int = 8
    """E: members trained in parallel."""
    executor: ExecutorName = "auto"
    """vmap computes all members at once, loop one after the other; auto chooses."""
    steps: int = 24
    """Steps to observe."""
    warmup: int = 1
    """Warm-up steps."""
    out: Path = Path("out/profile_gpu_sync.json")
    """Output file."""

    def check(self) -> None:
        """Check the settings."""
        super().check()
        for name in ("envs", "steps", "warmup"):
            require_positive(self, name)


def main() -> int:
    """Entry point of the command."""
    return run_command(ProfileGpuSync, profile)


def profile(config: ProfileGpuSync) -> int:
    """Search the source, observe steps on a GPU, print and write the results."""
    config.check()
    from esper.storage.atomic import require_writable, write_atomic

    require_writable(config.out, "--out")

    from esper.tolaria.device_info import describe_device
    from esper.tolaria.runtime import parse_device
    from sync_sites import static_sites

    device = parse_device(config.device)
    setting = describe_device(device) | {"task": config.task, "E": str(config.envs)}
    print("; ".join(f"{name}: {value}" for name, value in setting.items()), flush=True)
    sites = static_sites()
    _show_sites(sites)
    waits: list[Wait] = []
    if device.type == "cuda":
        waits = _watch(config)
        _show_waits(waits, config.steps)
    else:
        print(f"{device}: nothing to synchronise on a CPU")
    sound = all(site.sound for site in sites) and all(wait.allowed for wait in waits)
    record = {
        "setting": setting,
        "steps": config.steps if device.type == "cuda" else 0,
        "sites": [asdict(site) for site in sites],
        "waits": [asdict(wait) for wait in waits],
        "sound": sound,
    }
    write_atomic(config.out, (json.dumps(record, indent=1) + "\n").encode())
    print(f"{'sound' if sound else 'NOT sound'}; all lines: {config.out}")
    return 0 if sound else FOUND


def _watch(config: ProfileGpuSync) -> list[Wait]:
    """Waits during steps; starts of episodes are not observed."""
    from hot_path_engine import build_engine
    from sync_sites import watch_steps

    data, steps = config.spec().load(), config.warmup + config.steps
    timed = build_engine(config, config.envs, config.executor, data, steps)
    timed.time_steps(config.warmup)
    return watch_steps(timed.start_episode_if_done, timed.step, config.steps)


def _show_sites(sites: Sequence[Site]) -> None:
    commented = sum(bool(site.comment) for site in sites)
    excused = sum(bool(site.excuse) and not site.comment for site in sites)
    print(
        f"source: {len(sites)} calls in the step path would wait if on a GPU: {commented} carry a "
        f"# SYNC: comment, {excused} are known not to wait in a step"
    )
    for site in sites:
        if not site.sound:
            print(
                f"  {site.module}:{site.line}: {site.call} has no # SYNC: comment; add one, or "
                f"list it in scripts/sync_sites.py"
            )


def _show_waits(waits: Sequence[Wait], steps: int) -> None:
    print(f"watched: {sum(wait.count for wait in waits)} waits in {steps} steps")
    for wait in waits:
        verdict = "allowed" if wait.allowed else "NOT ALLOWED"
        said = wait.comment or "no # SYNC: comment"
        print(f"  {wait.place}: {wait.count} times, {wait.most} in a step, {verdict}: {said}")


if __name__ == "__main__":
    sys.exit(main())
