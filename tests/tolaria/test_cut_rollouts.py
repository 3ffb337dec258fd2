"""A rollout that is cut shows what comes next, and cutting it changes no step."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from engine_support import CALM, Diary, random_policy, small_engine, small_task
from esper.leyline.codec import to_json
from esper.leyline.payloads import EpisodeOutcome
from esper.simic.rewards.score import ScoreReward
from esper.tamiyo.baselines import RandomPolicy
from esper.tolaria.engine import VectorizedEngine

STEPS, ROLLED_BACK_AT = 8, 4
SPEC = small_task(episode_length=STEPS, batches_per_step=1)


class Watched(RandomPolicy):
    """Keeps what it saw."""

    def __init__(self) -> None:
        super().__init__(4, ScoreReward(SPEC.upkeep))
        self.seen: list[object] = []

    def act(self, obs, masks, policy_state):
        self.seen.append([to_json(obs), to_json(masks)])
        return super().act(obs, masks, policy_state)


def faulty_engine(rollout_steps: int | None) -> tuple[VectorizedEngine, Diary]:
    """Behind step 3 a weight of member 1 breaks, so that step 4 rolls it back."""

    def watch(record) -> None:
        if record.signals.step == ROLLED_BACK_AT - 1:
            engine.env.model.network.host.flat_EP.detach()[1, 3] = float("nan")

    diary = Diary(watch)
    engine = small_engine(SPEC, diary, seed=4, rollout_steps=rollout_steps, governor=CALM)
    return engine, diary


def reported(diary: Diary) -> dict[str, object]:
    names = ("signals", "masks", "decision", "rewards", "governor", "rows")
    return {
        "steps": [{n: to_json(getattr(r, n)) for n in names} for r in diary.records],
        "outcomes": [to_json(r.result.outcome) for r in diary.records],
        "events": [[*at, to_json(payload)] for *at, payload in diary.slot_events],
    }


class Whole(NamedTuple):
    """An episode that was not cut."""

    reported: dict[str, Any]
    seen: list[object]
    outcome: EpisodeOutcome


@pytest.fixture(scope="module")
def whole() -> Whole:
    engine, diary = faulty_engine(None)
    end = engine.run_rollout(policy := Watched())
    return Whole(reported(diary), policy.seen, end.outcome)


def test_where_a_rollout_is_cut_changes_no_step(whole):
    """What a listener hears is the same; the rollback comes before, at and behind a cut."""
    assert whole.outcome.rollbacks_E.tolist() == [0, 1, 0, 0]
    pieces, again = faulty_engine(1)
    policy, lengths = random_policy(4, SPEC), []
    while pieces.round == 0:
        rollout = pieces.run_rollout(policy)
        lengths.append(rollout.steps)
        assert rollout.ends_episode == (sum(lengths) == STEPS)
    assert sum(lengths) == STEPS
    assert reported(again) == whole.reported
    assert to_json(rollout.outcome) == to_json(whole.outcome)
    assert len(again.slot_events) > STEPS


def test_a_cut_rollout_ends_with_what_the_next_act_sees():
    steps = 2
    engine, _ = faulty_engine(steps)
    policy = Watched()
    first = engine.run_rollout(policy)
    assert len(policy.seen) == steps
    shown = [to_json(first.final_signals), to_json(first.final_masks)]
    assert shown != policy.seen[-1]
    engine.run_rollout(policy)
    assert shown == policy.seen[steps]


def test_the_outcome_of_a_cut_rollout_is_that_of_its_last_step():
    """Not of the step that was looked at beyond it, in which a member is rolled back."""
    engine, _ = faulty_engine(ROLLED_BACK_AT)
    rollout = engine.run_rollout(random_policy(4, SPEC))
    assert rollout.outcome.rollbacks_E.tolist() == [0, 0, 0, 0]
    assert rollout.outcome.score_E.tolist() == engine.episode.score_TE[ROLLED_BACK_AT].tolist()
    rest = engine.run_rollout(random_policy(4, SPEC))
    assert rest.outcome.rollbacks_E.tolist() == [0, 1, 0, 0]


def test_an_episode_that_is_given_up_leaves_nothing_to_the_next():
    """As a plan of a run does: the step that was computed ahead belongs to the old hosts."""
    fresh, cut = small_engine(SPEC, seed=4), small_engine(SPEC, seed=4, rollout_steps=3)
    cut.run_rollout(random_policy(4, SPEC))
    cut.step = 0
    policies = [Watched(), Watched()]
    for engine, policy in zip((fresh, cut), policies, strict=True):
        engine.run_rollout(policy)
    assert policies[1].seen == policies[0].seen[:3]


@pytest.mark.parametrize("steps", [1, ROLLED_BACK_AT, ROLLED_BACK_AT + 1])
def test_a_rollout_that_ends_early_is_the_beginning_of_the_whole_one(steps, whole):
    """And the next one begins a new episode; a member that was rolled back is not bootstrapped."""
    short, again = faulty_engine(None)
    asked = []

    def ends_early(done: int) -> bool:
        asked.append(done)
        return done == steps

    rollout = short.run_rollout(random_policy(4, SPEC), ends_early=ends_early)
    assert asked == [*range(1, steps + 1)]
    assert reported(again)["steps"] == whole.reported["steps"][:steps]
    assert [to_json(rollout.final_signals), to_json(rollout.final_masks)] == whole.seen[steps]
    assert (rollout.steps, rollout.steps_E.tolist()) == (steps, [steps] * 4)
    assert rollout.ends_episode
    assert (short.round, short.step) == (1, 0)
    at_rollback = steps == ROLLED_BACK_AT + 1
    targets = rollout.truncated_bootstrap_targets
    assert targets.member_N.tolist() == ([0, 2, 3] if at_rollback else [0, 1, 2, 3])
    assert set(targets.step_N.tolist()) == {steps - 1}
    assert rollout.outcome.rollbacks_E.tolist() == [0, at_rollback, 0, 0]


def test_nobody_is_asked_after_the_last_step():
    engine, _ = faulty_engine(None)
    asked = []
    rollout = engine.run_rollout(random_policy(4, SPEC), ends_early=asked.append)
    assert asked == [*range(1, STEPS)]
    assert not rollout.truncated_bootstrap_targets.member_N.size
