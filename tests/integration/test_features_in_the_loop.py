"""What the controller sees is alive: in a real episode of growth every feature takes on values.

`tests/tamiyo/test_features.py` moves each source and sees its feature move; here the engine is the
source, so that none is left unfilled on the way.
"""

from __future__ import annotations

import numpy as np
import pytest

from engine_support import Diary, random_policy, small_engine, small_task
from esper.tamiyo.features import FEATURE_NAMES, batch_signals_to_features

STILL = {
    "params_over_budget": "no task has a budget of parameters yet",
    "macs_over_budget": "nor one of MACs",
    "stage_germinated": "a seed germinated by an action trains before it is observed again",
}
"""Features that are the same all the time, and why."""
STRUCK = 9


@pytest.fixture(scope="module")
def seen():
    """Random growth long enough for seeds to become permanent; one member breaks on the way."""
    spec = small_task(
        episode_length=40, classes=3, base_channels=4, train=600, batch_size=32, kernel_size=3
    )
    diary = Diary()
    engine = small_engine(spec, diary, members=8, seed=3)

    def strike(record) -> None:
        if record.signals.step == STRUCK:
            engine.env.model.network.host.flat_EP.detach()[1, 3] = float("nan")

    diary.watch = strike
    engine.run_rollout(random_policy(3, spec))
    return [batch_signals_to_features(record.signals) for record in diary.records]


def test_every_feature_takes_on_different_values_in_a_real_episode(seen):
    whole = np.concatenate([obs.global_EG for obs in seen])
    slots = np.concatenate([obs.slot_ESF.reshape(-1, len(FEATURE_NAMES.slot)) for obs in seen])
    still = {
        name
        for names, values in ((FEATURE_NAMES.whole, whole), (FEATURE_NAMES.slot, slots))
        for name, column in zip(names, values.T, strict=True)
        if (column == column[0]).all()
    }
    assert still == set(STILL)


def test_they_are_finite_through_a_rollback_and_of_a_moderate_size(seen):
    for obs in seen:
        obs.require_finite()
        assert max(np.abs(obs.global_EG).max(), np.abs(obs.slot_ESF).max()) < 15
