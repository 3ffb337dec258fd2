"""What all policies promise alike; and the static ones."""

import numpy as np
import pytest

from esper.kasmina import Population
from esper.kasmina.lifecycle.caps import Caps, SeedCosts
from esper.leyline import (
    ActionSpec,
    LifecycleOp,
    PlantingPolicy,
    PolicyProtocol,
    RewardComponentsTelemetry,
    RewardInputs,
    SeedStage,
)
from esper.leyline.signals import NO_BLUEPRINT
from esper.tamiyo import (
    FixedSchedule,
    HeuristicPolicy,
    RandomPolicy,
    ScheduleConfig,
    ScheduleEntry,
    StaticTopology,
    WaitPolicy,
)
from esper.tamiyo.planning import PlannedTopology
from esper.tolaria.plan_phase import plan_masks
from payload_support import build
from support import CNN_BLUEPRINTS, ROW_0, make_population, refused
from tamiyo_support import Drive, assert_within, masks_of, observe

SCHEDULE = ScheduleConfig((ScheduleEntry(2, "r0c1", "norm"), ScheduleEntry(0, "r0c0", "norm")))
POLICIES = {
    "wait": lambda reward=None: WaitPolicy(reward),
    "random": lambda reward=None: RandomPolicy(0, reward),
    "static": lambda reward=None: StaticTopology("norm", reward),
    "schedule": lambda reward=None: FixedSchedule(SCHEDULE, reward),
    "heuristic": lambda reward=None: HeuristicPolicy(reward=reward),
}
every_policy = pytest.mark.parametrize("make", POLICIES.values(), ids=POLICIES)


def halves(inputs: RewardInputs) -> tuple[np.ndarray, RewardComponentsTelemetry]:
    part = np.full(inputs.members, 0.5)
    parts = RewardComponentsTelemetry.of({"score": part, "step": part * inputs.step}, len(part))
    return parts.total, parts


@every_policy
def test_is_a_policy(make):
    assert isinstance(make(), PolicyProtocol)


@every_policy
def test_reward_is_reported_by_part(make):
    facts = {"step": 3, "episode_length": 9, "rolled_back_E": np.zeros(4, dtype=np.bool_)}
    inputs = build(RewardInputs, facts, E=4)
    with_reward = make(halves).store(inputs, inputs.terminal)
    assert with_reward.names == ("score", "step")
    assert with_reward.total.tolist() == [2.0] * 4
    without = make().store(inputs, inputs.terminal)
    assert without.names == ()
    assert without.total.tolist() == [0.0] * 4


@every_policy
def test_nothing_is_learnt(make):
    assert make().update(None) is None


@every_policy
def test_act_neither_changes_nor_keeps_what_it_is_given(make):
    """Two runs from the same state take the same actions."""
    first, second = (Drive(make(), make_population(3)).run(20) for _ in range(2))
    assert first.actions == second.actions
    population = first.population
    state, obs, masks = first.state, observe(population, 20), masks_of(population)
    assert first.policy.act(obs, masks, state)[0] == first.policy.act(obs, masks, state)[0]


@every_policy
def test_members_do_not_depend_on_how_many_there_are(make):
    one, many = (Drive(make(), make_population(members)).run(30) for members in (1, 4))
    for alone, among in zip(one.actions, many.actions, strict=True):
        assert alone.describe(0, ROW_0, CNN_BLUEPRINTS) == among.describe(0, ROW_0, CNN_BLUEPRINTS)


@every_policy
def test_host_without_slots_waits(make):
    policy = FixedSchedule(ScheduleConfig(())) if make is POLICIES["schedule"] else make()
    drive = Drive(policy, make_population(2, slots=())).run(3)
    assert all((actions.op == LifecycleOp.WAIT).all() for actions in drive.actions)


def plan_decisions(policy, population: Population) -> list[ActionSpec]:
    """The decisions of a plan phase, carried out."""
    life, state = population.lifecycle, policy.initial_state(population.members)
    life.action_space, life.planning = "full", True
    decided = []
    for slot in range(len(population.slots)):
        masks = plan_masks(life.legal_ops(), life.fits_ESK(), slot, {})
        decision, state = policy.act(observe(population, plan_slot=slot), masks, state)
        assert_within(masks, decision)
        for member in np.flatnonzero(decision.actions.op == LifecycleOp.PLANT):
            kind = int(decision.actions.blueprint[member])
            population.plant(int(member), slot, kind, prunable=True)
        decided.append(decision.actions)
    return decided


@every_policy
def test_in_the_plan_phase_only_what_plans_does_not_wait(make):
    decided = plan_decisions(make(), make_population(40))
    planted = np.stack([actions.op for actions in decided]) == LifecycleOp.PLANT
    if make is POLICIES["random"]:
        assert 0.3 < planted.mean() < 0.7
        kinds = [tuple(actions.blueprint) for actions in decided]
        assert len(set(kinds)) == len(kinds), "every decision has draws of its own"
    else:
        assert not planted.any()


def test_a_planned_topology_is_planted_as_far_as_the_caps_allow():
    kind_ES = np.array([[2, NO_BLUEPRINT, 1], [0, 1, 2]])
    population = make_population(2)
    policy = PlannedTopology(kind_ES)
    plan_decisions(policy, population)
    assert population.lifecycle.blueprint_ES.tolist() == kind_ES.tolist()
    drive = Drive(policy, population).run(5)
    assert all((actions.op == LifecycleOp.WAIT).all() for actions in drive.actions)
    capped = make_population(2)
    costs = SeedCosts(
        100, 100, np.full((3, 4), 10), np.zeros((3, 4), dtype=np.int64), np.zeros(3, dtype=np.int64)
    )
    capped.lifecycle.caps = Caps(costs, [115.0, 125.0], [np.inf, np.inf])
    plan_decisions(policy, capped)
    assert capped.lifecycle.blueprint_ES.tolist() == [[2, -1, -1], [0, 1, -1]]


@pytest.mark.parametrize("make", [POLICIES["wait"], POLICIES["static"]], ids=["wait", "static"])
def test_static_policies_wait_for_ever(make):
    drive = Drive(make(), make_population(2)).run(30)
    assert all((actions.op == LifecycleOp.WAIT).all() for actions in drive.actions)
    assert (drive.population.lifecycle.stage_ES == SeedStage.DORMANT).all()


SLOTS, KINDS = ("r0c0", "r0c1", "r0c2"), ("norm", "conv", "gate")


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (StaticTopology("conv"), [1, 1, 1]),
        (StaticTopology(dict.fromkeys(["r0c2", "r0c0"], "gate")), [2, NO_BLUEPRINT, 2]),
        (StaticTopology(dict.fromkeys([], "gate")), [NO_BLUEPRINT] * 3),
        (StaticTopology({"r0c1": "conv", "r0c0": "norm"}), [0, 1, NO_BLUEPRINT]),
        (StaticTopology(np.array([2, NO_BLUEPRINT, 0])), [2, NO_BLUEPRINT, 0]),
    ],
)
def test_planted_topology_is_the_one_named(policy: StaticTopology, expected: list[int]):
    assert isinstance(policy, PlantingPolicy)
    planted = policy.planted(4, SLOTS, KINDS)
    assert planted.dtype == np.int64
    assert planted.tolist() == [expected] * 4


def test_each_member_may_have_a_topology_of_its_own():
    kind_ES = np.array([[2, NO_BLUEPRINT, 0], [0, 1, 2]])
    policy = StaticTopology(kind_ES)
    assert policy.planted(2, SLOTS, KINDS).tolist() == kind_ES.tolist()
    assert "shape (2, 3)" in refused(lambda: policy.planted(3, SLOTS, KINDS))
    assert "blueprint 2 in slot 0" in refused(lambda: policy.planted(2, SLOTS, KINDS[:2]))


def test_planted_topology_can_be_planted():
    population = make_population(2)
    planted_ES = StaticTopology("conv_light").planted(2, population.slots, CNN_BLUEPRINTS)
    for slot, kinds_E in zip(population.slots, planted_ES.T, strict=True):
        population.plant([0, 1], slot, CNN_BLUEPRINTS[kinds_E[0]])
    assert (population.lifecycle.stage_ES == SeedStage.FOSSILIZED).all()


@pytest.mark.parametrize(
    ("policy", "named"),
    [
        (
            StaticTopology("cnov"),
            "unknown blueprint 'cnov' for slot r0c0: did you mean 'conv'?",
        ),
        (StaticTopology(dict.fromkeys(["r0c9"], "conv")), "unknown slot 'r0c9'"),
        (StaticTopology({"r0c1": "comv"}), "unknown blueprint 'comv' for slot r0c1"),
        (StaticTopology(np.array([0, 1])), "shape (2,)"),
        (StaticTopology(np.array([0.0, 1.0, 2.0])), "float64"),
        (StaticTopology(np.array([0, 3, 0])), "blueprint 3 in slot 1"),
        (StaticTopology(np.array([0, 0, -2])), "blueprint -2 in slot 2"),
    ],
)
def test_wrong_topologies_are_refused_in_one_line(policy: StaticTopology, named: str):
    assert named in refused(lambda: policy.planted(1, SLOTS, KINDS))
