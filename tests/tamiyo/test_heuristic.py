"""The heuristic: grows when training stalls, keeps what is worth it, does not repeat failures."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.kasmina import LifecycleConfig
from esper.kasmina.lifecycle.gates import GateConfig
from esper.leyline import (
    ActionHead,
    LifecycleOp,
    ScoreConstants,
    SeedStage,
)
from esper.tamiyo import HeuristicPolicy
from esper.tamiyo.heuristic import (
    EMBARGO_STEPS,
    INCUBATION_LIMIT,
    PATIENCE_STEPS,
    PENALTY_LIMIT,
    PROBATION_STEPS,
    SEEDS_AT_ONCE,
    remaining_rent,
)
from esper.tasks.scoring import added, score
from heuristic_support import charged, heuristic, members, worth
from support import CNN_BLUEPRINTS, good_signals, make_population, refused
from tamiyo_support import EPISODE, Drive, fixed_context, masks_of, observe, worthless_signals

QUICK = LifecycleConfig(gates=GateConfig(min_training_steps=1), embargoed_steps=1)
GERMINATE, PRUNE = LifecycleOp.GERMINATE, LifecycleOp.PRUNE
ONE_SLOT = ("r0c1",)


def kinds(drive: Drive, member: int = 0) -> list[int]:
    """Blueprints a member germinated, in order."""
    steps = [step for step, _ in drive.did(GERMINATE, member)]
    return [int(drive.actions[step].blueprint[member]) for step in steps]


def until_held(drive: Drive, steps: int) -> Drive:
    """Run until the first seed has been HOLDING for so many steps."""
    while not (drive.stages and drive.stages[-1][0, 0] == SeedStage.HOLDING):
        drive.run(1)
    return drive.run(steps)


def test_every_slot_is_fossilised():
    drive = Drive(heuristic(), make_population(3)).run(60)
    assert (drive.population.lifecycle.stage_ES == SeedStage.FOSSILIZED).all()
    assert [slot for _, slot in drive.did(GERMINATE)] == [0, 1, 2]


def test_advances_by_hand_where_nothing_goes_by_itself():
    config = LifecycleConfig(
        gates=GateConfig(min_training_steps=2), auto_forward_g1=False, auto_forward_g3=False
    )
    drive = Drive(heuristic(), make_population(2, lifecycle=config)).run(90)
    assert (drive.population.lifecycle.stage_ES == SeedStage.FOSSILIZED).all()


def test_a_seed_waits_for_no_signal():
    drive = Drive(heuristic(), make_population(2))
    drive.run(1, plateaued_E=members(False, False), stabilised_E=members(False, False))
    assert len(drive.did(GERMINATE)) == 1


def test_no_more_seeds_at_once_than_allowed():
    drive = Drive(heuristic(), make_population(2)).run(60)
    permanent = (SeedStage.DORMANT, SeedStage.FOSSILIZED)
    live = [(~np.isin(stages, permanent)).sum(axis=1).max() for stages in drive.stages]
    assert max(live) == SEEDS_AT_ONCE


@pytest.mark.parametrize(("episode", "last"), [(EPISODE, 0.6 * EPISODE), (20, 10)])
def test_nothing_is_started_when_too_little_of_the_episode_is_left(episode: int, last: int):
    """Of a long one a share, of a short one a number of steps."""
    for step, started in ((last, [(0, 0)]), (last + 1, [])):
        drive = Drive(heuristic(), make_population(1))
        drive.step = int(step)
        assert drive.run(1, episode_length=episode).did(GERMINATE) == started


def test_no_seed_that_only_costs_is_left_at_the_end():
    """On probation with steps still to serve; the end is near, so both are judged now."""
    for signals, op in ((good_signals, LifecycleOp.FOSSILIZE), (worthless_signals, PRUNE)):
        drive = Drive(heuristic(), make_population(1, lifecycle=QUICK), signals)
        until_held(drive, PROBATION_STEPS - 5).step = EPISODE - 5
        drive.run(1)
        assert drive.actions[-1].op[0] == op
        if op == PRUNE:
            assert drive.actions[-1].alpha_speed[0] == 0  # at once: no step is left to fade
            assert drive.population.lifecycle.alpha_ES[0, 0] == 0


def test_probation_is_served_before_a_seed_is_kept():
    drive = Drive(heuristic(), make_population(1)).run(40)
    step, slot = drive.did(LifecycleOp.FOSSILIZE)[0]
    held = [stages[0, slot] == SeedStage.HOLDING for stages in drive.stages]
    assert sum(held) == PROBATION_STEPS + 1  # entered it, and ten steps on
    assert held[step]


@pytest.mark.parametrize(
    ("contribution", "error", "kept"),
    [(0.2, 0.05, True), (0.2, 0.15, False), (0.0, 0.0, False), (-0.2, 0.01, False)],
)
def test_seed_is_kept_if_its_worth_is_beyond_its_error(contribution, error, kept: bool):
    """Two standard errors are asked for; the gate itself asks for one."""

    def signals(population):
        good = good_signals(population)
        full = np.full_like
        return replace(
            good,
            contribution_ES=full(good.contribution_ES, contribution),
            contribution_se_ES=full(good.contribution_se_ES, error),
        )

    drive = Drive(heuristic(), make_population(1), signals).run(30)
    ops = [bool(drive.did(op)) for op in (LifecycleOp.FOSSILIZE, PRUNE)]
    assert ops == [kept, not kept]


# ---- what keeping a seed costs -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("contribution", "price", "kept"),
    [
        (0.125, 0.1, True),  # 0.1 to pay, 0.02 of error
        (0.115, 0.1, False),
        (0.075, 0.05, True),
        (0.065, 0.05, False),
        (0.025, 0.0, True),
    ],
)
def test_a_seed_is_kept_if_it_is_worth_its_price_beyond_its_error(contribution, price, kept: bool):
    population = make_population(1, slots=ONE_SLOT)
    drive = Drive(charged(price), population, worth(contribution)).run(40)
    ops = [bool(drive.did(op)) for op in (LifecycleOp.FOSSILIZE, PRUNE)]
    assert ops == [kept, not kept]


@pytest.mark.parametrize(("contribution", "patience"), [(0.05, PATIENCE_STEPS), (0.005, 0)])
def test_only_a_seed_that_is_useful_has_time_to_become_worth_its_price(contribution, patience):
    population = make_population(1, slots=ONE_SLOT)
    drive = Drive(charged(), population, worth(contribution)).run(40)
    step, slot = drive.did(PRUNE)[0]
    held = [stages[0, slot] == SeedStage.HOLDING for stages in drive.stages[: step + 1]]
    assert sum(held) == 1 + PROBATION_STEPS + patience


def test_a_seed_that_grew_worth_its_price_on_probation_is_kept():
    drive = Drive(charged(), make_population(1, slots=ONE_SLOT), worth(0.05))
    until_held(drive, PROBATION_STEPS + 1)
    assert drive.did(PRUNE) == drive.did(LifecycleOp.FOSSILIZE) == []
    drive.signals = worth(0.15)
    drive.run(1)
    assert len(drive.did(LifecycleOp.FOSSILIZE)) == 1


def test_what_is_not_worth_its_price_at_the_end_goes():
    for contribution, op in ((0.05, PRUNE), (0.15, LifecycleOp.FOSSILIZE)):
        population = make_population(1, slots=ONE_SLOT, lifecycle=QUICK)
        drive = Drive(charged(), population, worth(contribution))
        until_held(drive, PROBATION_STEPS - 5).step = EPISODE - 3
        assert drive.run(1).actions[-1].op[0] == op


def test_what_a_seed_adds_does_not_count_where_growth_is_free():
    ops = []
    for policy in (heuristic(), charged(0.0)):
        drive = Drive(policy, make_population(2, lifecycle=QUICK), worth(0.03))
        drive.run(60)
        ops.append([actions.op.tolist() for actions in drive.actions])
    assert ops[0] == ops[1]


@given(
    alpha=st.lists(st.sampled_from([0.0, 0.3, 1.0]), min_size=3, max_size=3),
    params=st.lists(st.integers(1, 5000), min_size=3, max_size=3),
    macs=st.lists(st.integers(1, 50_000), min_size=3, max_size=3),
    step=st.integers(0, EPISODE - 1),
)
def test_the_price_is_what_the_score_gains_if_the_seed_goes(alpha, params, macs, step):
    """Of two members with the same accuracy, the one without the seed scores that much more; it
    trains on without it, so it also spends less on the steps that are left."""
    host_params, host_macs, prices = 700, 9000, ScoreConstants(c_p=0.1, c_m=0.03, c_f=0.02)
    alpha_ES, params_ES, macs_ES = np.array([alpha]), np.array([params]), np.array([macs])
    left = (EPISODE - 1 - step) / EPISODE

    def total(alpha_ES: np.ndarray) -> float:
        flops = 1.0 + left * np.where(alpha_ES > 0, macs_ES, 0).sum() / host_macs
        sizes = (alpha_ES, params_ES, macs_ES, host_params, host_macs)
        return float(score(np.array([0.5]), *sizes, prices, flops)[0])

    obs = observe(make_population(1), step, context=fixed_context(1, prices))
    over = {
        "params_over_host_E": (added(alpha_ES, params_ES) / host_params).astype(np.float32),
        "macs_over_host_E": (added(alpha_ES, macs_ES) / host_macs).astype(np.float32),
    }
    sizes = {"params_ES": params_ES, "macs_ES": macs_ES, "alpha_ES": alpha_ES.astype(np.float32)}
    price_ES = remaining_rent(replace(obs, slots=replace(obs.slots, **sizes), **over))
    for slot in range(3):
        without = alpha_ES.copy()
        without[0, slot] = 0
        assert price_ES[0, slot] == pytest.approx(total(without) - total(alpha_ES), abs=1e-6)


def test_unmeasured_seed_is_not_judged():
    def unmeasured(population):
        good = good_signals(population)
        return replace(good, contribution_ES=np.full_like(good.contribution_ES, np.nan))

    drive = Drive(heuristic(), make_population(1), unmeasured).run(30)
    assert drive.did(PRUNE) == drive.did(LifecycleOp.FOSSILIZE) == []
    drive.signals = good_signals
    drive.run(1)
    assert len(drive.did(LifecycleOp.FOSSILIZE)) == 1


def test_seed_that_never_may_blend_is_pruned():
    def dead(population):
        good = good_signals(population)
        return replace(good, grad_norm_ES=np.zeros_like(good.grad_norm_ES))

    drive = Drive(heuristic(), make_population(1, slots=ONE_SLOT), dead).run(30)
    ((step, slot),) = drive.did(PRUNE)
    incubated = [stages[0, slot] == SeedStage.TRAINING for stages in drive.stages]
    assert sum(incubated[: step + 1]) == INCUBATION_LIMIT
    assert drive.did(LifecycleOp.ADVANCE) == []


def test_seed_that_may_blend_at_last_is_not_pruned():
    slow = LifecycleConfig(gates=GateConfig(min_training_steps=INCUBATION_LIMIT))
    drive = Drive(heuristic(), make_population(1, lifecycle=slow)).run(100)
    assert (drive.population.lifecycle.stage_ES == SeedStage.FOSSILIZED).all()


@pytest.mark.parametrize("cooldown", [1, 20])
def test_worthless_seeds_are_pruned_and_the_slot_is_left_alone(cooldown: int):
    """One slot: it opens again after the lifecycle's own cooldown or the embargo, the later one."""
    lifecycle = replace(QUICK, embargoed_steps=cooldown)
    population = make_population(2, slots=ONE_SLOT, lifecycle=lifecycle)
    drive = Drive(heuristic(), population, worthless_signals).run(160)
    pruned = [step for step, _ in drive.did(PRUNE, member=1)]
    started = [step for step, _ in drive.did(GERMINATE, member=1)]
    assert len(pruned) > 2
    assert drive.did(LifecycleOp.FOSSILIZE) == []
    free = next(
        step for step in range(pruned[0] + 1, 160) if drive.stages[step][1, 0] == SeedStage.DORMANT
    )
    expected = max(EMBARGO_STEPS + 1, free - pruned[0])
    gaps = [later - step for step, later in zip(pruned, started[1:], strict=False)]
    assert set(gaps) == {expected}


def test_embargo_is_of_that_slot_of_that_member_alone():
    def mixed(population):
        good = good_signals(population)
        contribution = good.contribution_ES.copy()
        contribution[0, 0] = -1.0
        return replace(good, contribution_ES=contribution)

    drive = Drive(heuristic(), make_population(2, lifecycle=QUICK), mixed)
    while not drive.did(PRUNE):
        drive.run(1)
    assert drive.state.embargo_ES.tolist() == [[EMBARGO_STEPS, 0, 0], [0, 0, 0]]
    drive.run(EMBARGO_STEPS)
    assert [slot for _, slot in drive.did(GERMINATE)] == [0, 1, 2]
    drive.run(1)
    assert [slot for _, slot in drive.did(GERMINATE)] == [0, 1, 2, 0]


def one_slot(blueprints: tuple[str, ...] = CNN_BLUEPRINTS) -> Drive:
    """A slot in which everything fails."""
    population = make_population(1, slots=ONE_SLOT, lifecycle=QUICK)
    return Drive(heuristic(blueprints), population, worthless_signals)


def test_the_preferred_blueprints_come_first_and_stay_until_they_fail():
    """Of conv_light and conv_heavy the host offers both: the cheaper in every slot, when it lasts;
    the next one where a seed of it was pruned."""
    drive = Drive(HeuristicPolicy(), make_population(2)).run(60)
    light, heavy = (CNN_BLUEPRINTS.index(name) for name in ("conv_light", "conv_heavy"))
    assert kinds(drive) == [light, light, light]
    failing = Drive(HeuristicPolicy(), make_population(2, lifecycle=QUICK), worthless_signals)
    assert kinds(failing.run(60))[:4] == [light, light, heavy, heavy]


def test_blueprints_are_tried_in_the_order_given():
    assert kinds(one_slot(("conv_heavy", "norm")).run(120))[:4] == [2, 0, 2, 0]


def penalised(*penalty_K: float) -> Drive:
    """One slot, and blueprints with these penalties."""
    drive = one_slot()
    drive.step = EPISODE - 1  # too late to start a seed
    drive.run(1).step = 0
    drive.state = replace(drive.state, penalty_EK=np.array([penalty_K]))
    return drive


def test_penalised_blueprint_is_passed_over_until_the_penalty_has_faded():
    assert kinds(penalised(3.0, 0.0, 0.0, 0.0).run(60))[:2] == [1, 0]
    assert kinds(penalised(3.0, 2.0, 1.0, 2.0).run(1)) == [2], "the least penalised"


def test_small_penalty_does_not_cost_the_turn():
    for penalty, expected in ((PENALTY_LIMIT, 0), (PENALTY_LIMIT + 0.01, 1)):
        assert kinds(penalised(penalty, 0.0, 0.0, 0.0).run(1)) == [expected]


def test_penalties_decay_each_step_and_add_up():
    drive = one_slot()
    expected = np.zeros(4)
    for _ in range(60):
        blueprint = drive.population.lifecycle.blueprint_ES[0, 0]
        drive.run(1)
        expected *= 0.9
        if drive.actions[-1].op[0] == PRUNE:
            expected[blueprint] += 1.0
        assert drive.state.penalty_EK[0] == pytest.approx(expected)
    assert expected.max() > 0


def test_blueprint_that_does_not_fit_is_passed_over():
    population = make_population(1, lifecycle=QUICK)
    fits = population.lifecycle.fits_SK
    fits[0, :2] = False
    fits[1, :] = False
    fits[2, 3] = False
    drive = Drive(heuristic(), population).run(40)
    assert [slot for _, slot in drive.did(GERMINATE)] == [0, 2]
    assert kinds(drive) == [2, 0]
    narrow = Drive(heuristic(("norm",)), make_population(1, lifecycle=QUICK))
    narrow.population.lifecycle.fits_SK[:2, 0] = False
    assert [slot for _, slot in narrow.run(30).did(GERMINATE)] == [2]


def test_frozen_heads_have_their_way():
    """`Drive` checks every action against the masks."""
    frozen = {
        ActionHead.BLUEPRINT: 3,
        ActionHead.STYLE: 1,
        ActionHead.TEMPO: 2,
        ActionHead.ALPHA_CURVE: 4,
        ActionHead.ALPHA_SPEED: 0,
    }
    drive = Drive(heuristic(), make_population(1), worthless_signals, frozen).run(60)
    assert set(kinds(drive)) == {3}
    assert drive.did(PRUNE)


def test_reset_forgets_these_members_alone():
    policy = heuristic()
    drive = Drive(policy, make_population(3), worthless_signals)
    while not drive.did(PRUNE, member=1):
        drive.run(1)
    before = drive.state
    after = policy.reset_state(before, members(False, True, False))
    for name in ("embargo_ES", "penalty_EK"):
        old, new = getattr(before, name), getattr(after, name)
        assert old[1].any(), name
        assert not new[1].any()
        assert (new[[0, 2]] == old[[0, 2]]).all()


def test_non_finite_contribution_of_one_member_leaves_the_others_alone():
    def poisoned(population):
        good = good_signals(population)
        contribution, error = good.contribution_ES.copy(), good.contribution_se_ES.copy()
        contribution[1], error[1] = np.inf, np.nan
        return replace(good, contribution_ES=contribution, contribution_se_ES=error)

    clean = Drive(heuristic(), make_population(3)).run(40)
    dirty = Drive(heuristic(), make_population(3), poisoned).run(40)
    for op in LifecycleOp:
        assert clean.did(op, 0) == dirty.did(op, 0)
        assert clean.did(op, 2) == dirty.did(op, 2)
    assert dirty.did(LifecycleOp.FOSSILIZE, 1) == []


def test_unknown_blueprint_is_refused_with_the_nearest_name():
    policy, population = heuristic(("conv_lite",)), make_population(1)
    state = policy.initial_state(1)
    line = refused(lambda: policy.act(observe(population), masks_of(population), state))
    assert "did you mean 'conv_light'" in line
