"""`train ppo`: the learner put together with telemetry, and judged on hosts it has not seen.

Shape letters: E members.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from esper.leyline.protocols import PolicyProtocol, RewardProtocol
from esper.scripts.train_config import EVALUATION_SEED, PolicyName, Train
from esper.scripts.train_run import (
    RoundResult,
    RunResult,
    StageDiary,
    result_of,
    run_round,
    telemetry_of,
)
from esper.simic.agent.agent import PPOAgent
from esper.simic.client import ActingMode, SimicClient
from esper.simic.training.config import TrainingConfig
from esper.simic.training.history import RoundRecord
from esper.simic.training.vectorized import make_trainer
from esper.tasks.spec import TaskData, TaskSpec
from esper.tolaria.engine import VectorizedEngine

BASELINES: Final[tuple[PolicyName, ...]] = ("wait", "random", "heuristic")
LEARNED: Final = "ppo"
"""Its likeliest actions."""
SAMPLED: Final = "ppo, sampled"
"""Actions drawn as while learning, without exploration."""


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """What policies did with the same fresh members."""

    by_policy: dict[str, RoundResult]
    """In the order they are shown; `LEARNED` first."""
    result: RunResult
    """The learned policy's, as for policies that do not learn."""


@dataclass(frozen=True, slots=True, eq=False)
class Learnt:
    """A run of the learner and its judgement."""

    agent: PPOAgent
    training: TrainingConfig
    history: list[RoundRecord]
    judged: Judged


def learn(config: Train) -> Learnt:
    """Train the controller, keep it, judge it."""
    training, spec = config.training_config(), config.spec()
    data = spec.load(config.data_dir)
    trainer = make_trainer(training, spec=spec, data=data)
    with telemetry_of(config, trainer.engine) as telemetry:
        trainer.listen(telemetry.listeners)
        history = trainer.run()
    agent = trainer.client.agent
    agent.save(config.out / f"train_ppo_{config.task_name}_agent")
    judged = judge(config, training, agent, spec, data)
    told = replace(judged.result, telemetry=telemetry.told(config))
    return Learnt(agent, training, history, replace(judged, result=told))


def judge(
    config: Train, training: TrainingConfig, agent: PPOAgent, spec: TaskSpec, data: TaskData
) -> Judged:
    """One episode of each policy on the same fresh members, drawn from `EVALUATION_SEED`."""
    reward = training.reward.build(spec)
    engine_config = replace(
        training.engine_config(),
        members=config.evaluation_envs,
        seed=EVALUATION_SEED,
        rollout_steps=None,
    )
    found: dict[str, RoundResult] = {}
    result: RunResult | None = None
    for name, make in _policies(config, agent, spec, reward).items():
        diary = StageDiary()
        engine = VectorizedEngine(spec, engine_config, diary, data)
        found[name] = run_round(engine, make(), diary)
        result = result or result_of(engine, [found[name]], diary, "")
    assert result is not None  # the learned policy is always among them
    return Judged(found, result)


def _policies(
    config: Train, agent: PPOAgent, spec: TaskSpec, reward: RewardProtocol
) -> dict[str, Callable[[], PolicyProtocol[Any]]]:
    """By name, each made when its turn comes; the learned one first."""
    learned: dict[str, Callable[[], PolicyProtocol[Any]]] = {
        LEARNED: lambda: SimicClient(agent, reward, ActingMode.GREEDY),
        SAMPLED: lambda: SimicClient(agent, reward, ActingMode.SAMPLE),
    }
    others = {name: replace(config, policy=name) for name in BASELINES}
    return learned | {
        name: lambda other=other: other.make_policy(spec, reward) for name, other in others.items()
    }
