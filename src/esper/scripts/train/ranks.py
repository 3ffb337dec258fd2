"""`esper train ppo` as one rank of a `torchrun` job.

    torchrun --nproc-per-node 4 -m esper.scripts.train ppo --task cifar_baseline --envs 128

Rank 0 reads the command line, opens the run folder, prints and reports; the others get the settings
from it, load the data and train their members. Errors of any rank end all of them with one line
from rank 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from esper.leyline.codec import read_record, to_json
from esper.leyline.errors import EsperError, shown
from esper.scripts.cli.command import REFUSED
from esper.scripts.train.learner import learn
from esper.scripts.train.learner_config import TrainPPO, read_train_ppo
from esper.scripts.train.learner_report import report_learner
from esper.scripts.train.restarts import JobNote, this_agent
from esper.simic.distributed.world import World, join_world
from esper.simic.training.config import TrainingConfig
from esper.simic.training.runs.interrupts import Interrupted
from esper.simic.training.vectorized import train_ppo_vectorized

if TYPE_CHECKING:
    from esper.tasks.spec import TaskSpec


def train_on_ranks(flags: Sequence[str]) -> None:
    """Run `esper train ppo` together with the other ranks of the job."""
    with join_world() as world, _only_rank_0_speaks(world):
        _require_same_command(world, flags)
        agents = frozenset(one.decode() for one in world.gather_bytes(this_agent().encode()))
        if world.rank:
            _follow(world)
        else:
            _lead(world, flags, agents)


def _lead(world: World, flags: Sequence[str], agents: frozenset[str]) -> None:
    """Rank 0: read the settings, train, evaluate, report; `agents`: of all ranks."""
    config, spec, note = world.together(lambda: _read(flags, agents))
    place = None if config.data_dir is None else str(config.data_dir)
    settings = {"training": to_json(config.training), "data_dir": place}
    world.broadcast_bytes(json.dumps(settings).encode())
    world.together(lambda: None)  # the others check the settings
    data = world.together(lambda: spec.load(config.data_dir))
    try:
        with learn(config, spec, data, world, note.keep) as learnt:
            report_learner(config, learnt)
        note.forget()
    finally:
        if note.run() is None:  # it failed before training: nothing to resume
            note.forget()


def _read(flags: Sequence[str], agents: frozenset[str]) -> tuple[TrainPPO, TaskSpec, JobNote]:
    """Settings, task and note of the job; a restarted job resumes its run."""
    config = read_train_ppo(flags)
    if config.dry_run:
        raise EsperError("--dry-run under torchrun: run it alone, with the --envs of one rank")
    spec = config.check()
    note = JobNote(config.runs, agents)
    begun = note.run()
    return (config if begun is None else replace(config, resume=begun)), spec, note


def _follow(world: World) -> None:
    """Any other rank: train."""
    world.together(lambda: None)  # rank 0 reads the settings
    settings = json.loads(world.broadcast_bytes(b""))
    training = read_record(TrainingConfig, settings["training"], "rank 0's settings")
    place = None if settings["data_dir"] is None else Path(settings["data_dir"])
    spec = world.together(training.check)
    data = world.together(lambda: spec.load(place))
    train_ppo_vectorized(training, spec=spec, data=data, world=world)


def _require_same_command(world: World, flags: Sequence[str]) -> None:
    lead = json.loads(world.broadcast_bytes(json.dumps(list(flags)).encode()))

    def require_equal() -> None:
        if lead != list(flags):
            mine = sorted(set(flags) - set(lead)) or "fewer flags"
            raise EsperError(
                f"its command line differs from rank 0's (has {shown(mine)}): start every rank "
                f"with the same one"
            )

    world.together(require_equal)


@contextmanager
def _only_rank_0_speaks(world: World) -> Iterator[None]:
    """End the other ranks without a line: rank 0 says what happened."""
    try:
        yield
    except EsperError:
        if world.rank:
            raise SystemExit(REFUSED) from None
        raise
    except Interrupted:
        if not world.rank:
            raise
