"""A wrong answer of a policy is one line: its class, the method, what to return."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine_support import small_engine, small_task
from esper.leyline import ActionSpec, PolicyDecision, RewardComponentsTelemetry
from esper.tamiyo.baselines import WaitPolicy
from esper.tolaria.engine import VectorizedEngine
from support import refused

DECISION = PolicyDecision.deterministic(ActionSpec.wait(4))
PAIR = "return a pair (PolicyDecision, policy state)"


class Answers(WaitPolicy):
    """A policy that waits, but for the answers it is given."""

    def __init__(self, **answers: Any) -> None:
        super().__init__()
        self.answers = answers

    def act(self, obs, masks, policy_state):
        return self.answers.get("act", (DECISION, policy_state))

    def store(self, inputs, terminal_E):
        return self.answers.get("store", RewardComponentsTelemetry.of({}, inputs.members))


@pytest.fixture(scope="module")
def engine() -> VectorizedEngine:
    return small_engine(small_task(episode_length=2, batches_per_step=1))


def test_what_is_agreed_passes(engine: VectorizedEngine):
    assert engine.run_rollout(Answers()).steps == 2


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (None, f"returned None: {PAIR}"),
        (DECISION, f"returned an object of type PolicyDecision: {PAIR}"),
        ((DECISION, None, 1), f"returned a tuple of 3: {PAIR}"),
        ((None, None), f"returned None first: {PAIR}"),
        ((DECISION.actions, None), f"returned an object of type ActionSpec first: {PAIR}"),
        (
            (PolicyDecision.deterministic(ActionSpec.wait(3)), None),
            "returned a decision for E = 3: return one for E = 4",
        ),
    ],
)
def test_a_wrong_answer_of_act_is_one_line(engine: VectorizedEngine, answer: Any, line: str):
    assert refused(lambda: engine.run_rollout(Answers(act=answer))) == f"Answers.act {line}"


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (
            None,
            "returned None: return RewardComponentsTelemetry (without a reward: "
            "RewardComponentsTelemetry.of({}, E))",
        ),
        (np.zeros(4), "returned an object of type ndarray: return RewardComponentsTelemetry (wit"),
        (
            RewardComponentsTelemetry.of({"score": np.zeros(1)}, 1),
            "returned rewards for E = 1: return rewards for E = 4",
        ),
    ],
)
def test_a_wrong_answer_of_store_is_one_line(engine: VectorizedEngine, answer: Any, line: str):
    said = refused(lambda: engine.run_rollout(Answers(store=answer)))
    assert said.startswith(f"Answers.store {line}")


def test_the_episode_begins_again_after_a_wrong_answer(engine: VectorizedEngine):
    refused(lambda: engine.run_rollout(Answers(store=None)))
    assert engine.step == 0
    assert engine.run_rollout(Answers()).steps == 2
