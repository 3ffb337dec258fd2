"""Whatever breaks, wherever, whenever: random schedules of faults, many members, many kinds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine_support import CALM, Diary, histories, random_policy, small_engine, small_task
from fault_support import spoil_next_gradient

STEPS, MEMBERS = 6, 4
SPEC = small_task(episode_length=STEPS, batches_per_step=1, batch_size=8, train=100, validation=40)


def strike(engine, kind: str, member: int, rng: np.random.Generator) -> None:
    """One fault, at a random place."""
    population = engine.env.model
    host = population.network.host.flat_EP
    value = float(rng.choice([np.nan, np.inf, -np.inf]))
    place = int(rng.integers(host.shape[1]))
    if kind == "weight":
        host.detach()[member, place] = value
    elif kind == "moment":
        state = population.trainer.host_optimizer.state.get("host", {})
        for moment in state.values():
            moment[member, place % moment.shape[1]] = value
    elif kind == "seed":
        for bank in population.network.banks.values():
            bank.flat_EP.detach()[member] = value
    else:
        spoil_next_gradient(population, member, place, value)


def run(seed: int, schedule: dict[int, list[tuple[str, int]]]):
    rng = np.random.default_rng(seed)
    diary = Diary()

    def before_next(record) -> None:
        for kind, member in schedule.get(record.signals.step + 1, []):
            strike(engine, kind, member, rng)

    diary.watch = before_next
    engine = small_engine(
        SPEC, diary, members=MEMBERS, executor="loop", governor=CALM, seed=seed % 7
    )
    rollout = engine.run_rollout(random_policy(seed % 7, SPEC))
    return engine, rollout, diary


def check_schedule(seed: int) -> None:
    """The run ends normally; members without a fault are bit-identical to a healthy run."""
    rng = np.random.default_rng(10_000 + seed)
    schedule: dict[int, list[tuple[str, int]]] = {}
    for _ in range(int(rng.integers(1, 6))):
        kind = str(rng.choice(["weight", "moment", "gradient", "seed"]))
        schedule.setdefault(int(rng.integers(1, STEPS)), []).append(
            (kind, int(rng.integers(MEMBERS)))
        )
    engine, rollout, diary = run(seed, schedule)
    healthy, _, _ = run(seed, {})
    hit = {member for faults in schedule.values() for _, member in faults}
    spared = [member for member in range(MEMBERS) if member not in hit]
    for name, values in histories(engine.episode).items():
        assert np.array_equal(
            values[:, spared], histories(healthy.episode)[name][:, spared], equal_nan=True
        ), (name, schedule)
    assert len(diary.records) == STEPS
    assert np.isfinite(rollout.outcome.score_E).all()
    assert np.isfinite(rollout.outcome.episode_return_E).all()
    assert torch.isfinite(engine.env.model.network.host.flat_EP).all()
    for step, faults in schedule.items():
        for kind, member in faults:
            if kind in ("weight", "gradient"):
                assert diary.records[step].governor.rolled_back_E[member], (step, kind, member)
    paid = sum(record.rewards.total for record in diary.records)
    assert np.allclose(paid, rollout.outcome.episode_return_E)


def test_random_faults_harm_no_one_else():
    check_schedule(0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 51))
def test_fifty_random_fault_schedules(seed):
    check_schedule(seed)
