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
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

HERE = Path(__file__).parent


def run_ranks(job: str, size: int, out: Path, **settings: Any) -> list[dict[str, Any]]:
    """Run a job on `size` ranks and return the results of all."""
    done = [process.wait(timeout=300) for process in start_ranks(job, size, out, **settings)]
    assert done == [0] * size, [(out / f"{rank}.err").read_text() for rank in range(size)]
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(size)]


def fork_ranks(job: str, size: int, out: Path, **settings: Any) -> list[dict[str, Any]]:
    """The same in copies of this process, which have imported all that it has."""
    port = _prepare(out, settings)
    children = [os.fork() or _rank_of_fork(job, out, rank, size, port) for rank in range(size)]
    done = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert done == [0] * size, [(out / f"{rank}.err").read_text() for rank in range(size)]
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(size)]


def _rank_of_fork(job: str, out: Path, rank: int, size: int, port: int) -> NoReturn:
    status = 1
    try:
        os.environ.update(rank_environment(rank, size, port))
        sys.argv = ["rank_driver.py", job, str(out)]
        main()
        status = 0
    except BaseException:
        (out / f"{rank}.err").write_text(traceback.format_exc())
    finally:
        os._exit(status)


def start_ranks(job: str, size: int, out: Path, **settings: Any) -> list[subprocess.Popen[bytes]]:
    port = _prepare(out, settings)
    return [_start(job, out, rank_environment(rank, size, port), rank) for rank in range(size)]


def _prepare(out: Path, settings: dict[str, Any]) -> int:
    """Write the settings; return a free port."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "settings.json").write_text(json.dumps(settings))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def rank_environment(rank: int, size: int, port: int) -> dict[str, str]:
    mine = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
    return os.environ | {name: str(value) for name, value in (mine | place).items()}


def _start(job: str, out: Path, environment: Mapping[str, str], rank: int) -> Any:
    given = environment.get("PYTHONPATH", "")
    path = os.pathsep.join([str(HERE), str(HERE.parent / "src"), *filter(None, [given])])
    with (out / f"{rank}.err").open("wb") as errors:
        argv = [sys.executable, str(HERE / "rank_driver.py"), job, str(out)]
        return subprocess.Popen(argv, env={**environment, "PYTHONPATH": path}, stderr=errors)


SHORT = {"episode_length": 4, "batches_per_step": 1, "batch_size": 16}
"""Settings of a task that is quick."""


# ---- jobs -------------------------------------------------------------------------------------


def train(world: Any, out: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Train a tiny controller; returns what the run computed."""
    from esper.leyline.context import ContextSpec
    from esper.simic.training.config import TaskConfig
    from esper.simic.training.vectorized import make_trainer
    from loop_support import figures, tiny_config, tiny_task

    changes = settings.get("ppo", {})
    people = {"envs": settings["envs"], "executor": "loop", "device": settings.get("device", "cpu")}
    config = tiny_config(settings.get("rounds", 3), **people)
    config = replace(config, ppo=replace(config.ppo, **changes))
    actions = Actions()
    spec = tiny_task(**settings.get("task", {}))
    if settings.get("restarts"):
        spec = replace(spec, context=ContextSpec(actions="grow+restart"))
    if settings.get("named"):
        config = replace(config, task=TaskConfig("synthetic", **SHORT))
        spec = config.task.spec() if world is None or world.rank == 0 else None
    trainer = make_trainer(config, listeners=[actions], spec=spec, world=world)
    history, agent = trainer.run(), trainer.client.agent
    found = {} if world is None else {"backend": backend_for(agent.device)}
    return found | {
        "first_actions": actions.first,
        "device": str(agent.device),
        "weights": {n: p.detach().flatten().tolist() for n, p in agent.network.named_parameters()},
        "observation": {n: a.tolist() for n, a in agent.obs_normalizer.state().items()},
        "scale": agent.reward_normalizer.scale,
        "scores": [record.score_E.tolist() for record in history],
        "chosen": [record.chosen_O.tolist() for record in history],
        "metrics": [figures(record.metrics) for record in history],
    }


def backend_for(device: Any) -> str:
    """What carries tensors of this device from rank to rank."""
    import torch.distributed as dist

    group = dist.distributed_c10d._get_default_group()
    return str(group._get_backend(device).name()).lower()


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


def pieces(world: Any, out: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Every collective once, and two updates on noise."""
    import numpy as np

    from esper.leyline import EsperError
    from esper.simic.distributed.ranks import moments

    members = world.share_members(7)
    own_E = world.numbers(members)
    found: dict[str, Any] = {"own": own_E.tolist()}
    found["gathered"] = world.gather(own_E * 2.5).tolist()
    found["nothing"] = world.gather(own_E[: world.rank]).tolist()
    found["moments"] = vars_of(moments(np.arange(7.0)[own_E] ** 2, world))
    found["said"] = world.broadcast_bytes(b"from one" if world.rank else b"", 1).decode()
    for name, error in (("failed", EsperError("no data")), ("stopped", KeyboardInterrupt("TERM"))):

        def work(error: BaseException = error) -> None:
            if world.rank == 1:
                raise error

        try:
            world.together(work)
        except (EsperError, KeyboardInterrupt) as raised:
            found[name] = str(raised)
            found[f"{name}_kind"] = type(raised).__name__
    for name, total in (("crowded", 1), ("fits", 2)):
        try:
            found[name] = world.share_members(total)
        except EsperError as raised:
            found[name] = str(raised)
    world.share_members(settings["members"])
    return found | update_on_noise(world, settings["members"], settings["ppo"])


def vars_of(record: Any) -> dict[str, float]:
    return {name: getattr(record, name) for name in record.__slots__}


def update_on_noise(ranks: Any, total: int, ppo: dict[str, Any]) -> dict[str, Any]:
    """Two updates of a small agent on the noise of `total` members, of which a rank has its share;
    only one member may germinate, so that most ranks do not see all heads."""
    import numpy as np

    from esper.leyline import LifecycleOp
    from esper.simic.training.runner import run_ppo_updates
    from loop_support import figures
    from ppo_support import OPS, K, S, agent, masks_for, random_obs, shaken

    it = shaken(agent(**ppo))
    it.ranks = ranks
    own = ranks.numbers(total if ranks.size == 1 else ranks.share_members(total))
    buffer = it.make_buffer(5, len(own), S, K)
    rng, metrics, actions = np.random.default_rng(0), [], []
    for round_index in range(2):
        state = it.initial_state(len(own))
        for step in range(5):
            obs = random_obs(rng, total)
            slot_EOS = np.ones((total, OPS, S), dtype=bool)
            slot_EOS[1:, LifecycleOp.GERMINATE] = False
            masks = masks_for(slot_EOS)
            reward_E, over_E = rng.normal(size=total), rng.random(total) < 0.2
            act = it.act(cut(obs, own), cut(masks, own), state, round_index, step)
            actions.append(act.decision.actions.op.tolist())
            buffer.record(act.trace)
            buffer.reward(reward_E[own], over_E[own])
            state = it.reset_state(act.state, over_E[own])
        buffer.finish(rng.normal(size=total)[own])
        metrics.append(figures(run_ppo_updates(it, 2, buffer, it.obs_normalizer)))
    return {
        "actions": actions,
        "weights": {n: p.detach().flatten().tolist() for n, p in it.network.named_parameters()},
        "observation": {n: a.tolist() for n, a in it.obs_normalizer.state().items()},
        "scale": it.reward_normalizer.scale,
        "metrics": metrics,
    }


def cut(struct: Any, own: Any) -> Any:
    """The same of some members."""
    from esper.leyline.arrays import map_member_arrays

    return map_member_arrays(struct, lambda array: array[own])


def straggle(world: Any, out: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Train with ranks that stall until they are cut; keeps what every update was made from."""
    from straggler_support import train_with_stragglers

    return train_with_stragglers(world, out, settings)


JOBS = {"train": train, "pieces": pieces, "straggle": straggle}


def main() -> None:
    from esper.simic.distributed import join_world, world_size

    job, out = sys.argv[1], Path(sys.argv[2])
    settings = json.loads((out / "settings.json").read_text())
    if world_size() == 1 and not settings.get("join"):
        result, rank = JOBS[job](None, out, settings), 0
    else:
        with join_world() as world:
            result, rank = JOBS[job](world, out, settings), world.rank
    (out / f"{rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
