"""Each reward mode matches its formula in docs/rewards.md, on values computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from esper.leyline.actions import NO_SLOT, LifecycleOp
from esper.leyline.stages import SeedStage
from esper.tasks.scoring import upkeep
from reward_support import HOST_PARAMS, RULE, SEED_SHARE, pay, reward_of, step_inputs, totals

DORMANT, TRAINING, BLENDING, HOLDING, FOSSIL = (
    SeedStage.DORMANT,
    SeedStage.TRAINING,
    SeedStage.BLENDING,
    SeedStage.HOLDING,
    SeedStage.FOSSILIZED,
)
WAIT, FOSSILIZE, PRUNE = LifecycleOp.WAIT, LifecycleOp.FOSSILIZE, LifecycleOp.PRUNE
UPKEEP = float(upkeep(np.array([SEED_SHARE]), np.array([1]), RULE)[0])
LENGTH = 5
LOSS = [2.0, 1.8, 1.6, 1.2, 1.0, 0.5]
ACCURACY = [0.1, 0.2, 0.3, 0.5, 0.4, 0.6]
SCORE = [0.1, 0.2, 0.28, 0.45, 0.3, 0.5]
STAGE = [DORMANT, TRAINING, BLENDING, FOSSIL, FOSSIL]
WORTH = [np.nan, np.nan, 0.1, 0.3, 0.2]


def life():
    """One seed: none, incubating, blending, permanent, permanent; it doubles the parameters."""
    for t in range(LENGTH):
        live = STAGE[t] in (TRAINING, BLENDING)
        blended = STAGE[t] in (BLENDING, FOSSIL)
        yield step_inputs(
            t, LENGTH, slots=1,
            score_E=SCORE[t + 1], score_before_E=SCORE[t],
            accuracy_E=ACCURACY[t + 1], accuracy_before_E=ACCURACY[t],
            loss_E=LOSS[t + 1], loss_before_E=LOSS[t],
            stage_ES=STAGE[t], alpha_ES=float(blended), contribution_ES=WORTH[t],
            added_params_E=HOST_PARAMS * blended, live_mac_share_E=SEED_SHARE * live,
            op=FOSSILIZE if t == 2 else WAIT, target_slot=0 if t == 2 else -1,
        )  # fmt: skip


def parts(mode, family="contribution", **weights):
    """Part by part, the values `[T]`."""
    paid = pay(reward_of(mode, family, **weights), list(life()))
    return {name: [float(p.part(name)[0]) for p in paid] for name in paid[0].names}


def near(values):
    return pytest.approx(values, abs=1e-12)


ACCURACY_CHANGE = np.diff(ACCURACY).tolist()
SCORE_CHANGE = np.diff(SCORE).tolist()
PAID_UPKEEP = [0, -UPKEEP, -UPKEEP, 0, 0]
RENT = [0, 0, *[-0.02 / LENGTH] * 3]
NEVER = [0] * LENGTH


def test_score():
    found = parts("score")
    assert found == {
        "score": near(SCORE_CHANGE), "upkeep": near(PAID_UPKEEP), "rollback": NEVER,
    }  # fmt: skip


def test_shaped():
    found = parts("shaped", stage_weight=0.05, contribution_weight=0.5)
    stage = np.array([0, 2, 3, 5, 0]) * 0.01
    worth = np.array([0, 0, 0.05, 0.15, 0])
    assert found == {
        "score": near(SCORE_CHANGE), "potential": near(np.diff(stage + worth, prepend=0).tolist()),
        "upkeep": near(PAID_UPKEEP), "rollback": NEVER,
    }  # fmt: skip


def test_simplified():
    found = parts("simplified", contribution_weight=0.5)
    assert found == {
        "worth": near([0, 0, 0.05, 0.1, -0.05]),
        "upkeep": near(PAID_UPKEEP), "rent": near(RENT), "rollback": NEVER,
    }  # fmt: skip


def test_basic():
    found = parts("basic")
    assert found == {
        "progress": near(ACCURACY_CHANGE),
        "upkeep": near(PAID_UPKEEP), "rent": near(RENT), "rollback": NEVER,
    }  # fmt: skip


def test_basic_plus_drips_after_fossilising_only():
    found = parts("basic_plus", contribution_weight=0.5)
    basic = parts("basic")
    assert found.pop("drip") == near([0, 0, 0, 0.5 * 0.3 / LENGTH, 0.5 * 0.2 / LENGTH])
    assert found == basic


def test_sparse_and_minimal():
    assert parts("sparse") == {"score": near([0, 0, 0, 0, SCORE[-1]]), "rollback": NEVER}
    assert parts("minimal") == {
        "score": near([0, 0, 0, 0, SCORE[-1]]), "upkeep": near(PAID_UPKEEP), "rollback": NEVER,
    }  # fmt: skip


def test_escrow():
    found = parts("escrow", advance=0.5)
    assert found == {
        "advance": near(NEVER), "payout": near([0, 0, 0.1, 0, 0]), "clawback": near(NEVER),
        "upkeep": near(PAID_UPKEEP), "rent": near(RENT), "rollback": NEVER,
    }  # fmt: skip


# ---- the loss family ----------------------------------------------------------------------

MERIT = (1 - np.array(LOSS) / LOSS[0]).tolist()
MERIT_CHANGE = np.diff(MERIT).tolist()
LOSS_SCORE = (np.array(MERIT) - 0.02 * np.array([0, 0, 0, 1, 1, 1])).tolist()
LOSS_WORTH = [0, 0, *np.cumsum(MERIT_CHANGE[2:])]


def test_the_loss_family_pays_the_fall_of_the_loss():
    assert parts("basic", "loss")["progress"] == near(MERIT_CHANGE)
    assert parts("score", "loss")["score"] == near(np.diff(LOSS_SCORE).tolist())
    assert parts("sparse", "loss")["score"] == near([0, 0, 0, 0, LOSS_SCORE[-1]])
    assert parts("minimal", "loss")["score"] == near([0, 0, 0, 0, LOSS_SCORE[-1]])
    assert parts("shaped", "loss")["score"] == near(np.diff(LOSS_SCORE).tolist())


def test_in_the_loss_family_seeds_share_what_is_gained_while_they_are_blended():
    assert parts("simplified", "loss")["worth"] == near(np.diff(LOSS_WORTH, prepend=0).tolist())
    drip = [0, 0, 0, LOSS_WORTH[3] / LENGTH, LOSS_WORTH[4] / LENGTH]
    assert parts("basic_plus", "loss")["drip"] == near(drip)
    assert parts("escrow", "loss")["payout"] == near([0, 0, LOSS_WORTH[2], 0, 0])
    reward = reward_of("simplified", "loss")
    both = step_inputs(
        0, 2, slots=3, loss_E=0.4, stage_ES=[[HOLDING, FOSSIL, TRAINING]], alpha_ES=[[1, 1, 0]]
    )
    assert reward(both)[1].part("worth") == near([0.6])
    assert reward.family.worth_ES.tolist() == [[near(0.3), near(0.3), 0]]


def test_losses_are_measured_against_the_fresh_hosts():
    """Twice the loss, twice the fall: the same pay. A broken first loss counts as 1."""
    reward = reward_of("basic", "loss")
    inputs = step_inputs(0, 2, members=3, loss_before_E=[1.0, 2.0, np.inf], loss_E=[0.5, 1.0, 0.5])
    assert reward(inputs)[0].tolist() == [0.5, 0.5, 0.5]


def test_a_loss_that_is_no_number_changes_nothing_until_there_is_one_again():
    for family, fields in (
        ("loss", [{"loss_E": 0.5}, {"loss_E": np.nan}, {"loss_E": 0.2}]),
        ("contribution", [{"accuracy_E": 0.5}, {"accuracy_E": np.inf}, {"accuracy_E": 0.8}]),
    ):
        reported = [step_inputs(t, 3, **changed) for t, changed in enumerate(fields)]
        paid = pay(reward_of("basic", family), reported)
        assert [float(p.part("progress")[0]) for p in paid] == near([0.5, 0, 0.3])


def test_in_the_loss_family_a_rollback_is_no_ones_share():
    reward = reward_of("simplified", "loss")
    reward(step_inputs(0, 3, slots=1, loss_E=0.4, stage_ES=FOSSIL, alpha_ES=1.0))
    back = step_inputs(
        1, 3, slots=1, stage_ES=FOSSIL, alpha_ES=1.0, loss_E=np.nan,
        rolled_back_E=True, snapshot_score_E=0.1, snapshot_loss_E=0.7, snapshot_params_E=0.0,
    )  # fmt: skip
    paid = reward(back)[1]
    assert paid.part("worth") == near([0])
    assert reward.family.worth_ES.tolist() == [[near(0.6)]]
    assert reward.family.merit_E == near([0.3]), "that of the snapshot"


@pytest.mark.parametrize("mode", ["score", "basic"])
def test_a_rollback_costs_its_penalty_and_no_upkeep(mode):
    back = step_inputs(
        0, 3, slots=1, stage_ES=HOLDING, live_mac_share_E=SEED_SHARE, added_params_E=HOST_PARAMS,
        rolled_back_E=True, snapshot_score_E=0.0,
    )  # fmt: skip
    assert reward_of(mode)(back)[0].tolist() == [-0.1]


@pytest.mark.parametrize("mode", ["sparse", "minimal"])
@pytest.mark.parametrize("family", ["contribution", "loss"])
def test_a_rollback_pays_no_end_unless_it_is_the_end(mode, family):
    """The member stood at 0.5; the snapshot is 0.2 below, in score and in relative loss."""
    back = {"rolled_back_E": True, "snapshot_score_E": 0.3, "score_before_E": 0.5}
    back |= {"snapshot_loss_E": 0.7, "snapshot_params_E": 0.0, "loss_E": np.nan}
    reported = [step_inputs(0, 2, loss_E=0.5, score_E=0.5), step_inputs(1, 2, **back)]
    ends = pay(reward_of(mode, family), reported)
    assert ends[1].part("score") == near([0.3]), "the score it was set back to"
    midway = [reported[0], step_inputs(1, 3, **back), step_inputs(2, 3, score_E=0.4, loss_E=0.6)]
    midway[0] = step_inputs(0, 3, loss_E=0.5, score_E=0.5)
    paid = pay(reward_of(mode, family), midway)
    assert [float(p.part("score")[0]) for p in paid] == near([0, 0, 0.4])


def test_a_rollback_drips_nothing():
    back = {"rolled_back_E": True, "snapshot_score_E": 0.0, "contribution_before_ES": 0.4}
    inputs = step_inputs(0, 2, slots=1, stage_ES=FOSSIL, alpha_ES=1.0, contribution_ES=0.4, **back)
    assert reward_of("basic_plus")(inputs)[1].part("drip").tolist() == [0]


# ---- escrow, case by case -----------------------------------------------------------------


def escrow(stages, worth, ops, **fields):
    reported = [
        step_inputs(
            t, len(stages), slots=1, stage_ES=stage, alpha_ES=1.0, contribution_ES=worth[t],
            op=ops.get(t, WAIT), target_slot=0 if t in ops else -1, **fields.get(f"t{t}", {}),
        )
        for t, stage in enumerate(stages)
    ]  # fmt: skip
    paid = pay(reward_of("escrow", advance=0.5), reported)
    return {n: [float(p.part(n)[0]) for p in paid] for n in ("advance", "payout", "clawback")}


def test_an_account_follows_its_seed_and_is_paid_out_once():
    """A second fossilising cannot be; were it reported, it would pay nothing."""
    found = escrow(
        [HOLDING, HOLDING, HOLDING, FOSSIL, FOSSIL],
        [0.2, 0.1, 0.3, 0.9, 0.9],
        {2: FOSSILIZE, 3: FOSSILIZE},
    )
    assert found == {
        "advance": near([0.1, -0.05, 0, 0, 0]),
        "payout": near([0, 0, 0.25, 0, 0]),
        "clawback": near(NEVER),
    }


def test_a_seed_made_permanent_at_the_very_last_step_is_paid():
    found = escrow([HOLDING, HOLDING], [0.2, 0.4], {1: FOSSILIZE})
    assert found["payout"] == near([0, 0.3])
    assert sum(map(sum, found.values())) == near(0.4)


@pytest.mark.parametrize(
    "after", [[SeedStage.EMBARGOED] * 3, [BLENDING, BLENDING, SeedStage.PRUNED]]
)
def test_pruning_claws_back_at_the_step_it_is_asked_for(after):
    """At once or by a ramp, which pays nothing more on its way."""
    found = escrow([HOLDING, HOLDING, *after], [0.2, 0.4, 0.3, 0.1, np.nan], {1: PRUNE})
    assert found == {
        "advance": near([0.1, 0, 0, 0, 0]),
        "payout": near(NEVER),
        "clawback": near([0, -0.1, 0, 0, 0]),
    }


def test_the_next_seed_in_the_slot_has_an_account_of_its_own():
    found = escrow(
        [HOLDING, SeedStage.EMBARGOED, HOLDING, HOLDING, FOSSIL],
        [0.2, np.nan, 0.4, 0.6, 0.6],
        {0: PRUNE, 3: FOSSILIZE},
    )
    assert found["advance"] == near([0, 0, 0.2, 0, 0])
    assert found["payout"] == near([0, 0, 0, 0.4, 0])
    assert found["clawback"] == near(NEVER)


def test_what_is_uncommitted_at_the_end_is_taken_back():
    found = escrow([HOLDING, HOLDING, HOLDING], [0.2, 0.4, 0.6], {})
    assert found["clawback"] == near([0, 0, -0.2])
    assert sum(map(sum, found.values())) == near(0)


def test_a_cut_rollout_is_not_an_end():
    cut = {"t1": {"truncated_E": True}}
    found = escrow([HOLDING, HOLDING, HOLDING], [0.2, 0.4, 0.6], {}, **cut)
    assert found["advance"] == near([0.1, 0.1, 0])
    reported = [step_inputs(t, 4, score_E=0.5, truncated_E=t == 1) for t in range(4)]
    assert totals(pay(reward_of("sparse"), reported))[:, 0].tolist() == [0, 0, 0, 0.5]


def test_seeds_that_members_are_born_with_have_no_account():
    found = escrow([FOSSIL, FOSSIL], [0.2, 0.4], {})
    assert found == {"advance": [0, 0], "payout": [0, 0], "clawback": [0, 0]}


def test_an_action_that_was_vetoed_pays_nothing():
    inputs = step_inputs(
        0, 3, slots=1, stage_ES=HOLDING, alpha_ES=1.0, contribution_ES=0.4,
        op=FOSSILIZE, target_slot=0,
    )  # fmt: skip
    inputs.outcome.veto[0] = 8
    assert reward_of("escrow", advance=0.0)(inputs)[0][0] == 0


def test_a_restart_takes_back_what_escrow_paid_for_permanent_seeds():
    """Otherwise fossilise, restart, fossilise would be paid again and again."""
    reward, stage = reward_of("escrow"), SeedStage
    held = {"contribution_ES": [[0.4, np.nan]], "contribution_before_ES": [[0.4, np.nan]]}
    story = [
        step_inputs(0, 4, stage_ES=[[stage.HOLDING, stage.DORMANT]], **held),
        step_inputs(
            1, 4, stage_ES=[[stage.HOLDING, stage.DORMANT]], op=LifecycleOp.FOSSILIZE,
            target_slot=0, **held,
        ),
        step_inputs(
            2, 4, stage_ES=[[stage.FOSSILIZED, stage.DORMANT]], op=LifecycleOp.RESTART,
            target_slot=NO_SLOT, **held,
        ),
        step_inputs(3, 4, stage_ES=[[stage.DORMANT, stage.DORMANT]]),
    ]  # fmt: skip
    paid = pay(reward, story)
    parts = [[float(p.part(n)[0]) for n in ("advance", "payout", "clawback")] for p in paid]
    assert parts[1][1] > 0
    assert parts[2][2] == pytest.approx(-sum(map(sum, parts[:2])))
    assert np.sum(parts) == pytest.approx(0.0, abs=1e-12)
