"""The joint action: its log-probability and entropy are what enumeration says they are."""

from dataclasses import fields, replace
from itertools import product

import numpy as np
import pytest
import torch

from esper.leyline import ActionHead, ActionMasks, LifecycleOp
from esper.leyline.actions import HEADS_BY_OP
from esper.tamiyo.heads import Chooser, required_heads
from esper.tamiyo.inputs import PolicyInputs
from esper.tamiyo.network import PolicyState, _held_seed
from ppo_support import EVERY_OP, SMALL, D, agent, masks_for, random_masks, random_obs, shaken

H = ActionHead
EVERY_HEAD = frozenset(ActionHead)
SLOTS = 2


def tiny_masks() -> ActionMasks:
    """Every operation, two slots of which PRUNE has one, few choices in the fixed heads."""
    slot_EOS = np.ones((1, len(LifecycleOp), SLOTS), dtype=bool)
    slot_EOS[0, LifecycleOp.PRUNE] = [False, True]
    open_all = masks_for(slot_EOS)
    blueprint_ESK = np.array([[[True, True], [False, True]]])
    fixed = ([1, 0, 1], [1, 1, 0], [1, 0, 0], [0, 1, 1, 0], [1, 0, 0, 0, 1])
    return ActionMasks(
        open_all.op_EO, slot_EOS, blueprint_ESK, *(np.array(f, dtype=bool) for f in fixed)
    )


def legal_choices(masks: ActionMasks) -> list[list[int]]:
    """Every action there is, as head indices; 0 in heads that do not count."""
    fixed = (masks.style_Y, masks.tempo_M, masks.alpha_target_T, masks.alpha_speed_V)
    per_head = dict(zip(list(H)[3:], (*fixed, masks.alpha_curve_U), strict=True))
    found = []
    for op in LifecycleOp:
        counting = HEADS_BY_OP[op]
        slots = np.flatnonzero(masks.slot_EOS[0, op]) if H.SLOT in counting else [0]
        for slot in slots:
            blueprints = (
                np.flatnonzero(masks.blueprint_ESK[0, slot]) if H.BLUEPRINT in counting else [0]
            )
            rest = [np.flatnonzero(per_head[h]) if h in counting else [0] for h in list(H)[3:]]
            found += [[int(op), slot, k, *more] for k, more in product(blueprints, product(*rest))]
    return [list(map(int, action)) for action in found]


def judge(it, masks, choices, epsilon=0.25, needed=EVERY_HEAD):
    """How likely these actions are for one member, as `Choices` over `[N, A]`."""
    obs = random_obs(np.random.default_rng(4), 1, masks.slot_EOS.shape[2])
    inputs = PolicyInputs.of(obs, masks, torch.device("cpu"))
    given = torch.tensor(choices)[:, None]
    chosen = []
    for row in given:
        with torch.no_grad():
            output, _ = it.network.step(
                inputs,
                it.initial_state(1),
                torch.full((1, 1), epsilon),
                Chooser(given_A=row),
                needed,
            )
        chosen.append(output.choices)
    return chosen


@pytest.fixture(scope="module")
def policy():
    return shaken(agent(spec=EVERY_OP))


@pytest.fixture(scope="module")
def everything(policy):
    """(choices, joint log-probability, conditional entropies) of every action of a tiny space."""
    masks = tiny_masks()
    choices = legal_choices(masks)
    judged = judge(policy, masks, choices)
    log_p = torch.cat([j.log_prob_A.sum(-1) for j in judged]).double()
    return choices, log_p, torch.cat([j.entropy_A for j in judged]).double()


def test_probabilities_of_all_actions_sum_to_one(everything):
    choices, log_p, _ = everything
    assert len(choices) == 48
    assert float(log_p.exp().sum()) == pytest.approx(1.0, abs=1e-5)


def test_joint_entropy_is_what_enumeration_says(everything):
    _, log_p, entropy_NA = everything
    exact = float(-(log_p.exp() * log_p).sum())
    along_the_way = float((log_p.exp() * entropy_NA.sum(-1)).sum())
    assert along_the_way == pytest.approx(exact, abs=1e-5)


def test_sampling_follows_the_joint_probability(policy, everything):
    choices, log_p, _ = everything
    members = 20_000
    masks = tiny_masks()
    obs = random_obs(np.random.default_rng(4), 1, SLOTS)
    many = type(obs)(*(np.repeat(getattr(obs, f.name), members, 0) for f in fields(obs)))
    crowd = ActionMasks(
        np.repeat(masks.op_EO, members, 0),
        np.repeat(masks.slot_EOS, members, 0),
        np.repeat(masks.blueprint_ESK, members, 0),
        masks.style_Y,
        masks.tempo_M,
        masks.alpha_target_T,
        masks.alpha_speed_V,
        masks.alpha_curve_U,
    )
    inputs = PolicyInputs.of(many, crowd, torch.device("cpu"))
    from esper.tamiyo.distribution import action_uniforms

    uniform = torch.from_numpy(action_uniforms(1, 0, 0, np.arange(members)))
    with torch.no_grad():
        output, _ = policy.network.step(
            inputs,
            policy.initial_state(members),
            torch.full((1, 1), 0.25),
            Chooser(uniform_A=uniform),
            EVERY_HEAD,
        )
    place = {tuple(action): i for i, action in enumerate(choices)}
    found = np.zeros(len(choices))
    for action in output.choices.choice_A.tolist():
        found[place[tuple(action)]] += 1 / members
    assert np.abs(found - log_p.exp().numpy()).max() < 4 * 0.5 / members**0.5


def test_heads_that_do_not_count_are_exactly_zero(policy):
    masks = tiny_masks()
    for op in LifecycleOp:
        choices = next(c for c in legal_choices(masks) if c[0] == op)
        (judged,) = judge(policy, masks, [choices])
        idle = [head for head in H if head not in HEADS_BY_OP[op]]
        assert judged.log_prob_A[0, idle].eq(0).all()
        assert judged.entropy_A[0, idle].eq(0).all()
        assert judged.used_A[0].tolist() == [head in HEADS_BY_OP[op] for head in H]
        busy = [h for h in H if h in HEADS_BY_OP[op] and h is not H.ALPHA_TARGET]
        open_heads = [h for h in busy if not (op is LifecycleOp.PRUNE and h is H.SLOT)]
        assert judged.entropy_A[0, open_heads].gt(0).all()


def test_choices_of_idle_heads_leave_no_trace(policy):
    masks = tiny_masks()
    prune = [int(LifecycleOp.PRUNE), 1, 0, 0, 0, 0, 1, 0]
    other = [int(LifecycleOp.PRUNE), 1, 1, 2, 1, 2, 1, 0]
    one, two = judge(policy, masks, [prune, other])
    assert torch.equal(one.log_prob_A, two.log_prob_A)


@pytest.mark.parametrize(
    ("earlier", "value", "later"),
    [
        (H.OP, int(LifecycleOp.ADVANCE), H.SLOT),
        (H.SLOT, 1, H.STYLE),
        (H.BLUEPRINT, 1, H.STYLE),
        (H.STYLE, 2, H.TEMPO),
        (H.TEMPO, 1, H.ALPHA_CURVE),
    ],
)
def test_a_head_sees_the_choices_before_it(policy, earlier, value, later):
    slot_EOS = np.ones((1, len(LifecycleOp), SLOTS), dtype=bool)
    germinate = [int(LifecycleOp.GERMINATE), 0, 0, 0, 0, 0, 0, 0]
    changed = list(germinate)
    changed[earlier] = value
    one, two = judge(policy, masks_for(slot_EOS), [germinate, changed], epsilon=0.0)
    assert abs(float(one.log_prob_A[0, later] - two.log_prob_A[0, later])) > 1e-3


def test_leaving_out_heads_nobody_asks_for_changes_nothing(policy):
    slot_EOS = np.ones((1, len(LifecycleOp), SLOTS), dtype=bool)
    ops = (LifecycleOp.WAIT, LifecycleOp.PRUNE)
    masks = masks_for(slot_EOS, ops)
    needed = required_heads(masks.op_EO[0])
    assert needed == HEADS_BY_OP[LifecycleOp.PRUNE]
    prune = [int(LifecycleOp.PRUNE), 1, 0, 0, 0, 0, 1, 0]
    (whole,), (lean,) = judge(policy, masks, [prune]), judge(policy, masks, [prune], needed=needed)
    assert torch.equal(whole.log_prob_A, lean.log_prob_A)
    assert torch.equal(whole.entropy_A, lean.entropy_A)


def test_the_gradient_reaches_every_weight_of_every_head():
    it = shaken(agent())
    rng = np.random.default_rng(0)
    members = 400
    obs, masks = random_obs(rng, members), random_masks(rng, members)
    inputs = PolicyInputs.of(obs, masks, torch.device("cpu"))
    chosen = it.act(obs, masks, it.initial_state(members), 0, 0).trace.choice_EA.clone()
    carried = PolicyState(torch.randn(members, SMALL.width), torch.randn(members, SMALL.width))
    output, _ = it.network.step(
        inputs, carried, torch.zeros(1, 1), Chooser(given_A=chosen), EVERY_HEAD
    )
    (output.choices.log_prob_A.sum(-1).mean() + output.value.mean()).backward()
    for name, parameter in it.network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def blueprint_probabilities(it, obs, slot):
    """Probability of each blueprint, given PLANT in this slot."""
    members, slots, blueprints = obs.candidate_ESKD.shape[:3]
    masks = masks_for(
        np.ones((members, len(LifecycleOp), slots), dtype=bool), blueprints=blueprints
    )
    inputs = PolicyInputs.of(obs, masks, torch.device("cpu"))
    rows = []
    for blueprint in range(blueprints):
        given = torch.zeros(members, len(H), dtype=torch.int64)
        given[:, :3] = torch.tensor([int(LifecycleOp.PLANT), slot, blueprint])
        with torch.no_grad():
            output, _ = it.network.step(
                inputs,
                it.initial_state(members),
                torch.zeros(1, 1),
                Chooser(given_A=given),
                EVERY_HEAD,
            )
        rows.append(output.choices.log_prob_A[:, H.BLUEPRINT].exp())
    return torch.stack(rows, -1)


def test_blueprints_in_another_order_are_pointed_at_in_that_order(policy):
    rng, order = np.random.default_rng(2), [2, 0, 3, 1]
    obs = random_obs(rng, 5)
    obs = replace(obs, candidate_ESKD=rng.normal(size=(5, 3, 4, D)).astype(np.float32))
    place_of = np.argsort(order)
    held_ES = np.where(obs.blueprint_ES >= 0, place_of[obs.blueprint_ES], -1)
    turned = replace(obs, candidate_ESKD=obs.candidate_ESKD[:, :, order], blueprint_ES=held_ES)
    p, q = (blueprint_probabilities(policy, seen, 1) for seen in (obs, turned))
    assert torch.allclose(p[:, order], q, atol=1e-6)
    assert p.std() > 1e-2


def test_the_blueprint_head_points_at_the_descriptors_of_the_chosen_slot(policy):
    """Alike descriptors are alike to it, whatever the blueprints are called; others are not."""
    obs = random_obs(np.random.default_rng(2), 5)
    same = obs.candidate_ESKD.copy()
    same[:, 1] = same[:, 1, :1]
    p = blueprint_probabilities(policy, replace(obs, candidate_ESKD=same), 1)
    assert torch.allclose(p, torch.full_like(p, 0.5), atol=1e-6)
    q = blueprint_probabilities(policy, replace(obs, candidate_ESKD=same), 0)
    assert (q - 0.5).abs().max() > 1e-2


def test_an_empty_slot_holds_no_descriptor():
    """An empty slot is not described by the first blueprint, nor by any other."""
    network = shaken(agent()).network
    obs = random_obs(np.random.default_rng(2), 4)
    empty = replace(obs, blueprint_ES=np.full_like(obs.blueprint_ES, -1))
    masks = random_masks(np.random.default_rng(0), 4)
    inputs = PolicyInputs.of(empty, masks, torch.device("cpu"))
    assert not _held_seed(inputs).any()
    held = PolicyInputs.of(replace(obs, blueprint_ES=np.ones_like(obs.blueprint_ES)), masks,
                           torch.device("cpu"))  # fmt: skip
    assert torch.equal(_held_seed(held), held.candidate_SKD[:, :, 1])
    tokens = [network._encode(it)[1] for it in (inputs, held)]
    assert not torch.allclose(*tokens)


def test_no_weight_depends_on_the_number_of_blueprints():
    rng, it = np.random.default_rng(0), agent()
    for blueprints in (1, 2, 7):
        obs = random_obs(rng, 4)
        descriptors = rng.normal(size=(4, 3, blueprints, D)).astype(np.float32)
        held_ES = rng.integers(-1, blueprints, size=(4, 3))
        obs = replace(obs, candidate_ESKD=descriptors, blueprint_ES=held_ES)
        masks = masks_for(np.ones((4, len(LifecycleOp), 3), dtype=bool), blueprints=blueprints)
        chosen = it.act(obs, masks, it.initial_state(4), 0, 0).decision.actions.blueprint
        assert chosen.max() < blueprints


def test_no_weight_depends_on_the_number_of_slots():
    rng = np.random.default_rng(0)
    it = agent()
    for slots in (1, 3, 7):
        obs, masks = random_obs(rng, 4, slots), random_masks(rng, 4, slots)
        assert it.act(obs, masks, it.initial_state(4), 0, 0).decision.actions.slot.max() < slots
