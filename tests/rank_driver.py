"""One rank of a distributed job of the tests: `python rank_driver.py JOB OUT`.

Jobs are functions of this module; `run_ranks` starts one process per rank and returns what each of
them left in its file. Rank, size and port come from the environment, as under torchrun.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def run_ranks(job: str, size: int, out: Path, **settings: Any) -> list[dict[str, Any]]:
    """Run a job on `size` ranks and return the results of all."""
    done = [process.wait(timeout=300) for process in start_ranks(job, size, out, **settings)]
    assert done == [0] * size, [(out / f"{rank}.err").read_text() for rank in range(size)]
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(size)]


def start_ranks(job: str, size: int, out: Path, **settings: Any) -> list[subprocess.Popen[bytes]]:
    out.mkdir(parents=True, exist_ok=True)
    (out / "settings.json").write_text(json.dumps(settings))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return [_start(job, out, rank_environment(rank, size, port), rank) for rank in range(size)]


def rank_environment(rank: int, size: int, port: int) -> dict[str, str]:
    mine = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
    return os.environ | {name: str(value) for name, value in (mine | place).items()}


def _start(job: str, out: Path, environment: Mapping[str, str], rank: int) -> Any:
    path = os.pathsep.join([str(HERE), str(HERE.parent / "src")])
    with (out / f"{rank}.err").open("wb") as errors:
        words = [sys.executable, str(HERE / "rank_driver.py"), job, str(out)]
        return subprocess.Popen(words, env={**environment, "PYTHONPATH": path}, stderr=errors)


# ---- jobs -------------------------------------------------------------------------------------


def train(world: Any, out: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Train a tiny controller; returns what the run computed."""
    from esper.simic.training.vectorized import make_trainer
    from loop_support import figures, tiny_config, tiny_task

    changes = settings.get("ppo", {})
    config = tiny_config(settings.get("rounds", 3), envs=settings["envs"], executor="loop")
    config = replace(config, ppo=replace(config.ppo, **changes))
    actions = Actions()
    spec = tiny_task(**settings.get("task", {}))
    trainer = make_trainer(config, listeners=[actions], spec=spec, world=world)
    history, agent = trainer.run(), trainer.client.agent
    return {
        "first_actions": actions.first,
        "weights": {n: p.detach().flatten().tolist() for n, p in agent.network.named_parameters()},
        "observation": {n: a.tolist() for n, a in agent.obs_normalizer.state().items()},
        "scale": agent.reward_normalizer.scale,
        "scores": [record.score_E.tolist() for record in history],
        "chosen": [record.chosen_O.tolist() for record in history],
        "metrics": [figures(record.metrics) for record in history],
    }


class Actions:
    """Listener that keeps the actions of round 0."""

    def __init__(self) -> None:
        self.first: list[list[list[int]]] = []

    def on_round_start(self, round_index, members): ...

    def on_slot_events(self, round_index, step, payload): ...

    def on_step(self, record):
        if record.signals.round_index == 0:
            actions = record.decision.actions
            self.first.append([actions.op.tolist(), actions.slot.tolist()])

    def on_round_end(self, rollout): ...


JOBS = {"train": train}


def main() -> None:
    from esper.simic.distributed import join_world, world_size

    job, out = sys.argv[1], Path(sys.argv[2])
    settings = json.loads((out / "settings.json").read_text())
    if world_size() == 1:
        result, rank = JOBS[job](None, out, settings), 0
    else:
        with join_world() as world:
            result, rank = JOBS[job](world, out, settings), world.rank
    (out / f"{rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
