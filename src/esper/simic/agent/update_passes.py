"""`run_ppo_updates`: one or more PPO update passes over a rollout."""

from __future__ import annotations

from esper.leyline.payloads import PPOUpdateMetrics
from esper.simic.agent.agent import PPOAgent
from esper.simic.agent.buffer import RolloutBuffer
from esper.simic.agent.update import Row
from esper.simic.control.normalizers import ObservationNormalizer
from esper.simic.telemetry.aggregation import aggregate_ppo_metrics


def run_ppo_updates(
    agent: PPOAgent,
    ppo_updates_per_batch: int,
    rollout: RolloutBuffer,
    obs_normalizer: ObservationNormalizer | None,
    use_amp: bool = False,
) -> PPOUpdateMetrics:
    """Update the agent on a finished rollout, clear it and return aggregated metrics.

    The KL limit ends the remaining passes, too; skipped passes still advance the schedules.
    Afterwards `obs_normalizer` takes in the observations of the rollout.
    """
    targets = agent.targets(rollout)
    rows: list[Row] = []
    done = agent.updates_done + ppo_updates_per_batch
    for _ in range(ppo_updates_per_batch):
        rows += agent.update(rollout, targets, use_amp)
        if rows[-1]["early_stopped"]:
            break
    agent.updates_done = done
    if obs_normalizer is not None:
        obs_normalizer.commit(agent.ranks)
    rollout.clear()
    return aggregate_ppo_metrics(rows)
