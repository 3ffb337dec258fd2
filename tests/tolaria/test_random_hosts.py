"""Runs of a host with dropout: repeatable, resumable, and pairs of them comparable."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from engine_support import histories, random_policy, small_engine, small_task
from esper.kasmina import CNNHost
from esper.leyline.actions import ActionSpec
from esper.leyline.records import PolicyDecision
from esper.tamiyo.baselines import RandomPolicy, StaticTopology, WaitPolicy


class DroppingHost(CNNHost):
    """As the host of `small_task`, with dropout behind two of its blocks."""

    def __init__(self) -> None:
        super().__init__(10, 1, 3, 2, kernel_size=1)
        for pool in (0, 2):
            self.pools[pool] = nn.Sequential(nn.MaxPool2d(2, ceil_mode=True), nn.Dropout(0.3))


SPEC = replace(small_task(episode_length=4), host_factory=DroppingHost)


def run(policy, rounds: int = 1, disturbance: int = 0, resume=None, **config):
    """What every step of the last round came to."""
    torch.manual_seed(disturbance)
    engine = small_engine(SPEC, **({"seed": 5, "executor": "vmap"} | config))
    if resume is not None:
        engine.load_state_dict(resume)
    states = []
    for _ in range(rounds):
        engine.run_rollout(policy)
        states.append(engine.state_dict())
    return histories(engine.episode), states


def same(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(left[name], right[name], equal_nan=True) for name in left)


@pytest.mark.parametrize(
    ("executor", "profile"), [("vmap", "exact"), ("vmap", "fast"), ("loop", "exact")]
)
def test_same_seed_twice_is_bit_identical(executor, profile):
    runs = [
        run(random_policy(5), disturbance=d, executor=executor, profile=profile)[0] for d in (1, 2)
    ]
    assert same(*runs)
    assert not same(runs[0], run(random_policy(5), executor=executor, seed=6)[0])


def test_dropout_is_part_of_the_run():
    """Else nothing above would say anything."""
    plain = small_engine(seed=5, executor="vmap", spec=small_task(episode_length=4))
    plain.run_rollout(WaitPolicy())
    assert not same(run(WaitPolicy())[0], histories(plain.episode))


def test_a_run_resumed_between_rounds_is_the_one_that_was_not_interrupted():
    expected, states = run(random_policy(5), rounds=2, disturbance=1)
    resumed, _ = run(random_policy(5), disturbance=2, resume=states[0])
    assert same(resumed, expected)


def test_executors_agree():
    vmap, loop = (run(WaitPolicy(), executor=executor)[0] for executor in ("vmap", "loop"))
    for name in ("train_loss_TE", "loss_TE"):
        np.testing.assert_allclose(vmap[name], loop[name], rtol=1e-4, err_msg=name)


class OthersGrow(RandomPolicy):
    """Member 0 waits, the others act at random."""

    def act(self, obs, masks, policy_state):
        decision, state = super().act(obs, masks, policy_state)
        wait = ActionSpec.wait(len(masks.op_EO))
        fields = {
            name: np.where(np.arange(len(wait.op)) == 0, getattr(wait, name), value)
            for name, value in vars_of(decision.actions).items()
        }
        return PolicyDecision.deterministic(ActionSpec(**fields)), state


def vars_of(actions: ActionSpec) -> dict[str, np.ndarray]:
    return {name: getattr(actions, name) for name in actions.__dataclass_fields__}


def test_policies_that_leave_a_member_alone_see_the_same_member():
    """As `esper compare` pairs them: what differs is the policy, not the draw."""
    waiting, _ = run(WaitPolicy(), disturbance=1)
    barren, _ = run(StaticTopology({}), disturbance=2)
    assert same(waiting, barren)
    others, _ = run(OthersGrow(3), disturbance=3)
    assert not np.array_equal(others["train_loss_TE"][:, 1:], waiting["train_loss_TE"][:, 1:])
    np.testing.assert_allclose(
        others["train_loss_TE"][:, 0], waiting["train_loss_TE"][:, 0], rtol=1e-4
    )


def test_the_global_generator_is_left_alone():
    torch.manual_seed(7)
    expected = torch.get_rng_state()
    run(random_policy(5), disturbance=7)
    assert torch.equal(torch.get_rng_state(), expected)


class NumpyNoise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * float(np.random.rand()) if self.training else x


class NoisyHost(DroppingHost):
    def __init__(self) -> None:
        super().__init__()
        self.pools[1] = nn.Sequential(nn.MaxPool2d(2, ceil_mode=True), NumpyNoise())


def test_an_exact_run_that_cannot_be_repeated_says_so(caplog):
    spec = replace(SPEC, host_factory=NoisyHost)
    with caplog.at_level(logging.WARNING):
        small_engine(spec, profile="exact", members=2)
    (line,) = [r.message for r in caplog.records]
    assert line.startswith("this run is not reproducible: host NoisyHost draws random numbers from")
    assert "numpy.random" in line
