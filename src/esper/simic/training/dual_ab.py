"""A/B comparison of two rewards: train both in lockstep on the same seeds.

    found = dual_ab(config, RewardConfig(), RewardConfig(mode="shaped"))
    found.judged()                     # score of b minus score of a, with a 95 % interval

Hosts, batches, initial weights and random draws of the two runs are identical; only the reward
differs. Scores are compared, not rewards. A reward against itself differs by exactly 0.

Shape letters: U rounds, E members, N evaluation members.
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
from esper.leyline.user_errors import user_callback
from esper.simic.client import ActingMode, SimicClient
from esper.simic.rewards.config import RewardConfig
from esper.simic.training.baseline import SEED_MASK
from esper.simic.training.config import TrainingConfig
from esper.simic.training.runs.checkpoints import completed_rounds
from esper.simic.training.vectorized import make_trainer
from esper.simic.training.vectorized_trainer import VectorizedPPOTrainer
from esper.tasks.spec import TaskSpec
from esper.tasks.task_data import TaskData
from esper.tolaria.engine import VectorizedEngine


@dataclass(frozen=True, slots=True)
class Difference:
    """Mean score of b minus that of a, with a confidence interval."""

    mean: float
    low: float
    """Lower end of the 95 % Student t interval; NaN with a single value."""
    high: float
    count: int
    """Number of pairs."""
    over: Literal["members", "training seeds"]
    """What a pair is: one member under both controllers, or two trainings on one seed."""


@dataclass(frozen=True, slots=True, eq=False)
class Pair(ArrayStruct):
    """Two trainings on one seed."""

    seed: int
    score_a_UE: Doubles
    """Training score at the end of each episode."""
    score_b_UE: Doubles
    judged_a_N: Doubles
    """Score of the greedy trained policy on fresh members."""
    judged_b_N: Doubles

    @property
    def learning_UE(self) -> Doubles:
        """Training score of b minus a, paired by round and member."""
        return self.score_b_UE - self.score_a_UE

    @property
    def judged_N(self) -> Doubles:
        """Evaluation score of b minus a, paired by member."""
        return self.judged_b_N - self.judged_a_N


@dataclass(frozen=True, slots=True, eq=False)
class DualAB:
    """Result of `dual_ab`."""

    reward_a: RewardConfig
    reward_b: RewardConfig
    evaluation_seed: int
    """Seed of the fresh members."""
    pairs: tuple[Pair, ...]
    """One per training seed."""

    @property
    def learning_scores(self) -> tuple[float, float]:
        """Mean training score of a and of b."""
        return (
            float(np.mean([pair.score_a_UE for pair in self.pairs])),
            float(np.mean([pair.score_b_UE for pair in self.pairs])),
        )

    @property
    def judged_scores(self) -> tuple[float, float]:
        """Mean evaluation score of a and of b."""
        return (
            float(np.mean([pair.judged_a_N for pair in self.pairs])),
            float(np.mean([pair.judged_b_N for pair in self.pairs])),
        )

    def judged(self) -> Difference:
        """Difference on fresh members after training: the main result.

        With several training seeds, the interval is over seeds. With one it is over members and
        does not cover the variation between trainings.
        """
        return _difference([pair.judged_N for pair in self.pairs])

    def learning(self) -> Difference:
        """Difference over all of training; the interval is over seeds if there are several."""
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
    """Train with both rewards, alternating rounds, on `repeats` seeds starting at the config's.

    `evaluation_seed`: seed of the fresh members, must not be a training seed; by default derived
    from the config's seed. `on_round` is called with the repeat, the round and both mean scores.
    """
    for name, value in (("repeats", repeats), ("evaluation_envs", evaluation_envs)):
        if value < 1:
            raise EsperError(f"dual_ab {name}={value}: must be 1 or more")
    if evaluation_seed is None:
        evaluation_seed = stream_seed(config.seed, "dual_ab evaluation") & SEED_MASK
    seeds = range(config.seed, config.seed + repeats)
    for seed in seeds:
        require_training_seed(seed, "dual_ab seed")
    if evaluation_seed in seeds:
        raise EsperError(
            f"dual_ab trains on seeds {seeds.start} to {seeds.stop - 1}, and {evaluation_seed} is "
            f"reserved for evaluation: take another seed"
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
        learnt = [np.stack([r.score_E for r in completed_rounds(t.history)]) for t in trainers]
        pairs.append(Pair(seed, *learnt, *judged))
    return DualAB(reward_a, reward_b, evaluation_seed, tuple(pairs))


def _train_in_lockstep(
    trainers: list[VectorizedPPOTrainer],
    repeat: int,
    on_round: Callable[[int, int, tuple[float, float]], None] | None,
) -> None:
    """Alternate rounds, so that both have trained equally long if the run is interrupted."""
    for round_index in range(trainers[0].rounds):
        for trainer in trainers:
            trainer.run(until=round_index + 1)
        if on_round is not None:
            a, b = (trainer.history[-1].mean_score for trainer in trainers)
            with user_callback("on_round fails"):
                on_round(repeat, round_index, (a, b))


def _judge(
    trainer: VectorizedPPOTrainer, spec: TaskSpec, data: TaskData, seed: int, members: int
) -> Doubles:
    """Score `[N]` of the greedy policy on fresh members."""
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
