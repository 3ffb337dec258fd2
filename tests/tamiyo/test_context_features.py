"""What the controller sees is alive: over random actions and contexts no feature is constant.

`test_features.py` moves each source and sees its feature move; here the engine is the source, so
that none is left unfilled on the way. Two hosts, because their size is part of what is seen.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from context_support import PlanDiary
from engine_support import small_engine
from esper.kasmina.lifecycle import lifecycle
from esper.leyline import VARIED, LifecycleOp, Range
from esper.tamiyo.baselines import RandomPolicy
from esper.tamiyo.features import FEATURE_NAMES, batch_signals_to_features
from esper.tasks.registry import get_task_spec
from esper.tolaria.counterfactual_eval import CounterfactualConfig
from esper.tolaria.governor import GovernorConfig

MEMBERS, STRUCK, PATIENCE = 16, 6, 14
BLUEPRINTS = ("twin", "norm", "conv_light", "depthwise")
CONTEXT = replace(VARIED, budget=Range(1.0, 2.0))
"""Small budgets, so that the test is quick."""
STRICT = GovernorConfig(min_window=2, spike_deviations=1.0, min_deviation=1e-3, spike_steps=99)
"""A strike comes easily, a rollback only where something is not finite."""


class Striking(PlanDiary):
    """Breaks some members on the way, so that the governor has something to do."""

    engine = None

    def on_step(self, record) -> None:
        super().on_step(record)
        if record.signals.step == STRUCK:
            self.engine.env.model.network.host.flat_EP.detach()[:6, 3] = float("nan")


class PatientRandom(RandomPolicy):
    """Random within the masks, but members do not stop, close or prune early: no seed would get old
    enough to be permanent."""

    reads_activation_gradients = True

    def act(self, obs, masks, policy_state):
        if obs.step < PATIENCE:
            op_EO = masks.op_EO.copy()
            op_EO[:, [LifecycleOp.STOP, LifecycleOp.CLOSE, LifecycleOp.PRUNE]] = False
            masks = replace(masks, op_EO=op_EO)
        return super().act(obs, masks, policy_state)


def measured(config, signals) -> np.ndarray:
    """G5, open as soon as there is a contribution: in so few batches no seed is worth keeping."""
    return np.isfinite(signals.contribution_ES)


def random_rounds(task: str, rounds: int, steps: int) -> list:
    """Signals of all decisions of a few rounds."""
    changes = {"episode_length": steps, "batches_per_step": 1, "batch_size": 16}
    spec = replace(get_task_spec(task), context=CONTEXT, blueprints=BLUEPRINTS, **changes)
    diary = Striking()
    images = CounterfactualConfig(images=40)
    diary.engine = engine = small_engine(
        spec, diary, members=MEMBERS, seed=3, counterfactuals=images, governor=STRICT
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lifecycle, "worth_keeping", measured)
        for _ in range(rounds):
            engine.run_rollout(PatientRandom(seed=4))
    return [record.signals for record in (*diary.plans, *diary.records)]


@pytest.fixture(scope="module")
def signals():
    return [*random_rounds("digits_impaired", 2, 22), *random_rounds("digits_baseline", 1, 8)]


@pytest.fixture(scope="module")
def seen(signals):
    return [batch_signals_to_features(s) for s in signals]


def test_no_feature_is_constant_over_random_actions_and_contexts(seen):
    columns = (
        (FEATURE_NAMES.whole, [obs.global_EG for obs in seen]),
        (FEATURE_NAMES.slot, [obs.slot_ESF for obs in seen]),
        (FEATURE_NAMES.candidate, [obs.candidate_ESKD for obs in seen]),
    )
    still = set()
    for names, values in columns:
        flat = np.concatenate([x.reshape(-1, len(names)) for x in values])
        still |= {name for name, x in zip(names, flat.T, strict=True) if (x == x[0]).all()}
    assert still == set()


def test_features_are_finite_through_a_rollback_and_of_a_moderate_size(seen):
    for obs in seen:
        obs.require_finite()
        for values in (obs.global_EG, obs.slot_ESF, obs.candidate_ESKD):
            assert np.abs(values).max() < 15


def test_the_plan_phase_sees_each_slot_in_turn_and_the_host():
    plans = [s for s in random_rounds("digits_impaired", rounds=2, steps=1) if s.planning]
    slots = len(plans[0].slots.slot_ids)
    assert [s.plan_slot for s in plans[: 2 * slots]] == [*range(slots)] * 2
    assert all(np.isnan(s.train_loss_E).all() and np.isfinite(s.val_loss_E).all() for s in plans)
    assert all((s.context.spent_E == 0).all() for s in plans)
