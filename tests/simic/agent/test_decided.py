"""Void and forced actions do not affect the policy, in closed form.

The losses are computed from tensors made by hand, so that their gradients can be written down.
"""

import math

import numpy as np
import pytest
import torch

from esper.leyline import ActionHead, LifecycleOp
from esper.simic.agent.buffer import Minibatch
from esper.simic.agent.config import PPOConfig
from esper.simic.agent.schedule import Schedule
from esper.simic.agent.update import Targets, make_targets, ppo_losses
from esper.simic.training.runner import run_ppo_updates
from esper.tamiyo.heads import Choices
from esper.tamiyo.network import PolicyOutput
from ppo_support import OPS, K, S, agent, masks_for, random_obs, weights

T, E, A = 7, 5, len(ActionHead)
EVERYONE = torch.arange(E)
COEF = 0.3
WEIGHTS = tuple(0.5 + 0.1 * head for head in ActionHead)
CONFIG = PPOConfig(value_coef=0.25, head_entropy=WEIGHTS)


class Made:
    """Outputs of a network as leaves, at the rollout's own probabilities: every ratio is 1."""

    def __init__(self, decided_TE: torch.Tensor, used_TEA: torch.Tensor | None = None) -> None:
        rng = torch.Generator().manual_seed(0)
        shape = (T, E, A)
        used = torch.ones(shape, dtype=torch.bool) if used_TEA is None else used_TEA
        self.log_prob_TEA = -torch.rand(shape, generator=rng)
        self.now_TEA = self.log_prob_TEA.clone().requires_grad_()
        self.entropy_TEA = (torch.rand(shape, generator=rng) * used).requires_grad_()
        self.value_TE = torch.randn((T, E), generator=rng).requires_grad_()
        self.used_TEA, self.decided_TE = used, decided_TE
        advantage, returned = (torch.randn((T, E), generator=rng) for _ in range(2))
        self.targets = Targets(advantage, returned, self.value_TE.detach(), decided_TE, {})

    def losses(self):
        nothing = torch.zeros(T, E, A, dtype=torch.int64)
        choices = Choices(
            nothing, self.now_TEA, self.entropy_TEA, self.used_TEA, torch.ones(T, E, OPS)
        )
        batch = Minibatch(None, None, None, nothing, self.log_prob_TEA, None, frozenset())  # type: ignore[arg-type]
        output = PolicyOutput(choices, self.value_TE)
        return ppo_losses(output, batch, self.targets, EVERYONE, CONFIG, COEF)


def some_decided(share: float = 0.6) -> torch.Tensor:
    return torch.rand((T, E), generator=torch.Generator().manual_seed(1)) < share


def test_only_decided_steps_have_a_gradient_and_each_the_same_weight():
    decided = some_decided()
    steps = int(decided.sum())
    assert 5 < steps < T * E - 5
    made = Made(decided)
    made.losses().total.backward()
    pull = -made.targets.advantage_TE[..., None].expand(T, E, A) / steps  # ratio 1: d ratio = 1
    expected = torch.where(decided[..., None], pull, 0.0)
    torch.testing.assert_close(made.now_TEA.grad, expected)
    push = torch.where(decided[..., None], -COEF * torch.tensor(WEIGHTS) / steps, 0.0)
    torch.testing.assert_close(made.entropy_TEA.grad, push)


def test_values_are_learnt_at_every_step():
    """Also where the action was void: the state was seen, and its reward was paid."""
    made = Made(some_decided())
    made.losses().total.backward()
    error = made.value_TE.detach() - made.targets.return_TE
    torch.testing.assert_close(made.value_TE.grad, CONFIG.value_coef * 2 * error / (T * E))


@pytest.mark.parametrize("uses", [1, 3, T * E])
def test_the_entropy_push_on_a_use_of_a_head_does_not_depend_on_how_often_it_is_used(uses):
    used = torch.zeros(T * E, A, dtype=torch.bool)
    used[:, ActionHead.OP] = True
    used[:uses, ActionHead.BLUEPRINT] = True
    made = Made(torch.ones(T, E, dtype=torch.bool), used.view(T, E, A))
    losses = made.losses()
    losses.total.backward()
    push = made.entropy_TEA.grad[..., ActionHead.BLUEPRINT].flatten()[:uses]
    expected = -COEF * WEIGHTS[ActionHead.BLUEPRINT] / (T * E)
    torch.testing.assert_close(push, torch.full((uses,), expected))
    mean = made.entropy_TEA[..., ActionHead.BLUEPRINT].sum() / uses
    assert losses.head_entropy_A[ActionHead.BLUEPRINT].item() == pytest.approx(mean.item())
    assert math.isnan(losses.head_entropy_A[ActionHead.TEMPO])


def test_the_bonus_is_the_entropy_of_the_joint_action():
    made = Made(some_decided())
    entropy = made.losses().figures[2].item()
    joint = made.entropy_TEA.detach().sum(-1)[made.decided_TE].mean().item()
    assert entropy == pytest.approx(joint)


def test_figures_are_those_of_decided_steps():
    """What was not decided may have moved as far as it likes."""
    decided = some_decided()
    still, moved = Made(decided), Made(decided)
    with torch.no_grad():
        for made in (still, moved):
            made.now_TEA[..., 0] += 0.05
        moved.now_TEA[~decided] += 3.0
        moved.entropy_TEA[~decided] += 3.0
    one, two = still.losses(), moved.losses()
    assert [float(f) for f in one.figures] == [float(f) for f in two.figures]
    assert one.total.item() == two.total.item()
    ratio = math.exp(0.05)
    kl, clipped, mean, least, most = (float(f) for f in two.figures[3:])
    assert kl == pytest.approx(ratio - 1 - 0.05, rel=1e-3)
    assert clipped == 0.0
    assert (mean, most) == pytest.approx((ratio, ratio), rel=1e-5)
    assert least == 1.0, "of the steps that do not count"


def test_advantages_are_normalised_by_the_steps_that_were_decided():
    rng = np.random.default_rng(0)
    decided = rng.random((T, E)) < 0.5
    advantage = rng.normal(size=(T, E)) * 2 + 1
    advantage[~decided] = 1000.0
    targets = make_targets(advantage, np.zeros((T, E)), decided, True, torch.device("cpu"))
    chosen = advantage[decided]
    found = targets.advantage_TE.numpy()[decided]
    np.testing.assert_allclose(found, (chosen - chosen.mean()) / chosen.std(), atol=1e-5)
    assert targets.figures["advantage_mean"] == pytest.approx(chosen.mean())
    assert targets.figures["advantage_std"] == pytest.approx(chosen.std())
    assert targets.return_TE.numpy() == pytest.approx(advantage), "returns are of all steps"


def forced_rollout(it, ops: tuple[LifecycleOp, ...]):
    rollout, rng = it.make_buffer(T, E, S, K), np.random.default_rng(0)
    masks = masks_for(np.ones((E, OPS, S), dtype=bool), ops)
    for step in range(T):
        act = it.act(random_obs(rng, E), masks, it.initial_state(E), 0, step)
        rollout.record(act.trace)
        rollout.reward(rng.normal(size=E), np.ones(E, dtype=bool))
    return rollout


def test_a_rollout_without_a_decision_teaches_values_alone():
    """Every figure is finite, and no head of the policy moves."""
    it = agent(entropy=Schedule(0.1))
    rollout = forced_rollout(it, (LifecycleOp.WAIT,))
    assert not rollout.decided_TE.any()
    before = weights(it)
    metrics = run_ppo_updates(it, 1, rollout, None)
    assert (metrics.policy_loss, metrics.entropy, metrics.approx_kl) == (0.0, 0.0, 0.0)
    assert (metrics.ratio_min, metrics.ratio_mean, metrics.ratio_max) == (1.0, 1.0, 1.0)
    assert metrics.value_loss > 0
    moved = {name for name, p in weights(it).items() if not torch.equal(p, before[name])}
    assert any(name.startswith("value") for name in moved)
    assert not any(name.startswith("heads") for name in moved)


def test_where_there_is_a_choice_there_is_a_decision():
    rollout = forced_rollout(agent(), (LifecycleOp.WAIT, LifecycleOp.ADVANCE))
    assert rollout.decided_TE.all()
