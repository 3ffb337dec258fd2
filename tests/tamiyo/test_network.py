"""The policy network as a whole: slots in any number and order, memory, precision, sizes."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from esper.device.bfloat16 import bfloat16_passes
from esper.leyline import EsperError, LifecycleOp
from esper.tamiyo import NetworkConfig, Observation
from esper.tamiyo.heads import Chooser
from esper.tamiyo.inputs import PolicyInputs
from ppo_support import EVERY_OP, OPS, SMALL, agent, masks_for, random_obs, shaken

CPU = torch.device("cpu")
ADVANCE = LifecycleOp.ADVANCE


def point(it, obs, state=None):
    """Probability of each slot for ADVANCE, where every slot is open; and the state after."""
    members, slots = obs.blueprint_ES.shape
    masks = masks_for(np.ones((members, OPS, slots), dtype=bool), (ADVANCE,))
    inputs = PolicyInputs.of(obs, masks, CPU)
    rows = []
    for slot in range(slots):
        given = torch.zeros(members, 8, dtype=torch.int64)
        given[:, 0], given[:, 1] = int(ADVANCE), slot
        with torch.no_grad():
            output, after = it.network.step(
                inputs,
                state or it.initial_state(members),
                torch.zeros(1, 1),
                Chooser(given_A=given),
                frozenset({0, 1}),
            )
        rows.append(output.choices.log_prob_A.sum(-1).exp())
    return torch.stack(rows, -1), output.value, after


def test_slots_in_another_order_are_pointed_at_in_that_order():
    it, obs = shaken(agent()), random_obs(np.random.default_rng(0), 6, 4)
    order = [2, 0, 3, 1]
    turned = Observation(
        obs.global_EG,
        obs.slot_ESF[:, order],
        obs.candidate_ESKD[:, order],
        obs.blueprint_ES[:, order],
    )
    p, value, _ = point(it, obs)
    q, same, _ = point(it, turned)
    assert torch.allclose(p[:, order], q, atol=1e-6)
    assert torch.allclose(value, same, atol=1e-6)
    assert p.std() > 1e-3


@pytest.mark.parametrize("field", ["global_EG", "slot_ESF", "candidate_ESKD", "blueprint_ES"])
def test_everything_that_is_shown_is_read(field):
    it, rng = shaken(agent()), np.random.default_rng(0)
    obs, other = random_obs(rng, 6), random_obs(rng, 6)
    changed = replace(obs, **{field: getattr(other, field)})
    p, value, _ = point(it, obs)
    q, moved, _ = point(it, changed)
    assert (p - q).abs().max() > 1e-4
    assert (value - moved).abs().max() > 1e-4


def test_the_core_remembers_and_the_memoryless_one_does_not():
    rng = np.random.default_rng(0)
    before, now = [random_obs(rng, 5) for _ in range(2)], random_obs(rng, 5)
    for core, remembers in (("lstm", True), ("memoryless", False)):
        network = NetworkConfig(width=16, attention_heads=2, embedding=4, core=core)
        it = shaken(agent(network=network))
        seen = [point(it, now, point(it, past)[2])[0] for past in before]
        assert bool((seen[0] - seen[1]).abs().max() > 1e-4) == remembers


def test_reset_rows_forget_and_the_others_do_not():
    it, rng = shaken(agent()), np.random.default_rng(0)
    _, _, state = point(it, random_obs(rng, 4))
    reset = it.reset_state(state, np.array([False, True, False, True]))
    assert reset.hidden_ED[[1, 3]].eq(0).all()
    assert reset.cell_ED[[1, 3]].eq(0).all()
    assert torch.equal(reset.hidden_ED[[0, 2]], state.hidden_ED[[0, 2]])
    assert state.hidden_ED.ne(0).all()


def test_heads_and_value_stay_in_float32_under_autocast():
    it, rng = agent(), np.random.default_rng(0)
    obs = random_obs(rng, 4)
    inputs = PolicyInputs.of(obs, masks_for(np.ones((4, OPS, 3), dtype=bool)), CPU)
    with bfloat16_passes("cpu"), torch.autocast("cpu", dtype=torch.bfloat16):
        output, _ = it.network.step(
            inputs, it.initial_state(4), torch.zeros(1, 1), Chooser(), frozenset(range(8))
        )
    assert output.choices.log_prob_A.dtype == output.value.dtype == torch.float32


def test_building_a_network_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    agent(seed=9)
    assert torch.equal(torch.rand(3), expected)


def test_the_seed_decides_the_first_weights():
    first, again, other = (agent(seed=s).network.encode_slot[0].weight for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_fresh_policy_is_nearly_uniform():
    p, _, _ = point(agent(), random_obs(np.random.default_rng(0), 8, 5))
    assert torch.allclose(p, torch.full_like(p, 0.2), atol=0.02)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"width": 0}, "NetworkConfig.width=0: must be 1 or more"),
        ({"width": 10, "attention_heads": 4}, "width=10 is not divisible by attention_heads=4"),
    ],
)
def test_impossible_sizes_are_refused(settings, complaint):
    with pytest.raises(EsperError, match=complaint):
        NetworkConfig(**settings)


def test_features_that_are_not_finite_are_named():
    obs = random_obs(np.random.default_rng(0), 4)
    obs.slot_ESF[2, 1, 0] = np.nan
    it = agent(network=SMALL)
    masks = masks_for(np.ones((4, OPS, 3), dtype=bool))
    with pytest.raises(EsperError, match=r"slot_ESF at \(2, 1, 0\).*nan"):
        it.act(obs, masks, it.initial_state(4), 0, 0)
    assert it.obs_normalizer.pending["slot"].count == 0


def test_a_prior_is_what_a_fresh_policy_tends_to_do():
    weights = (1, 2, 4, 1, 1, 1, 2, 3, 1, 2)
    prior = tuple(math.log(weight) for weight in weights)
    it = agent(spec=EVERY_OP, network=replace(SMALL, op_prior=prior))
    masks = masks_for(np.ones((5, OPS, 3), dtype=bool))
    obs = random_obs(np.random.default_rng(0), 5)
    decision = it.act(obs, masks, it.initial_state(5), 0, 0).decision
    expected = np.tile(np.array(weights) / sum(weights), (5, 1))
    np.testing.assert_allclose(decision.op_probability_EO, expected, atol=0.02)


@pytest.mark.parametrize("prior", [(0.0,), (0.0,) * 5 + (math.nan,)])
def test_a_prior_that_says_nothing_of_some_operation_is_refused(prior):
    with pytest.raises(EsperError, match=r"op_prior.*WAIT, GERMINATE"):
        NetworkConfig(op_prior=prior)
