"""One head's choice: never a masked one, as likely as it says, with a gradient throughout."""

from dataclasses import fields

import numpy as np
import pytest
import torch

from esper.leyline import EsperError
from esper.tamiyo.distribution import MaskedCategorical, _deterministic_cumsum, action_uniforms
from ppo_support import EVERY_OP, agent, random_masks, random_obs

DRAWS = 100_000


def made(logits, legal, epsilon=0.0):
    tensors = torch.tensor(logits), torch.tensor(legal), torch.tensor([epsilon])
    return MaskedCategorical.of(*tensors)


def uniforms(count: int) -> torch.Tensor:
    return torch.from_numpy(action_uniforms(5, 0, 0, np.arange(count))[:, 3].copy())


def test_masked_choices_are_never_sampled():
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.normal(size=(DRAWS, 6)).astype(np.float32) * 20)
    legal = torch.from_numpy(rng.random((DRAWS, 6)) < 0.4)
    legal[~legal.any(-1), 2] = True
    for epsilon in (0.0, 0.3):
        distribution = MaskedCategorical.of(logits, legal, torch.tensor([epsilon]))
        choice = distribution.sample(uniforms(DRAWS))
        assert legal.gather(-1, choice[:, None]).all()


@pytest.mark.parametrize("choices", [1, 2, 6, 17, 40])
def test_sums_by_themselves_are_running_sums_that_masked_choices_leave_alone(choices):
    rng = np.random.default_rng(choices)
    p_C = torch.from_numpy(rng.random((1000, choices)).astype(np.float32))
    masked_C = torch.from_numpy(rng.random((1000, choices)) < 0.5)
    p_C = p_C.masked_fill(masked_C, 0.0)
    sums_C = _deterministic_cumsum(p_C)
    assert torch.allclose(sums_C.double(), p_C.double().cumsum(-1), rtol=1e-6)
    unmoved = sums_C[:, 1:] == sums_C[:, :-1]
    assert unmoved[masked_C[:, 1:]].all()


@pytest.mark.parametrize("at", [0.0, 0.5, 1.0 - 2.0**-24, 1.0])
def test_the_ends_of_the_unit_interval_choose_legally(at):
    distribution = made([0.3, 2.0, -1.0, 5.0], [False, True, True, False])
    assert int(distribution.sample(torch.tensor(at))) in (1, 2)


def test_choices_are_as_frequent_as_their_probability():
    distribution = made([0.3, 1.0, -1.0, 5.0], [True, True, True, False], epsilon=0.2)
    rows = MaskedCategorical(
        *(x.expand(DRAWS, 4) for x in (distribution.p_C, distribution.log_p_C)),
        distribution.legal_C.expand(DRAWS, 4),
    )
    found = torch.bincount(rows.sample(uniforms(DRAWS)), minlength=4) / DRAWS
    assert torch.allclose(found, distribution.p_C, atol=4 * 0.5 / DRAWS**0.5)


def test_exploration_gives_each_legal_choice_its_share():
    distribution = made([80.0, 0.0, 0.0, 0.0], [True, True, True, False], epsilon=0.3)
    assert distribution.p_C.tolist() == pytest.approx([0.8, 0.1, 0.1, 0.0], abs=1e-6)
    assert distribution.p_C[3] == 0.0
    assert float(distribution.log_prob(torch.tensor(1)).exp()) == pytest.approx(0.1, abs=1e-6)


def test_exploration_does_not_cut_the_gradient():
    """A hard floor would: the choice lies below it, and its logit no longer matters."""
    logits = torch.tensor([4.0, 0.0, 0.0], requires_grad=True)
    everything = torch.ones(3, dtype=torch.bool)
    distribution = MaskedCategorical.of(logits, everything, torch.tensor([0.5]))
    distribution.log_prob(torch.tensor(1)).backward()
    assert float(logits.grad[1]) > 1e-3


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0])
def test_gradients_are_finite_at_extreme_logits(epsilon):
    logits = torch.tensor([300.0, -300.0, 0.0, 900.0], requires_grad=True)
    legal = torch.tensor([True, True, True, False])
    distribution = MaskedCategorical.of(logits, legal, torch.tensor([epsilon]))
    (distribution.log_prob(torch.tensor(2)) + distribution.entropy()).backward()
    assert torch.isfinite(logits.grad).all()
    assert logits.grad[3] == 0.0


def test_entropy_is_that_of_the_mixture():
    distribution = made([0.3, 1.0, -1.0, 5.0], [True, True, True, False], epsilon=0.2)
    p = distribution.p_C[:3].double()
    assert float(distribution.entropy()) == pytest.approx(float(-(p * p.log()).sum()), abs=1e-6)
    assert made([1.0, 2.0], [True, False], 0.2).entropy() == pytest.approx(0.0, abs=1e-6)


def test_log_probability_of_a_masked_choice_is_minus_infinity():
    assert made([1.0, 2.0], [True, False]).log_prob(torch.tensor(1)) == -torch.inf


def test_an_empty_mask_raises():
    """`ActionMasks` refuses it; emptied behind its back, acting refuses it too."""
    rng = np.random.default_rng(0)
    it, obs, masks = agent(spec=EVERY_OP), random_obs(rng, 4), random_masks(rng, 4)
    masks.op_EO[2] = False
    with pytest.raises(EsperError, match=r"member 2: head OP .* mask is empty"):
        it.act(obs, masks, it.initial_state(4), 0, 0)


def test_draws_of_a_member_do_not_depend_on_the_others():
    everyone = action_uniforms(7, 2, 3, np.arange(64))
    alone = action_uniforms(7, 2, 3, np.array([41]))
    assert np.array_equal(everyone[41], alone[0])


def test_draws_differ_by_seed_round_step_member_and_head():
    base = action_uniforms(7, 2, 3, np.arange(4))
    others = [action_uniforms(8, 2, 3, np.arange(4)), action_uniforms(7, 3, 3, np.arange(4))]
    others += [action_uniforms(7, 2, 4, np.arange(4))]
    drawn = np.concatenate([base.ravel(), *(x.ravel() for x in others)])
    assert len(np.unique(drawn)) == len(drawn)
    assert ((drawn >= 0) & (drawn < 1)).all()


def test_draws_are_uniform():
    drawn = action_uniforms(1, 0, 0, np.arange(20_000))
    for head in drawn.T:
        shares = np.histogram(head, bins=10, range=(0, 1))[0] / len(head)
        assert np.abs(shares - 0.1).max() < 0.01


def test_an_action_does_not_depend_on_how_many_members_there_are():
    rng = np.random.default_rng(0)
    it, obs, masks = agent(), random_obs(rng, 16), random_masks(rng, 16)
    whole = it.act(obs, masks, it.initial_state(16), 1, 5).decision.actions
    rows = slice(4, 7)
    few = type(obs)(*(getattr(obs, f.name)[rows] for f in fields(obs)))
    few_masks = type(masks)(
        masks.op_EO[rows],
        masks.slot_EOS[rows],
        masks.blueprint_ESK[rows],
        masks.style_Y,
        masks.tempo_M,
        masks.alpha_target_T,
        masks.alpha_speed_V,
        masks.alpha_curve_U,
    )
    part = it.act(few, few_masks, it.initial_state(3), 1, 5, members=np.arange(4, 7))
    for name in ("op", "slot", "blueprint", "alpha_curve"):
        found = getattr(part.decision.actions, name)
        assert np.array_equal(found, getattr(whole, name)[rows])
