"""The PPO update: ratios, clipping, hidden states, limits, schedules, reproducibility."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from esper.leyline import ActionHead, EsperError, LifecycleOp
from esper.simic.agent.buffer import RolloutBuffer
from esper.simic.agent.schedule import Schedule
from esper.simic.agent.update import Targets, evaluate, make_targets, ppo_losses
from esper.simic.training.runner import run_ppo_updates
from esper.tamiyo import NetworkConfig
from ppo_support import OPS, K, S, agent, fill, masks_for, random_obs, same_bits, shaken, weights

E, T = 6, 10
EVERYONE = torch.arange(E)


def made(round_index=0, **settings):
    """A shaken agent and a rollout of its own."""
    settings.setdefault("exploration", Schedule(0.1))
    it = shaken(agent(**settings))
    rollout = it.make_buffer(T, E, S, K)
    fill(it, rollout, round_index)
    return it, rollout


def losses_of(it, rollout, targets, **changes):
    config = replace(it.config, **changes)
    batch = rollout.minibatch(EVERYONE)
    output = evaluate(it.network, batch, use_amp=False)
    return ppo_losses(output, batch, targets, EVERYONE, config, config.entropy.at(0))


def targets_of(advantage, returned=0.0, value=0.0) -> Targets:
    shape = torch.zeros(T, E)
    decided = torch.ones(T, E, dtype=torch.bool)
    return Targets(*(shape + part for part in (advantage, returned, value)), decided, {})


# ---- hidden state -------------------------------------------------------------------------


def test_the_update_sees_the_log_probabilities_of_the_rollout():
    """States reset by terminals, truncations and rollbacks all over the rollout."""
    it, rollout = made()
    assert rollout.ended_TE[:-1].sum() > 5
    batch = rollout.minibatch(EVERYONE)
    assert not batch.split.whole
    with torch.no_grad():
        output = evaluate(it.network, batch, use_amp=False)
    assert (output.choices.log_prob_A - rollout.log_prob_TEA).abs().max() < 1e-5
    assert np.abs(output.value.numpy() - rollout.value_TE).max() < 1e-5


def test_a_state_carried_into_the_rollout_is_used():
    it = shaken(agent())
    rollout = it.make_buffer(3, E, S, K)
    rng = np.random.default_rng(0)
    masks = masks_for(np.ones((E, OPS, S), dtype=bool))
    state = it.act(random_obs(rng, E), masks, it.initial_state(E), 0, 0).state
    for step in range(3):
        act = it.act(random_obs(rng, E), masks, state, 0, 1 + step)
        rollout.record(act.trace)
        rollout.reward(np.zeros(E), np.zeros(E, dtype=bool))
        state = act.state
    batch = rollout.minibatch(EVERYONE)
    with torch.no_grad():
        output = evaluate(it.network, batch, use_amp=False)
        fresh = replace(batch, start=it.initial_state(E))
        forgotten = evaluate(it.network, fresh, use_amp=False)
    assert (output.choices.log_prob_A - rollout.log_prob_TEA).abs().max() < 1e-5
    assert (forgotten.choices.log_prob_A - rollout.log_prob_TEA).abs().max() > 1e-3


def test_an_uncut_state_would_give_other_log_probabilities():
    """What the first test proves could be lost: a network that ran through the ends."""
    it, rollout = made()
    rollout.terminal_TE[:-1] = rollout.truncated_TE[:-1] = False
    with torch.no_grad():
        output = evaluate(it.network, rollout.minibatch(EVERYONE), use_amp=False)
    assert (output.choices.log_prob_A - rollout.log_prob_TEA).abs().max() > 1e-3


def test_the_ratio_is_1_at_the_first_minibatch():
    it, rollout = made(epochs=1, minibatches=1)
    metrics = run_ppo_updates(it, 1, rollout, it.obs_normalizer)
    for ratio in (metrics.ratio_min, metrics.ratio_mean, metrics.ratio_max):
        assert ratio == pytest.approx(1.0, abs=1e-4)
    assert metrics.approx_kl == pytest.approx(0.0, abs=1e-6)
    assert metrics.clip_fraction == 0.0


def test_exploration_is_stored_with_the_rollout():
    """Annealed away by the time of the update, it still belongs to the rollout's probabilities."""
    it, rollout = made(exploration=Schedule(0.5, 0.0, steps=1), epochs=1, minibatches=1)
    it.updates_done = 1
    assert it.exploration == 0.0
    metrics = run_ppo_updates(it, 1, rollout, it.obs_normalizer)
    assert metrics.ratio_max == pytest.approx(1.0, abs=1e-4)
    assert metrics.exploration == 0.5


# ---- losses -------------------------------------------------------------------------------


def test_the_surrogate_is_clipped_on_the_joint_ratio():
    it, rollout = made(entropy=Schedule(0.0))
    rng = np.random.default_rng(0)
    advantage = torch.from_numpy(rng.normal(size=(T, E))).float()
    rollout.log_prob_TEA += torch.from_numpy(rng.normal(size=(T, E, 8)) * 0.1).float()
    losses = losses_of(it, rollout, targets_of(advantage), clip=0.15)
    with torch.no_grad():
        fresh = evaluate(it.network, rollout.minibatch(EVERYONE), use_amp=False).choices
    ratio = (fresh.log_prob_A.double() - rollout.log_prob_TEA.double()).sum(-1).exp()
    unclipped, held = ratio * advantage, ratio.clamp(0.85, 1.15) * advantage
    assert float(losses.figures[0]) == pytest.approx(
        -float(torch.minimum(unclipped, held).mean()), abs=1e-5
    )
    assert float(losses.figures[4]) == pytest.approx(
        float(((ratio - 1).abs() > 0.15).double().mean())
    )


@pytest.mark.parametrize(("sign", "shift", "moves"), [(1, -1, False), (-1, -1, True), (1, 1, True)])
def test_beyond_the_clip_only_the_way_back_has_a_gradient(sign, shift, moves):
    """A rollout that found the actions e times likelier (shift 1) or less likely (-1) than now."""
    it, rollout = made(value_coef=0.0, entropy=Schedule(0.0))
    rollout.log_prob_TEA[..., 0] += shift
    losses_of(it, rollout, targets_of(float(sign))).total.backward()
    size = sum(float(p.grad.abs().sum()) for p in it.network.parameters() if p.grad is not None)
    assert (size > 0) == moves


def test_kl_is_summed_over_heads():
    it, rollout = made()
    rollout.log_prob_TEA[..., [0, 1]] -= 0.3  # both heads now e**0.3 times likelier
    losses = losses_of(it, rollout, targets_of(0.0))
    each = math.exp(0.3) - 1 - 0.3
    assert float(losses.approx_kl) == pytest.approx(2 * each, rel=1e-3)


def test_values_are_drawn_to_the_returns():
    it, rollout = made()
    value = torch.from_numpy(rollout.value_TE).float()
    assert float(losses_of(it, rollout, targets_of(0.0, value + 2.0)).figures[1]) == pytest.approx(
        4.0, abs=1e-3
    )


def test_value_clipping_holds_values_back():
    """Moved beyond the clip, a value has no gradient unless it overshot its return."""
    it, rollout = made(entropy=Schedule(0.0))
    value = torch.from_numpy(rollout.value_TE).float()
    targets = targets_of(0.0, value - 1.0, value - 1.0)  # returned to before, now 1 above
    assert float(losses_of(it, rollout, targets, value_clip=0.2).figures[1]) == pytest.approx(
        1.0, abs=1e-3
    )
    targets = targets_of(0.0, value + 1.0, value - 1.0)  # on its way, but too fast
    held = losses_of(it, rollout, targets, value_clip=0.2)
    assert float(held.figures[1]) == pytest.approx(1.8**2, abs=1e-2)
    held.total.backward()
    assert all(float(p.grad.abs().sum()) == 0 for p in it.network.value.parameters())


def test_entropy_of_a_head_is_averaged_over_steps_where_it_counts():
    it, rollout = made()
    losses = losses_of(it, rollout, targets_of(0.0))
    with torch.no_grad():
        fresh = evaluate(it.network, rollout.minibatch(EVERYONE), use_amp=False).choices
    for head in ActionHead:
        counted = fresh.entropy_A[..., head][fresh.used_A[..., head]]
        assert counted.numel()
        assert float(losses.head_entropy_A[head]) == pytest.approx(float(counted.mean()), abs=1e-5)


@pytest.mark.parametrize("head", [ActionHead.OP, ActionHead.SLOT, ActionHead.ALPHA_SPEED])
def test_each_head_has_its_own_weight_in_the_entropy_bonus(head):
    it, rollout = made(entropy=Schedule(0.1), value_coef=0.0)
    only = tuple(float(h is head) for h in ActionHead)
    losses = losses_of(it, rollout, targets_of(0.0), head_entropy=only)
    with torch.no_grad():
        fresh = evaluate(it.network, rollout.minibatch(EVERYONE), use_amp=False).choices
    used = fresh.used_A[..., head].double().mean().item()
    assert 0.05 < used <= 1.0
    expected = -0.1 * used * losses.head_entropy_A[head].item()
    assert losses.total.item() == pytest.approx(expected, abs=1e-5)


def test_a_head_that_never_counts_reports_nothing():
    it = agent()
    rollout = it.make_buffer(T, E, S, K)
    rng = np.random.default_rng(0)
    masks = masks_for(np.ones((E, OPS, S), dtype=bool), (LifecycleOp.WAIT, LifecycleOp.ADVANCE))
    for step in range(T):
        act = it.act(random_obs(rng, E), masks, it.initial_state(E), 0, step)
        rollout.record(act.trace)
        rollout.reward(rng.normal(size=E), np.ones(E, dtype=bool))
    metrics = run_ppo_updates(it, 1, rollout, None)
    assert metrics.head_entropy[ActionHead.OP] > 0
    assert all(math.isnan(metrics.head_entropy[h]) for h in list(ActionHead)[2:])


# ---- targets ------------------------------------------------------------------------------


def test_advantages_are_normalised_over_the_rollout():
    advantage = np.random.default_rng(0).normal(size=(T, E)) * 5 + 3
    decided = np.ones((T, E), dtype=bool)
    targets = make_targets(advantage, np.zeros((T, E)), decided, True, torch.device("cpu"))
    assert float(targets.advantage_TE.mean()) == pytest.approx(0.0, abs=1e-5)
    assert float(targets.advantage_TE.std(correction=0)) == pytest.approx(1.0, abs=1e-5)
    assert targets.figures["advantage_mean"] == pytest.approx(advantage.mean())
    assert targets.figures["advantage_std"] == pytest.approx(advantage.std())
    plain = make_targets(advantage, np.zeros((T, E)), decided, False, torch.device("cpu"))
    assert plain.advantage_TE.numpy() == pytest.approx(advantage, abs=1e-5)


@pytest.mark.parametrize(("share", "expected"), [(1.0, 1.0), (0.0, 0.0)])
def test_explained_variance_is_1_for_perfect_and_0_for_constant_values(share, expected):
    returned = np.random.default_rng(0).normal(size=(T, E))
    value = share * returned
    decided = np.ones((T, E), dtype=bool)
    targets = make_targets(returned - value, value, decided, True, torch.device("cpu"))
    assert targets.figures["explained_variance"] == pytest.approx(expected)


def test_rewards_are_scaled_by_one_factor_and_never_shifted():
    it, rollout = made(gamma=1.0, gae_lambda=1.0, normalize_advantages=False)
    rollout.value_TE[:] = rollout.bootstrap_TE[:] = 0.0
    targets = it.targets(rollout)
    again = shaken(
        agent(gamma=1.0, gae_lambda=1.0, normalize_advantages=False, normalize_rewards=False)
    )
    raw = again.targets(rollout)
    scale = it.reward_normalizer.scale
    assert scale != pytest.approx(1.0)
    assert torch.allclose(targets.return_TE * scale, raw.return_TE, atol=1e-5)


# ---- limits, schedules, order -------------------------------------------------------------


def test_an_update_stops_at_the_kl_limit():
    it, rollout = made(epochs=50, learning_rate=Schedule(1e-2), target_kl=0.01)
    metrics = run_ppo_updates(it, 3, rollout, it.obs_normalizer)
    assert metrics.early_stopped
    assert metrics.epochs_run < 50
    assert metrics.approx_kl > 0.01
    assert it.updates_done == 3, "schedules count passes that were left out, too"


def test_a_step_beyond_the_kl_limit_is_not_taken():
    it, rollout = made(target_kl=0.01)
    rollout.log_prob_TEA[..., 0] -= 0.5
    before = weights(it)
    metrics = run_ppo_updates(it, 1, rollout, it.obs_normalizer)
    assert metrics.early_stopped
    assert metrics.epochs_run == 1
    assert math.isnan(metrics.grad_norm)
    assert same_bits(before, weights(it))


def test_without_a_limit_every_epoch_is_run():
    it, rollout = made(epochs=3, target_kl=None)
    metrics = run_ppo_updates(it, 2, rollout, it.obs_normalizer)
    assert (metrics.epochs_run, metrics.early_stopped, it.updates_done) == (6, False, 2)


def test_a_learning_rate_of_0_changes_nothing():
    it, rollout = made(learning_rate=Schedule(0.0))
    before = weights(it)
    run_ppo_updates(it, 1, rollout, it.obs_normalizer)
    assert same_bits(before, weights(it))


def test_the_scheduled_rate_is_the_one_that_steps():
    it = agent(learning_rate=Schedule(1e-2, 0.0, steps=1))
    rollout, seen = it.make_buffer(3, E, S, K), [weights(it)]
    for round_index in range(2):
        fill(it, rollout, round_index)
        run_ppo_updates(it, 1, rollout, it.obs_normalizer)
        seen.append(weights(it))
    assert not same_bits(seen[0], seen[1])
    assert same_bits(seen[1], seen[2])


def test_gradients_are_clipped_to_their_limit():
    """With plain gradient steps in place of Adam's, the weights move by at most lr x limit."""
    it, rollout = made(epochs=1, minibatches=1, max_grad_norm=1e-3)
    it.optimizer = torch.optim.SGD(it.network.parameters(), lr=1.0)
    it.config = replace(it.config, learning_rate=Schedule(1.0))
    before = weights(it)
    metrics = run_ppo_updates(it, 1, rollout, it.obs_normalizer)
    moved = math.sqrt(sum(float((p - before[n]).pow(2).sum()) for n, p in weights(it).items()))
    assert metrics.grad_norm > 1e-2
    assert moved == pytest.approx(1e-3, rel=1e-2)


def test_every_member_is_in_one_minibatch_of_an_epoch(monkeypatch):
    it, rollout = made(epochs=2, minibatches=4)
    dealt, original = [], RolloutBuffer.minibatch
    monkeypatch.setattr(
        RolloutBuffer, "minibatch", lambda self, m: dealt.append(m.tolist()) or original(self, m)
    )
    run_ppo_updates(it, 1, rollout, it.obs_normalizer)
    assert [len(m) for m in dealt] == [2, 2, 1, 1] * 2
    epochs = [[i for part in parts for i in part] for parts in (dealt[:4], dealt[4:])]
    assert all(sorted(order) == list(range(E)) for order in epochs)
    assert epochs[0] != epochs[1]


def test_fewer_members_than_minibatches_still_learn():
    it = agent(minibatches=8)
    rollout = it.make_buffer(T, 1, S, K)
    fill(it, rollout)
    assert run_ppo_updates(it, 1, rollout, it.obs_normalizer).epochs_run == it.config.epochs


def test_another_seed_gives_another_policy():
    found = []
    for seed in (4, 5):
        it = agent(seed=seed)
        rollout = it.make_buffer(T, E, S, K)
        fill(it, rollout)
        run_ppo_updates(it, 1, rollout, it.obs_normalizer)
        found.append(weights(it))
    assert not same_bits(*found)


def test_mixed_precision_learns_in_float32_weights():
    it, rollout = made(epochs=1)
    metrics = run_ppo_updates(it, 1, rollout, it.obs_normalizer, use_amp=True)
    assert metrics.ratio_mean == pytest.approx(1.0, abs=0.1)
    assert all(p.dtype == torch.float32 for p in it.network.parameters())


def test_a_loss_that_is_not_finite_is_an_error():
    it, rollout = made()
    with torch.no_grad():
        it.network.value[2].bias.fill_(float("nan"))
    with pytest.raises(EsperError, match=r"PPO update 0: value_loss is nan.*lower learning_rate"):
        run_ppo_updates(it, 1, rollout, it.obs_normalizer)


COEFFICIENTS = (
    "gamma", "gae_lambda", "clip", "value_clip", "value_coef", "max_grad_norm", "target_kl",
)  # fmt: skip


def heads(**weights: float) -> tuple[float, ...]:
    return tuple(weights.get(head.name, 1.0) for head in ActionHead)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e39])
def test_a_prior_that_is_no_number_is_refused(bad):
    prior = (0.0, bad, *[0.0] * (OPS - 2))
    with pytest.raises(EsperError, match=r"op_prior=.*one number for each of WAIT, .*-1e6..1e6"):
        NetworkConfig(op_prior=prior)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"gamma": 1.5}, r"PPOConfig.gamma=1.5: must be within 0..1"),
        ({"epochs": 0}, r"PPOConfig.epochs=0: must be 1 or more"),
        ({"clip": 0.0}, r"PPOConfig.clip=0.0: must be above 0"),
        *(
            ({name: value}, rf"PPOConfig.{name}={value}: must be")
            for name in COEFFICIENTS
            for value in (math.nan, math.inf, -math.inf)
        ),
        ({"value_coef": 1e39}, r"value_coef=1e\+39: must be within 0..1e\+06"),
        ({"entropy": Schedule(-0.1)}, r"PPOConfig.entropy=-0.1: must lie between 0.0 and"),
        ({"entropy": Schedule(0.1, 1e39, 5)}, r"PPOConfig.entropy=1e\+39: must lie between"),
        ({"learning_rate": Schedule(2.0)}, r"PPOConfig.learning_rate=2.0: must lie between"),
        ({"head_entropy": heads(SLOT=math.nan)}, r"head_entropy of SLOT=nan: must be within 0.."),
        ({"head_entropy": heads(OP=math.inf)}, r"head_entropy of OP=inf: must be within 0.."),
        ({"head_entropy": heads(STYLE=-1.0)}, r"head_entropy of STYLE=-1.0: must be within 0.."),
        ({"value_clip": -1.0}, r"PPOConfig.value_clip=-1.0: must be above 0"),
        ({"head_entropy": (1.0,)}, r"head_entropy=\(1.0,\): must be one number per head"),
        ({"exploration": Schedule(0.5, 1.5, 3)}, r"PPOConfig.exploration=1.5: must lie between"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, complaint):
    with pytest.raises(EsperError, match=complaint):
        agent(**settings)


def test_an_observation_that_does_not_fit_is_refused():
    it, rng = agent(), np.random.default_rng(0)
    masks = masks_for(np.ones((E, OPS, S), dtype=bool), blueprints=3)
    with pytest.raises(EsperError, match="3 blueprints in masks, expected 2"):
        it.act(random_obs(rng, E), masks, it.initial_state(E), 0, 0)
    masks = masks_for(np.ones((E, OPS, S + 1), dtype=bool))
    with pytest.raises(EsperError, match="4 slots in masks, expected 3"):
        it.act(random_obs(rng, E), masks, it.initial_state(E), 0, 0)
