"""`train_ppo_vectorized`, the entry point of PPO training and the only place that assembles a run.

`make_trainer` builds engine, agent, client and trainer from a config; a run folder adds
checkpoints, resume and stop signals; sinks add telemetry. `esper train ppo` calls it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from esper.leyline.codec import read_record, to_json
from esper.leyline.errors import EsperError, shown
from esper.leyline.telemetry import TelemetryConfig
from esper.simic.rewards.own import recorded
from esper.simic.training.config import TrainingConfig
from esper.simic.training.runs.folder import RunFolder
from esper.simic.training.runs.policy_file import LEARNER
from esper.storage.sealed_json import differences
from esper.tasks.task_files import is_file_reference

if TYPE_CHECKING:
    from esper.leyline.protocols import EngineListener, RewardProtocol, SinkProtocol
    from esper.nissa.hub import TelemetryHub
    from esper.simic.agent.agent import PPOAgent
    from esper.simic.distributed.ranks import Ranks
    from esper.simic.distributed.world import World
    from esper.simic.telemetry.run_telemetry import RunTelemetry
    from esper.simic.training.history import RoundRecord
    from esper.simic.training.round_feed import OnRound, RoundFeed
    from esper.simic.training.runs.resume import Resumed
    from esper.simic.training.runs.session import FolderSession
    from esper.simic.training.vectorized_trainer import RoundHook, VectorizedPPOTrainer
    from esper.tasks.spec import TaskSpec
    from esper.tasks.task_data import TaskData
    from esper.tolaria.engine_config import EngineConfig

# torch is imported inside the functions: reading settings and listing runs stay quick.


def train_ppo_vectorized(
    config: TrainingConfig | None = None,
    *,
    run_dir: Path | RunFolder | None = None,
    resume: bool = False,
    sinks: Sequence[SinkProtocol] | TelemetryHub = (),
    telemetry: TelemetryConfig | None = None,
    checkpoint_every: int | None = None,
    keep: int | None = None,
    keep_members: int | None = None,
    reward: RewardProtocol | None = None,
    listeners: Sequence[EngineListener] = (),
    hooks: Sequence[RoundHook] = (),
    on_begin: Callable[[Resumed | None], None] | None = None,
    on_round: OnRound | None = None,
    track: Sequence[str] = (),
    spec: TaskSpec | None = None,
    data: TaskData | None = None,
    world: World | None = None,
) -> tuple[PPOAgent, list[RoundRecord]]:
    """Train a controller with PPO; returns the agent and one record per round.

    run_dir: folder to create, or an open `RunFolder` (a stop signal: save, raise `Interrupted`).
    resume: continue from the newest valid checkpoint; `config=None` uses the run's saved config.
    sinks, telemetry: event sinks and recording level; events also go to the process-wide hub.
    checkpoint_every, keep: rounds between checkpoints, and how many are kept besides the best.
    keep_members: best members of all rounds that are kept as networks (3); 0: none.
    listeners, hooks: notified of every step and rollout; called after every round.
    on_begin: called before the first round; its argument is None unless the run was resumed.
    on_round: called with the record of every round, once it is saved; what it raises ends the run.
    track: trackers that get the figures of every round: tensorboard, wandb, mlflow.
    reward, spec, data: override the config's reward (recorded by name), task and the task's data.
    world: the processes that train together (`join_world`); only rank 0 writes and calls.

    >>> from esper.simic.training.config import PopulationConfig, TaskConfig
    >>> task = TaskConfig("synthetic", episode_length=4, batches_per_step=1)
    >>> config = TrainingConfig(task, PopulationConfig(envs=2, device="cpu"), rounds=1)
    >>> agent, history = train_ppo_vectorized(config)
    >>> agent.updates_done, history[0].steps
    (1, 4)
    """
    from esper.simic.training.round_feed import RoundFeed
    from esper.simic.training.runs.session import FolderSession

    if world is not None and world.rank:
        return _follow(world, config, reward, spec, data)
    with _open_folder(run_dir, resume, _recorded(config, reward)) as folder:
        config, spec = _config_and_spec(config, spec, folder if resume else None, world, reward)
        kept = (checkpoint_every, keep, keep_members)
        session = None if folder is None else FolderSession(folder, config, resume, *kept)
        feed = RoundFeed(config, on_round, track, folder)
        recording = _telemetry(config, spec, sinks, telemetry, session)
        with _live_record(folder, config.rounds) as live, feed, recording as events:
            saves, stops = ((), ()) if session is None else (session.hooks, (session.interrupts,))
            hooks = [*saves, *hooks, feed, *stops]
            listeners = [*listeners, *events.listeners, *stops, *live]
            trainer = make_trainer(config, reward, listeners, hooks, spec, data, world)
            return _train(trainer, session, events, feed, on_begin)


def _telemetry(
    config: TrainingConfig,
    spec: TaskSpec,
    sinks: Sequence[SinkProtocol] | TelemetryHub,
    telemetry: TelemetryConfig | None,
    session: FolderSession | None,
) -> contextlib.AbstractContextManager[RunTelemetry]:
    from esper.device.selection import parse_device
    from esper.simic.telemetry.run_telemetry import run_telemetry

    tally = None if session is None else session.tally
    device, level = parse_device(config.population.device), telemetry or TelemetryConfig()
    return run_telemetry(sinks, level, spec, device, config.rounds, tally)


@contextlib.contextmanager
def _live_record(folder: RunFolder | None, rounds: int) -> Iterator[list[EngineListener]]:
    """Keep the live record of a run folder; listeners that fill it."""
    from esper.simic.telemetry.live import LiveProgress

    if folder is None:
        yield []
        return
    live = LiveProgress(rounds, "updating the controller")
    with live.written_to(folder.path):
        yield [live]


def _recorded(config: TrainingConfig | None, reward: RewardProtocol | None) -> TrainingConfig:
    """The settings with the name of a reward that the caller passes; None: the defaults."""
    config = config or TrainingConfig()
    return replace(config, reward=recorded(config.reward, reward))


def _train(
    trainer: VectorizedPPOTrainer,
    session: FolderSession | None,
    events: RunTelemetry,
    feed: RoundFeed,
    on_begin: Callable[[Resumed | None], None] | None,
) -> tuple[PPOAgent, list[RoundRecord]]:
    """Resume if asked to, notify everybody of the start, and train."""
    resumed = None if session is None else session.begin(trainer)
    trainer.share_progress()
    feed.begin(trainer.history)
    events.run_started(trainer.engine, LEARNER, trainer.members)
    if on_begin is not None:
        on_begin(resumed)
    history = trainer.run() if session is None else session.run(trainer)
    return trainer.client.agent, history


def _follow(
    world: World,
    config: TrainingConfig | None,
    reward: RewardProtocol | None,
    spec: TaskSpec | None,
    data: TaskData | None,
) -> tuple[PPOAgent, list[RoundRecord]]:
    """Train on a rank other than 0: nothing is written, recorded or called."""
    from esper.simic.training.runs.interrupts import Interrupts

    config = _agree_on_config(world, config)
    stops = Interrupts()
    trainer = make_trainer(config, reward, [stops], [stops], spec, data, world)
    trainer.share_progress()
    with stops:
        history = trainer.run()
    return trainer.client.agent, history


def make_trainer(
    config: TrainingConfig | None = None,
    reward: RewardProtocol | None = None,
    listeners: Sequence[EngineListener] = (),
    hooks: Sequence[RoundHook] = (),
    spec: TaskSpec | None = None,
    data: TaskData | None = None,
    world: World | None = None,
) -> VectorizedPPOTrainer:
    """Build engine, agent, client and trainer, for callers that drive the rounds themselves.

    `world`: the processes that train together; this one gets its share of the members.
    """
    from esper.simic.agent.agent import PPOAgent
    from esper.simic.client import SimicClient, policy_spec
    from esper.simic.distributed.ranks import SINGLE_PROCESS
    from esper.simic.training.distributed_trainer import DistributedTrainer
    from esper.simic.training.vectorized_trainer import VectorizedPPOTrainer
    from esper.tolaria.engine import VectorizedEngine

    config, ranks = config or TrainingConfig(), world or SINGLE_PROCESS
    given = spec  # all ranks take part, whether it was given or not
    spec = ranks.together(lambda: given or config.task.spec())
    settings = ranks.together(lambda: _own_engine_config(config, ranks))
    engine = ranks.together(lambda: VectorizedEngine(spec, settings, data=data))
    agent = PPOAgent(
        policy_spec(spec.context.restarts), config.ppo, config.seed, engine.device, ranks
    )
    config.population.configure_graphs(agent)
    client = SimicClient(
        agent,
        reward or _reward(config, spec, data, settings, ranks),
        updates_per_rollout=config.updates_per_rollout,
        use_amp=config.use_amp,
    )
    if world is not None:
        share = config.cut_stragglers
        return DistributedTrainer(world, engine, client, config.rounds, listeners, hooks, share)
    return VectorizedPPOTrainer(engine, client, config.rounds, listeners, hooks)


def _reward(
    config: TrainingConfig,
    spec: TaskSpec,
    data: TaskData | None,
    settings: EngineConfig,
    ranks: Ranks,
) -> RewardProtocol:
    """Build the config's reward; measures the wait baseline if the reward needs it."""
    from esper.simic.rewards.factory import make_reward
    from esper.simic.training.baseline import measure_wait_baseline

    curve = None
    if config.reward.wait_baseline:
        curve = measure_wait_baseline(spec, settings, data, ranks)
    return make_reward(config.reward, spec.upkeep, curve)


@contextlib.contextmanager
def _open_folder(
    run_dir: Path | RunFolder | None, resume: bool, config: TrainingConfig
) -> Iterator[RunFolder | None]:
    """The folder of the run, locked; one that the caller opened stays open."""
    if run_dir is None:
        if resume:
            raise EsperError("resume=True without run_dir: name the folder of the run")
        yield None
        return
    if isinstance(run_dir, RunFolder):
        yield run_dir
        return
    opened = RunFolder.open(run_dir) if resume else RunFolder.create_at(run_dir, config)
    with opened:
        yield opened


def _config_and_spec(
    config: TrainingConfig | None,
    spec: TaskSpec | None,
    resumed: RunFolder | None,
    world: World | None,
    reward: RewardProtocol | None,
) -> tuple[TrainingConfig, TaskSpec]:
    """What is trained; `resumed`: the folder whose settings are the defaults."""
    given = config or reward
    config = config or (TrainingConfig() if resumed is None else resumed.config)
    if world is not None:
        config = _agree_on_config(world, config)
    if resumed is None:
        return _recorded(config, reward), spec or config.task.spec()
    if spec is None and is_file_reference(config.task.name):
        # A run folder may come from others: code it names runs only if the caller asks for it.
        raise EsperError(
            f"{resumed.path} names the task file {shown(config.task.name, 200)}: to run its code, "
            f"give spec=config.task.spec()"
        )
    if given is None and is_file_reference(config.reward.own):
        raise EsperError(
            f"{resumed.path} names the reward {shown(config.reward.own, 200)}: to run its code, "
            f"give config= of the run"
        )
    return _recorded(config, reward), spec or config.task.spec()


# ---- ranks: all have the same settings, each its share of the members ---------------------------


def _own_engine_config(config: TrainingConfig, ranks: Ranks) -> EngineConfig:
    """Engine settings of this rank: its members by their numbers in the run, its device."""
    settings = config.engine_config()
    members = ranks.share_members(settings.members)
    device = ranks.device_of(settings.device)
    if ranks.size == 1:
        return replace(settings, device=device)
    numbers = tuple(ranks.numbers(members).tolist())  # SYNC: an array of numpy, at set-up
    return replace(settings, members=members, member_ids=numbers, device=device)


def _agree_on_config(world: World, config: TrainingConfig | None) -> TrainingConfig:
    """The settings of rank 0, on every rank; raises if a rank was given others."""
    mine = json.dumps(None if config is None else to_json(config)).encode()
    lead = read_record(TrainingConfig, json.loads(world.broadcast_bytes(mine)), "rank 0's settings")
    world.together(lambda: _require_equal(lead, lead if config is None else config))
    return lead


def _require_equal(lead: TrainingConfig, own: TrainingConfig) -> None:
    found = [*map(str, differences(to_json(lead), to_json(own)))]
    if found:
        raise EsperError(
            f"settings differ from rank 0's ({'; '.join(found)}): start every rank with the same "
            f"ones"
        )
