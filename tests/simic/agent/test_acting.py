"""Graph replay of `act`: same numbers as eager, and results are never overwritten.

The fake records the work of a step and runs that very work again, whatever the caller has in
mind by then; between steps every room is filled with rubbish, as other graphs of the pool would.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import fields
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from esper.device.bfloat16 import bfloat16_passes
from esper.device.graphs import GraphCache
from esper.leyline import LifecycleOp
from esper.simic.agent import PPOAgent
from esper.simic.agent.acting import ReplayedSteps
from esper.simic.agent.agent import Act
from esper.simic.agent.schedule import Schedule
from esper.simic.training.runner import run_ppo_updates
from esper.tamiyo.network_config import NetworkConfig
from ppo_support import OPS, K, S, agent, fill, masks_for, random_obs, same_bits, shaken, weights

E, T = 5, 8
MIXES = (
    tuple(LifecycleOp),
    (LifecycleOp.WAIT,),
    (LifecycleOp.WAIT, LifecycleOp.ADVANCE),
    (LifecycleOp.WAIT, LifecycleOp.PRUNE),
)
"""Legal operations, each asking for other heads."""


class Again:
    """A recorder on the CPU: the work of the capture is what every replay runs."""

    def __init__(self) -> None:
        self.captured: list[partial[None]] = []

    def capture(self, work: Callable[[], None]) -> Rerun:
        assert isinstance(work, partial)
        self.captured.append(work)
        return Rerun(work)


class Rerun:
    def __init__(self, work: partial[None]) -> None:
        self.work = work
        self.places = self._places()

    def _places(self) -> dict[str, int]:
        network, buffers, _ = self.work.args
        found = dict(network.named_parameters()) | buffers.packed.tensors
        found |= {"out": buffers.out, "hidden": buffers.hidden_ED, "cell": buffers.cell_ED}
        return {name: tensor.data_ptr() for name, tensor in found.items()}

    def replay(self) -> None:
        assert self._places() == self.places, "moved since the capture"
        self.work()


class Spoiling(ReplayedSteps):
    """Overwrites every graph buffer after each step."""

    @torch.inference_mode()
    def step(self, request):
        result = super().step(request)
        for buffers in self._buffers.values():
            for tensor in (
                buffers.out,
                buffers.hidden_ED,
                buffers.cell_ED,
                *buffers.packed.tensors.values(),
            ):
                tensor.fill_(torch.nan if tensor.is_floating_point() else 1)
        return result


def graphed(it: PPOAgent, recorder: object = None) -> PPOAgent:
    it.use_graphs(GraphCache(recorder or Again()))
    it._replayed = Spoiling(it.network, it.device, it.graphs)
    return it


def pair(**settings: object) -> tuple[PPOAgent, PPOAgent]:
    """The same agent by replay and eagerly."""
    return graphed(shaken(agent(**settings))), shaken(agent(**settings))


def numbers(act: Act) -> dict[str, Tensor]:
    """All that an act handed out, as copies."""
    decision, trace = act.decision, act.trace
    tensors = {f.name: getattr(trace.inputs, f.name) for f in fields(trace.inputs)}
    masks = tensors.pop("masks")
    tensors |= {f"mask {f.name}": getattr(masks, f.name) for f in fields(masks)}
    tensors |= {"choice": trace.choice_EA, "log_prob": trace.log_prob_EA}
    for when, state in (("before", trace.state), ("after", act.state)):
        tensors |= {f"hidden {when}": state.hidden_ED, f"cell {when}": state.cell_ED}
    arrays = {
        f"action {f.name}": getattr(decision.actions, f.name) for f in fields(decision.actions)
    }
    arrays |= {f.name: getattr(decision, f.name) for f in fields(decision) if f.name != "actions"}
    arrays["value"] = trace.value_E
    copies = {name: tensor.clone() for name, tensor in tensors.items()}
    return copies | {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}


def seen(step: int, members: int = E, slots: int = S):
    """What step `step` shows; legal operations change from step to step."""
    rng = np.random.default_rng([step, members, slots])
    slot_EOS = rng.random((members, OPS, slots)) < 0.5
    slot_EOS[:, :, 0] = True
    return random_obs(rng, members, slots), masks_for(slot_EOS, MIXES[step // 3 % len(MIXES)])


def acts_of(it: PPOAgent, steps: int = 4 * T, envs: int = E, slots: int = S, **how) -> list[Act]:
    state, acts = it.initial_state(envs), []
    for step in range(steps):
        acts.append(it.act(*seen(step, envs, slots), state, 0, step, **how))
        state = it.reset_state(acts[-1].state, np.arange(envs) == step % 7)
    return acts


def assert_same(left: list[Act], right: list[Act]) -> None:
    for step, (one, two) in enumerate(zip(left, right, strict=True)):
        ours, theirs = numbers(one), numbers(two)
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            assert value.dtype == theirs[name].dtype, name
            assert torch.equal(value, theirs[name]), f"step {step}: {name}"
        assert one.trace.epsilon == two.trace.epsilon
        assert np.array_equal(one.trace.legal_O, two.trace.legal_O)


HOWS = {
    "learning": {},
    "sampled": {"learning": False},
    "greedy": {"greedy": True},
    "members of a larger run": {"members": np.array([11, 3, 7, 0, 25])},
}


@pytest.mark.parametrize(
    ("core", "name"),
    [("lstm", "members of a larger run"), ("memoryless", "greedy"), ("memoryless", "sampled")],
)
def test_replayed_acts_are_the_plain_ones(core, name):
    how = HOWS[name]
    network = NetworkConfig(width=16, attention_heads=2, embedding=4, core=core)
    one, two = pair(network=network, exploration=Schedule(0.2))
    assert_same(acts_of(one, **how), acts_of(two, **how))
    cache = one.graphs
    assert cache.captures == len(MIXES), "one graph a set of heads"
    assert cache.eager == len(MIXES), "each is warmed up once"
    assert cache.replays == 4 * T - len(MIXES)


def test_updates_in_between_are_followed():
    """Whole rollouts of both, each learnt from: exploration, statistics and weights move on."""
    ends = []
    for it in pair(exploration=Schedule(0.3, 0.0, 3)):
        rollout, acts = it.make_buffer(T, E, S, K), []
        for round_index in range(4):
            acts += fill(it, rollout, round_index)
            run_ppo_updates(it, 1, rollout, it.obs_normalizer)
        ends.append((acts, weights(it)))
    (left, ours), (right, theirs) = ends
    assert_same(left, right)
    assert same_bits(ours, theirs)


def test_a_replay_sees_weights_that_changed():
    it = graphed(agent(normalize_observations=False))
    state = it.initial_state(E)
    values = [it.act(*seen(0), state, 0, 0).decision.value_E for _ in range(3)]
    assert np.array_equal(values[1], values[2])
    assert it.graphs.replays == 2
    with torch.no_grad():
        it.network.value[2].bias += 1.0
    moved = it.act(*seen(0), state, 0, 0).decision.value_E
    np.testing.assert_allclose(moved, values[2] + 1.0, atol=1e-5)
    assert it.graphs.captures == 1


def test_nothing_handed_out_is_written_to_again():
    it = graphed(shaken(agent()))
    state, acts, kept = it.initial_state(E), [], []
    for step in range(2 * T):
        acts.append(it.act(*seen(step), state, 0, step))
        kept.append(numbers(acts[-1]))
        state = acts[-1].state
    assert it.graphs.replays > T
    for act, before in zip(acts, kept, strict=True):
        assert same_bits(numbers(act), before)


def test_populations_of_other_shapes_take_turns():
    one, two = pair()
    for members, slots in ((5, 3), (2, 3), (5, 4), (5, 3), (2, 3)):
        assert_same(*(acts_of(it, 6, members, slots) for it in (one, two)))
        assert_same(*(acts_of(it, 6, members, slots, greedy=True) for it in (one, two)))
    assert one.graphs.captures == 3 * 2 * 2, "shapes, greedy or not, sets of heads"


class Refusing:
    def capture(self, work: Callable[[], None]) -> Rerun:
        raise RuntimeError("operation not permitted\nwhile capturing")


def test_a_capture_that_fails_leaves_the_numbers_alone(caplog):
    one, two = graphed(shaken(agent()), Refusing()), shaken(agent())
    with caplog.at_level(logging.WARNING):
        assert_same(acts_of(one), acts_of(two))
    assert [r.getMessage() for r in caplog.records] == [
        "graphs off from here on, results stay the same: a capture failed: operation not permitted"
    ]
    assert one.graphs.eager == 4 * T


def test_under_autocast_steps_are_computed_eagerly():
    one, two = pair()
    with bfloat16_passes("cpu"), torch.autocast("cpu", dtype=torch.bfloat16):
        assert_same(acts_of(one, 4), acts_of(two, 4))
    assert one.graphs.eager == one.graphs.replays == 0


def test_a_state_of_another_size_is_refused_and_forgotten():
    one, two = pair()
    with pytest.raises(RuntimeError):
        one.act(*seen(0), one.initial_state(E + 1), 0, 0, learning=False)
    assert_same(acts_of(one), acts_of(two))


def test_graphs_are_an_agents_own():
    it = graphed(shaken(agent()))
    acts_of(it)
    other = shaken(agent())
    assert other.graphs is None, "on a CPU none are made"
    it.use_graphs(None)
    assert it.graphs is None
    assert_same(acts_of(it, greedy=True), acts_of(other, greedy=True))
