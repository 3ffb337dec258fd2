"""Selected members continue in the new population as they would have in the old one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from esper.kasmina.lifecycle.caps import Caps
from esper.leyline import SeedStage
from saving_cases import every_stage, state
from support import batch, good_signals, refused

CHOSEN = np.array([4, 1, 1, 3])


def continue_training(p, members) -> torch.Tensor:
    """Train on batches of the original members; return their losses."""
    losses = []
    for step in range(3):
        p.begin_step()
        x, target = batch(5, 200 + step)
        losses.append(p.train_batch(x[members], target[members]).loss_E)
        p.end_step(good_signals(p))
    return torch.stack(losses)


@pytest.mark.parametrize(("executor", "kind"), [("loop", "sgd"), ("vmap", "adamw")])
def test_selected_members_continue_as_in_the_old_population(executor, kind):
    old = every_stage(executor, kind)
    new = old.select(CHOSEN)
    assert new.lifecycle.stage_ES.tolist() == old.lifecycle.stage_ES[CHOSEN].tolist()
    before, after = state(old), state(new)
    for name, values in after.items():
        assert torch.equal(
            values.double().nan_to_num(7), before[name][CHOSEN].double().nan_to_num(7)
        ), name
    kept = continue_training(old, np.arange(5))[:, CHOSEN]
    torch.testing.assert_close(continue_training(new, CHOSEN), kept, atol=1e-5, rtol=1e-5)
    before, after = state(old), state(new)
    for name, values in after.items():
        if values.is_floating_point():
            torch.testing.assert_close(
                values, before[name][CHOSEN], atol=1e-5, rtol=1e-4, equal_nan=True
            )
        else:
            assert torch.equal(values, before[name][CHOSEN]), name


def test_the_old_population_is_left_alone():
    old = every_stage()
    before = {name: values.clone() for name, values in state(old).items()}
    continue_training(old.select(CHOSEN), CHOSEN)
    for name, values in state(old).items():
        assert torch.equal(values.double().nan_to_num(7), before[name].double().nan_to_num(7)), name


def test_banks_that_nobody_uses_are_not_allocated():
    old = every_stage()
    new = old.select([2])
    used = {(s, k) for s, k in enumerate(new.lifecycle.blueprint_ES[0].tolist()) if k >= 0}
    assert set(new.network.banks) == used < set(old.network.banks)


def test_a_selected_member_grows_from_its_own_streams():
    """A seed germinated after the move has the weights it would have had before."""
    old = every_stage()
    new = old.select([2])
    for p, member in ((old, 2), (new, 0)):
        p.germinate([member], "r1c0", "conv_light")
    slot, kind = old.slots.index("r1c0"), old.blueprints.index("conv_light")
    there, here = old.network.bank(slot, kind), new.network.bank(slot, kind)
    assert torch.equal(here.flat_EP[0], there.flat_EP[2])
    assert new.lifecycle.stage_ES[0, slot] == SeedStage.GERMINATED


def test_caps_move_with_their_members():
    old = every_stage()
    sizes = old.seed_sizes.table(old.probe)
    most = 10.0**6 + np.arange(5)
    old.lifecycle.caps = Caps(sizes, most, 10 * most)
    caps = old.select([3, 0]).lifecycle.caps
    assert caps is not None
    assert caps.params_cap_E.tolist() == [10**6 + 3, 10**6]
    assert caps.macs_cap_E.tolist() == [10**7 + 30, 10**7]


def test_loss_and_count_move_with_their_members():
    old = every_stage("loop", "sgd")
    old.count_correct = lambda outputs, targets: outputs.new_ones(len(outputs))
    new = old.select(CHOSEN)
    assert (new.loss, new.count_correct) == (old.loss, old.count_correct)


def test_unknown_members_are_refused():
    assert "member 5" in refused(lambda: every_stage().select([5]))
