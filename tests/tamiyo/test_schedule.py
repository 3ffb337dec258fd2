"""The fixed schedule: seeds at their steps, in their slots, through their whole life."""

from dataclasses import replace

import numpy as np
import pytest

from esper.kasmina import LifecycleConfig
from esper.kasmina.lifecycle.gates import GateConfig
from esper.leyline import ActionHead, LifecycleOp, SeedStage
from esper.tamiyo import FixedSchedule, ScheduleConfig, ScheduleEntry
from support import good_signals, make_population, refused
from tamiyo_support import Drive, masks_of, observe, worthless_signals

ENTRIES = (
    ScheduleEntry(9, "r0c2", "norm"),
    ScheduleEntry(3, "r0c0", "conv_light"),
    ScheduleEntry(3, "r0c1", "conv_heavy"),
)


def schedule(*entries: ScheduleEntry, **settings: object) -> FixedSchedule:
    return FixedSchedule(ScheduleConfig(entries or ENTRIES, **settings))  # type: ignore[arg-type]


def test_every_slot_is_fossilised():
    drive = Drive(schedule(), make_population(3)).run(50)
    assert (drive.population.lifecycle.stage_ES == SeedStage.FOSSILIZED).all()
    waits = [actions.op.tolist() for actions in drive.actions[-5:]]
    assert waits == [[LifecycleOp.WAIT] * 3] * 5


def test_seeds_germinate_at_their_steps():
    """Two at one step follow each other, since a member does one thing at a time."""
    drive = Drive(schedule(), make_population(2)).run(12)
    assert drive.did(LifecycleOp.GERMINATE, member=1) == [(3, 0), (4, 1), (9, 2)]
    names = drive.population.slots, drive.population.blueprints
    said = [drive.actions[step].describe(0, *names) for step in (3, 4, 9)]
    assert said == [
        "GERMINATE r0c0 conv_light style=ADD tempo=3 alpha_target=1.0 alpha_curve=LINEAR",
        "GERMINATE r0c1 conv_heavy style=ADD tempo=3 alpha_target=1.0 alpha_curve=LINEAR",
        "GERMINATE r0c2 norm style=ADD tempo=3 alpha_target=1.0 alpha_curve=LINEAR",
    ]


def test_advances_by_hand_where_nothing_goes_by_itself():
    config = LifecycleConfig(
        gates=GateConfig(min_training_steps=2), auto_forward_g1=False, auto_forward_g3=False
    )
    drive = Drive(schedule(), make_population(2, lifecycle=config)).run(60)
    assert (drive.population.lifecycle.stage_ES == SeedStage.FOSSILIZED).all()
    assert len(drive.did(LifecycleOp.ADVANCE)) == 9


def test_worthless_seed_is_pruned_after_probation_and_not_grown_again():
    entry = ScheduleEntry(0, "r0c1", "norm")
    policy = schedule(entry, probation_steps=4)
    drive = Drive(policy, make_population(2), signals=worthless_signals).run(40)
    assert drive.did(LifecycleOp.GERMINATE) == [(0, 1)]
    assert drive.did(LifecycleOp.FOSSILIZE) == []
    ((step, slot),) = drive.did(LifecycleOp.PRUNE)
    assert slot == 1
    held = [s[0, 1] == SeedStage.HOLDING for s in drive.stages]
    assert sum(held[: step + 1]) == 4 + 1  # entered it, and four steps on
    assert held[step]
    spoken = drive.actions[step].describe(0, ("a", "b", "c"), ())
    assert spoken == "PRUNE b alpha_speed=3 alpha_curve=LINEAR"


def test_members_are_judged_by_themselves():
    def mixed(population):
        good = good_signals(population)
        contribution = good.contribution_ES.copy()
        contribution[1] *= -1
        return replace(good, contribution_ES=contribution)

    drive = Drive(schedule(ScheduleEntry(0, "r0c0", "norm")), make_population(3), mixed).run(30)
    assert drive.population.lifecycle.stage_ES[:, 0].tolist() == [
        SeedStage.FOSSILIZED,
        SeedStage.DORMANT,
        SeedStage.FOSSILIZED,
    ]


def test_unmeasured_seed_is_not_judged():
    """What was measured before it was blended in fully does not count either."""

    def unmeasured(population):
        good = good_signals(population)
        return replace(good, contribution_ES=np.full_like(good.contribution_ES, np.nan))

    policy = schedule(ScheduleEntry(0, "r0c0", "norm"), probation_steps=1)
    drive = Drive(policy, make_population(1), unmeasured).run(30)
    assert drive.did(LifecycleOp.PRUNE) == []
    drive.signals = worthless_signals
    drive.run(3, contribution_age_ES=np.full((1, 3), 99))
    assert drive.did(LifecycleOp.PRUNE) == []
    drive.run(1)
    assert len(drive.did(LifecycleOp.PRUNE)) == 1


def test_second_seed_of_a_slot_waits_until_it_is_dormant():
    later = ScheduleEntry(2, "r0c0", "conv_heavy"), ScheduleEntry(1, "r0c0", "conv_light")
    entries = (ScheduleEntry(0, "r0c0", "norm"), *later)  # the earlier of two first
    drive = Drive(schedule(*entries), make_population(1), worthless_signals).run(60)
    (first, _), (second, _), *_ = drive.did(LifecycleOp.GERMINATE)
    assert first == 0
    assert drive.stages[second][0, 0] == SeedStage.DORMANT
    assert drive.stages[second - 1][0, 0] != SeedStage.DORMANT
    assert drive.actions[second].blueprint[0] == 1


def test_reset_forgets_these_members_alone():
    policy = schedule()
    done_EN = np.array([[True, False, True]] * 3)
    after = policy.reset_state(done_EN, np.array([False, True, False]))
    assert after.tolist() == [[True, False, True], [False] * 3, [True, False, True]]
    assert done_EN[1].any()


def test_member_that_starts_over_follows_the_schedule_again():
    policy = schedule(ScheduleEntry(0, "r0c0", "norm"))
    drive = Drive(policy, make_population(2)).run(4)
    drive.population.lifecycle.force_remove(np.array([[True] * 3, [False] * 3]))
    drive.state = policy.reset_state(drive.state, np.array([True, False]))
    drive.run(20)
    assert len(drive.did(LifecycleOp.GERMINATE, member=0)) == 2
    assert len(drive.did(LifecycleOp.GERMINATE, member=1)) == 1


def test_members_to_reset_are_a_mask():
    policy = schedule(ScheduleEntry(0, "r0c0", "norm"))
    state = policy.initial_state(3)
    assert "expected a bool mask" in refused(lambda: policy.reset_state(state, np.array([0, 1])))


def test_empty_schedule_waits():
    drive = Drive(FixedSchedule(ScheduleConfig(())), make_population(2)).run(5)
    assert all((actions.op == LifecycleOp.WAIT).all() for actions in drive.actions)


@pytest.mark.parametrize(
    ("entry", "frozen", "named"),
    [
        (ScheduleEntry(400, "r0c7", "norm"), {}, "unknown slot 'r0c7'"),
        (ScheduleEntry(400, "r0c0", "nrom"), {}, "did you mean 'norm'"),
        (ScheduleEntry(400, "r0c0", "norm"), {ActionHead.BLUEPRINT: 1}, "norm is not allowed"),
        (ScheduleEntry(400, "r0c0", "norm"), {ActionHead.ALPHA_TARGET: 0}, "alpha target 1.0"),
    ],
)
def test_what_cannot_be_grown_is_refused_at_the_first_step(entry, frozen, named: str):
    population = make_population(1)
    policy = schedule(entry)
    masks = masks_of(population, frozen)
    state = policy.initial_state(1)
    assert named in refused(lambda: policy.act(observe(population), masks, state))


def test_frozen_speed_of_a_prune_is_respected():
    entry = ScheduleEntry(0, "r0c0", "norm")
    frozen = {ActionHead.ALPHA_SPEED: 3}
    drive = Drive(schedule(entry), make_population(1), worthless_signals, frozen).run(20)
    assert len(drive.did(LifecycleOp.PRUNE)) == 1


@pytest.mark.parametrize(
    "action",
    [
        lambda: ScheduleEntry(-1, "r0c0", "norm"),
        lambda: ScheduleConfig((), probation_steps=-1),
    ],
)
def test_wrong_input_is_refused_in_one_line(action):
    refused(action)
