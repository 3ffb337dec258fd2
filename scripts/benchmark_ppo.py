"""Benchmarks the PPO agent without a population: T acts of E members, then one update.

    python scripts/benchmark_ppo.py                    E=64, S=5, T=50, 4 epochs on the CPU
    python scripts/benchmark_ppo.py --device cuda
    python scripts/benchmark_ppo.py --device cuda --no-act-graphs     eager acting
    python scripts/benchmark_ppo.py --device cuda --compile           compiled update

Observations and masks are random, with every operation legal for some member, so that all heads are
computed at every step (the worst case). The first round warms up (capture, compilation); it is
printed separately and not counted.
"""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from esper.leyline.errors import EsperError
from esper.scripts.cli.command import run_command

if TYPE_CHECKING:
    import numpy as np

    from esper.leyline.masks import ActionMasks
    from esper.simic.agent import PPOAgent, RolloutBuffer
    from esper.tamiyo import Observation


@dataclass(frozen=True, slots=True)
class BenchmarkPPO:
    """Time the PPO agent without a population."""

    device: str = "cpu"
    """torch device."""
    threads: int = 1
    """torch CPU threads; more than one helps little on small tensors."""
    members: int = 64
    """E."""
    slots: int = 5
    """S."""
    steps: int = 50
    """T."""
    epochs: int = 4
    """Epochs over the rollout."""
    minibatches: int = 4
    """Minibatches per epoch."""
    blueprints: int = 8
    """Number of blueprints."""
    global_features: int = 60
    """Features per member."""
    slot_features: int = 40
    """Features per slot."""
    candidate_features: int = 9
    """Features per slot and blueprint."""
    rounds: int = 7
    """Timed rounds."""
    act_graphs: bool = True
    """Replay acting as CUDA graphs."""
    compile: bool = False
    """Compile the minibatch computation of the update; compile time shows in the first round."""
    out: Path = Path("out/benchmark_ppo.json")
    """All numbers."""

    def check(self) -> None:
        """Check the settings."""
        sizes = ("threads", "members", "slots", "steps", "epochs", "minibatches", "blueprints")
        for name in (*sizes, "global_features", "slot_features", "candidate_features", "rounds"):
            if getattr(self, name) < 1:
                flag = name.replace("_", "-")
                raise EsperError(f"--{flag} {getattr(self, name)}: must be 1 or more")


def main() -> int:
    """Entry point of the command."""
    return run_command(BenchmarkPPO, benchmark)


def benchmark(config: BenchmarkPPO) -> None:
    """Time the rounds, print their median, write the numbers."""
    config.check()
    from esper.storage.atomic import require_writable, write_atomic

    require_writable(config.out, "--out")

    import torch

    from build_times import count_builds
    from esper.simic.agent import PPOAgent, PPOConfig
    from esper.tamiyo import PolicySpec
    from esper.tolaria.device_info import describe_device
    from esper.tolaria.runtime import parse_device

    device = parse_device(config.device)
    torch.set_num_threads(config.threads)
    spec = PolicySpec(config.global_features, config.slot_features, config.candidate_features)
    settings = PPOConfig(epochs=config.epochs, minibatches=config.minibatches, target_kl=None)
    agent = PPOAgent(spec, settings, device=device)
    sizes = (config.steps, config.members, config.slots, config.blueprints)
    rollout = agent.make_buffer(*sizes)
    parameters = sum(p.numel() for p in agent.network.parameters())
    setting = describe_device(device) | {"parameters": str(parameters)}
    print("; ".join(f"{name}: {value}" for name, value in setting.items()), flush=True)
    _choose(config, agent)
    spent_before = _compile_seconds()
    with count_builds(device) as builds:
        first, *timed = [_time_round(config, agent, rollout, r) for r in range(1 + config.rounds)]
    compiling = _compiling(spent_before, _compile_seconds()) if config.compile else None
    act, update = ([pair[i] for pair in timed] for i in range(2))
    replayed = _replayed(agent)
    print(f"act: {replayed['how']}; update: {'compiled' if config.compile else 'eager'}")
    print(f"first   act {first[0]:.3f} s, update {first[1]:.3f} s (not counted)")
    print(f"built   kernels of Triton: {builds.line()}; {_compile_text(config, compiling)}")
    for name, seconds in (("act", act), ("update", update), ("both", list(map(sum, timed)))):
        print(
            f"{name:<7} {statistics.median(seconds):.4f} s "
            f"({min(seconds):.4f} to {max(seconds):.4f}, n={len(seconds)})"
        )
    record = {
        "setting": setting,
        "act_graphs": replayed,
        "compiled": config.compile,
        "compile_seconds": compiling,
        "kernel_builds": asdict(builds),
        "first_round": {"act_seconds": first[0], "update_seconds": first[1]},
        "act_seconds": act,
        "update_seconds": update,
    }
    write_atomic(config.out, (json.dumps(record, indent=1) + "\n").encode())
    print(f"numbers: {config.out}")


def _choose(config: BenchmarkPPO, agent: PPOAgent) -> None:
    """Apply the graph and compile settings to an agent."""
    import torch

    if not config.act_graphs:
        agent.use_graphs(None)
    if config.compile:
        network = agent.network
        setattr(network, "unroll", torch.compile(network.unroll))  # noqa: B010  only this network's


def _replayed(agent: PPOAgent) -> dict[str, str | float]:
    """Whether acting was replayed, why, and how often."""
    if agent.graphs is None:
        return {"how": "eager, without graphs"}
    report = agent.graphs.report()
    return {"how": f"graphs {report.line()}", **asdict(report)}


def _compile_seconds() -> float | None:
    """Time of torch.compile in this process; None if torch does not report it."""
    try:
        from torch._dynamo.utils import calculate_time_spent

        return float(calculate_time_spent()["total_wall_time"])
    except (ImportError, KeyError, TypeError, ValueError):
        return None


def _compiling(before: float | None, now: float | None) -> float | None:
    """Seconds spent in torch.compile; None if torch does not report it."""
    return None if before is None or now is None else now - before


def _compile_text(config: BenchmarkPPO, compiling: float | None) -> str:
    """Compile time as text."""
    if not config.compile:
        return "torch.compile not used"
    return f"torch.compile {'time unknown' if compiling is None else f'{compiling:.1f} s'}"


def _time_round(
    config: BenchmarkPPO, agent: PPOAgent, rollout: RolloutBuffer, round_index: int
) -> tuple[float, float]:
    """Seconds of acting (including the buffer) and of the update."""
    from time import perf_counter

    import numpy as np

    from esper.simic.training.runner import run_ppo_updates

    rng = np.random.default_rng(round_index)
    seen = [_noise(config, rng) for _ in range(config.steps)]
    reward_TE = rng.normal(size=(config.steps, config.members))
    over_TE = np.zeros(reward_TE.shape, dtype=bool)
    over_TE[-1] = True
    state = agent.initial_state(config.members)
    start = perf_counter()
    for step, (obs, masks) in enumerate(seen):
        act = agent.act(obs, masks, state, round_index, step)
        rollout.record(act.trace)
        rollout.reward(reward_TE[step], over_TE[step])
        state = act.state
    middle = perf_counter()
    run_ppo_updates(agent, 1, rollout, agent.obs_normalizer)  # synchronises to read its metrics
    return middle - start, perf_counter() - middle


def _noise(config: BenchmarkPPO, rng: np.random.Generator) -> tuple[Observation, ActionMasks]:
    """Random observation and masks of a step."""
    import numpy as np

    from esper.leyline.actions import LifecycleOp
    from esper.leyline.masks import ActionMasks
    from esper.tamiyo.inputs import FIXED_CHOICES, FIXED_SIZES, Observation

    members, slots, ops = config.members, config.slots, len(LifecycleOp)
    pairs = (members, slots, config.blueprints)
    obs = Observation(
        rng.normal(size=(members, config.global_features)).astype(np.float32),
        rng.normal(size=(members, slots, config.slot_features)).astype(np.float32),
        rng.normal(size=(*pairs, config.candidate_features)).astype(np.float32),
        rng.integers(-1, config.blueprints, size=(members, slots)),
    )
    slot_EOS = rng.random((members, ops, slots)) < 0.5
    op_EO = np.asarray(slot_EOS.any(axis=2))
    op_EO[:, LifecycleOp.WAIT] = True
    blueprint_ESK = np.ones((members, slots, config.blueprints), dtype=bool)
    fixed = np.split(np.ones(FIXED_CHOICES, dtype=bool), np.cumsum(FIXED_SIZES)[:-1])
    return obs, ActionMasks(op_EO, slot_EOS, blueprint_ESK, *fixed)


if __name__ == "__main__":
    sys.exit(main())
