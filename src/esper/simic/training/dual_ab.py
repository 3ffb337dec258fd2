"""Which of two rewards teaches better? Both are trained in lockstep on the same seeds.

    found = dual_ab(config, RewardConfig(), RewardConfig(mode="shaped"))
    found.judged()                     # the score of b minus that of a, with its 95 % interval

Hosts, batches, first weights and random draws of the two runs are the same; only the pay differs,
and what is compared is the score, never the pay. A reward against itself differs by exactly 0.

Shape letters: U rounds, E members, N members that judge.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from esper.leyline.arrays import ArrayStruct, Doubles
from esper.leyline.errors import EsperError
from esper.leyline.seeds import require_training_seed
from esper.leyline.statistics import t_interval
from esper.leyline.streams import stream_seed
from esper.simic.client import ActingMode, SimicClient
from esper.simic.rewards.config import RewardConfig
from esper.simic.training.baseline import SEED_BITS
from esper.simic.training.config import TrainingConfig
from esper.simic.training.runs.checkpoints import whole_rounds
from esper.simic.training.vectorized import make_trainer
from esper.simic.training.vectorized_trainer import VectorizedPPOTrainer
from esper.tasks.spec import TaskData, TaskSpec
from esper.tolaria.engine import VectorizedEngine


@dataclass(frozen=True, slots=True)
class Difference:
    """How far b is ahead of a, in score."""

    mean: float
    low: float
    """Lower end of the 95 % interval of Student's t; NaN where one value says nothing of spread."""
    high: float
    count: int
    """Pairs the interval is over."""
    over: Literal["members", "training seeds"]
    """What a pair is: a member met by both controllers, or two whole trainings on one seed."""


@dataclass(frozen=True, slots=True, eq=False)
class Pair(ArrayStruct):
    """Two trainings on one seed."""

    seed: int
    score_a_UE: Doubles
    """At the end of each member's episode, while learning."""
    score_b_UE: Doubles
    judged_a_N: Doubles
    """Score of the likeliest actions on fresh members, once trained."""
    judged_b_N: Doubles

    @property
    def learning_UE(self) -> Doubles:
        """b minus a while learning: the same member of the same round, in pairs."""
        return self.score_b_UE - self.score_a_UE

    @property
    def judged_N(self) -> Doubles:
        """b minus a on the same fresh members."""
        return self.judged_b_N - self.judged_a_N


@dataclass(frozen=True, slots=True, eq=False)
class DualAB:
    """What two rewards came to."""

    reward_a: RewardConfig
    reward_b: RewardConfig
    evaluation_seed: int
    """What the fresh members were drawn from."""
    pairs: tuple[Pair, ...]
    """One for each training seed."""

    @property
    def learning_scores(self) -> tuple[float, float]:
        """Mean score of a and of b while learning."""
        return (
            float(np.mean([pair.score_a_UE for pair in self.pairs])),
            float(np.mean([pair.score_b_UE for pair in self.pairs])),
        )

    @property
    def judged_scores(self) -> tuple[float, float]:
        """Mean score of a and of b on fresh members."""
        return (
            float(np.mean([pair.judged_a_N for pair in self.pairs])),
            float(np.mean([pair.judged_b_N for pair in self.pairs])),
        )

    def judged(self) -> Difference:
        """On fresh members, after training: the answer.

        Over training seeds where there are several; of a single one only the members can be
        counted, and the interval says nothing about another training.
        """
        return _difference([pair.judged_N for pair in self.pairs])

    def learning(self) -> Difference:
        """Over the whole of training, in pairs; with several seeds, over seeds."""
        return _difference([pair.learning_UE.mean(axis=0) for pair in self.pairs])


def dual_ab(
    config: TrainingConfig,
    reward_a: RewardConfig,
    reward_b: RewardConfig,
    *,
    repeats: int = 1,
    evaluation_seed: int | None = None,
    evaluation_envs: int = 16,
    spec: TaskSpec | None = None,
    data: TaskData | None = None,
    on_round: Callable[[int, int, tuple[float, float]], None] | None = None,
) -> DualAB:
    """Train under both rewards, round by round in turn, on `repeats` seeds from the config's on.

    `evaluation_seed`: fresh members are drawn from it, so it may not be trained on; where none is
    given, it is a stream of the config's seed. `on_round` is told the repeat, the round and both
    mean scores.
    """
    for name, value in (("repeats", repeats), ("evaluation_envs", evaluation_envs)):
        if value < 1:
            raise EsperError(f"dual_ab {name}={value}: must be 1 or more")
    if evaluation_seed is None:
        evaluation_seed = stream_seed(config.seed, "dual_ab evaluation") & SEED_BITS
    seeds = range(config.seed, config.seed + repeats)
    for seed in seeds:
        require_training_seed(seed, "dual_ab seed")
    if evaluation_seed in seeds:
        raise EsperError(
            f"dual_ab trains on seeds {seeds.start} to {seeds.stop - 1}, and {evaluation_seed} is "
            f"kept for evaluation: take another seed"
        )
    spec = spec or config.task.spec()
    data = data if data is not None else spec.load()
    pairs = []
    for repeat, seed in enumerate(seeds):
        trainers = [
            make_trainer(replace(config, seed=seed, reward=reward), spec=spec, data=data)
            for reward in (reward_a, reward_b)
        ]
        _train_in_lockstep(trainers, repeat, on_round)
        judged = [
            _judge(trainer, spec, data, evaluation_seed, evaluation_envs) for trainer in trainers
        ]
        learnt = [np.stack([r.score_E for r in whole_rounds(t.history)]) for t in trainers]
        pairs.append(Pair(seed, *learnt, *judged))
    return DualAB(reward_a, reward_b, evaluation_seed, tuple(pairs))


def _train_in_lockstep(
    trainers: list[VectorizedPPOTrainer],
    repeat: int,
    on_round: Callable[[int, int, tuple[float, float]], None] | None,
) -> None:
    """A round of each, then the next: a run that is ended early has gone as far with both."""
    for round_index in range(trainers[0].rounds):
        for trainer in trainers:
            trainer.run(until=round_index + 1)
        if on_round is not None:
            a, b = (trainer.history[-1].mean_score for trainer in trainers)
            on_round(repeat, round_index, (a, b))


def _judge(
    trainer: VectorizedPPOTrainer, spec: TaskSpec, data: TaskData, seed: int, members: int
) -> Doubles:
    """Score `[N]` of a trained controller's likeliest actions on fresh members."""
    config = replace(trainer.engine.config, seed=seed, members=members, rollout_steps=None)
    client = SimicClient(trainer.client.agent, trainer.client.reward, ActingMode.GREEDY)
    return VectorizedEngine(spec, config, data=data).run_rollout(client).outcome.score_E


def _difference(by_seed: list[Doubles]) -> Difference:
    if len(by_seed) > 1:
        values = np.array([values_N.mean() for values_N in by_seed])
        mean, low, high = (float(end) for end in t_interval(values))
        return Difference(mean, low, high, len(values), "training seeds")
    mean, low, high = (float(end) for end in t_interval(by_seed[0]))
    return Difference(mean, low, high, len(by_seed[0]), "members")
