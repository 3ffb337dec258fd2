"""`train ppo`: the learner put together with telemetry, and judged on hosts it has not seen."""

from __future__ import annotations

from dataclasses import dataclass, replace

from esper.scripts.judging import LEARNED, Judged, judge
from esper.scripts.train_learner_config import TrainPPO
from esper.scripts.train_run import telemetry_of
from esper.simic.agent.agent import PPOAgent
from esper.simic.training.config import TrainingConfig
from esper.simic.training.history import RoundRecord
from esper.simic.training.vectorized import make_trainer
from esper.tasks.spec import TaskSpec


@dataclass(frozen=True, slots=True, eq=False)
class Learnt:
    """A run of the learner and its judgement."""

    agent: PPOAgent
    training: TrainingConfig
    history: list[RoundRecord]
    judged: Judged


def learn(config: TrainPPO, spec: TaskSpec) -> Learnt:
    """Train the controller, keep it, judge it."""
    training, recording = config.training, config.recording
    data = spec.load(config.data_dir)
    trainer = make_trainer(training, spec=spec, data=data)
    folder = recording.telemetry_dir
    with telemetry_of(trainer.engine, LEARNED, training.rounds, recording, folder) as telemetry:
        trainer.listen(telemetry.listeners)
        history = trainer.run()
    agent = trainer.client.agent
    agent.save(config.out / f"train_ppo_{spec.name}_agent")
    judged = judge(training, agent, spec, data, config.evaluation_envs)
    told = replace(judged.result, telemetry=telemetry.told())
    return Learnt(agent, training, history, replace(judged, result=told))
