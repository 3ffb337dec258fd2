"""Protocols: small real implementations satisfy them, and one step can be told end to end."""

import inspect
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from esper.leyline import (
    ActionExecutionResult,
    ActionHead,
    ActionMasks,
    ActionSpec,
    EngineListener,
    EsperError,
    HostProtocol,
    InjectionSpec,
    LifecycleOp,
    PolicyDecision,
    PolicyProtocol,
    RewardComponentsTelemetry,
    RewardInputs,
    RewardProtocol,
    Rollout,
    SinkProtocol,
    StepRecord,
    TelemetryEvent,
    Topology,
    TrainingSignals,
)
from esper.leyline.payloads import PPOUpdateMetrics, SlotPayload


class TinyHost(nn.Module):
    """Two linear maps with a slot between them."""

    topology: Topology = "mlp"

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)

    def segments(self) -> Sequence[nn.Module]:
        return (self.first, self.second)

    def injection_specs(self) -> tuple[InjectionSpec, ...]:
        return (InjectionSpec("r0c0", channels=8, position=0, surface="hidden"),)

    def forward(self, x: Tensor) -> Tensor:
        for segment in self.segments():
            x = segment(x)
        return x


def score_gain(inputs: RewardInputs) -> tuple[np.ndarray, RewardComponentsTelemetry]:
    """A reward as a plain function: change of score minus upkeep."""
    parts = {
        "score": inputs.score_E - inputs.score_before_E,
        "upkeep": -0.01 * inputs.live_mac_share_E,
    }
    components = RewardComponentsTelemetry.of(parts, inputs.members)
    return components.total, components


class Waiter:
    """Waits, and counts its steps per member in its state."""

    def __init__(self, reward: RewardProtocol) -> None:
        self.reward = reward
        self.rewards: list[np.ndarray] = []
        self.terminals: list[np.ndarray] = []

    def initial_state(self, members: int) -> np.ndarray:
        return np.zeros(members)

    def reset_state(self, policy_state: np.ndarray, reset_E: np.ndarray) -> np.ndarray:
        return np.where(reset_E, 0.0, policy_state)

    def act(
        self, obs: TrainingSignals, masks: ActionMasks, policy_state: np.ndarray
    ) -> tuple[PolicyDecision, np.ndarray]:
        members = len(obs.train_loss_E)
        return PolicyDecision.deterministic(ActionSpec.wait(members)), policy_state + 1

    def store(self, inputs: RewardInputs, terminal_E: np.ndarray) -> RewardComponentsTelemetry:
        reward_E, components = self.reward(inputs)
        self.rewards.append(reward_E)
        self.terminals.append(terminal_E)
        return components

    def update(self, rollout: Rollout[np.ndarray]) -> PPOUpdateMetrics | None:
        self.rewards.clear()
        return None


class Diary:
    """A listener that keeps what it is told."""

    def __init__(self) -> None:
        self.reported: list[str] = []

    def on_round_start(self, round_index: int, members: int) -> None:
        self.reported.append(f"round {round_index}: {members} members")

    def on_slot_events(self, round_index: int, step: int, payload: SlotPayload) -> None:
        self.reported.append(type(payload).__name__)

    def on_step(self, record: StepRecord) -> None:
        self.reported.append(f"step {record.signals.step}")

    def on_round_end(self, rollout: Rollout[object]) -> None:
        self.reported.append(f"end {rollout.round_index}")


class Memory:
    """A sink that keeps events."""

    def __init__(self) -> None:
        self.events: list[TelemetryEvent] = []

    def emit(self, event: TelemetryEvent) -> None:
        self.events.append(event)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


IMPLEMENTED = [
    (HostProtocol, TinyHost()),
    (PolicyProtocol, Waiter(score_gain)),
    (RewardProtocol, score_gain),
    (EngineListener, Diary()),
    (SinkProtocol, Memory()),
]


@pytest.mark.parametrize(
    ("protocol", "thing"), IMPLEMENTED, ids=[p.__name__ for p, _ in IMPLEMENTED]
)
def test_small_implementation_satisfies_the_protocol(protocol: type, thing: object):
    assert isinstance(thing, protocol)
    assert not isinstance(object(), protocol)
    for name, method in vars(protocol).items():
        if inspect.isfunction(method) and not name.startswith("_"):
            theirs = inspect.signature(getattr(type(thing), name)).parameters
            assert list(inspect.signature(method).parameters) == list(theirs)


def test_host_missing_its_slots_does_not_satisfy_the_protocol():
    assert not isinstance(nn.Linear(2, 2), HostProtocol)


def test_host_runs_its_segments():
    host, x = TinyHost(), torch.randn(5, 4)
    assert torch.equal(host(x), host.second(host.first(x)))


def step_of(build, policy: Waiter, state: np.ndarray) -> tuple[StepRecord, np.ndarray]:
    """One step as the engine tells it, on made-up measurements."""
    obs, masks = build(TrainingSignals), build(ActionMasks)
    decision, state = policy.act(obs, masks, state)
    scores = {"score_E": np.array([0.5, 0.25, 0.0]), "score_before_E": np.array([0.25, 0.5, 0.0])}
    quiet = {"rolled_back_E": np.zeros(3, dtype=bool), "live_mac_share_E": np.ones(3)}
    inputs = build(RewardInputs, {**scores, **quiet, "actions": decision.actions})
    rewards = policy.store(inputs, inputs.terminal)
    record = build(
        StepRecord,
        {
            "signals": obs,
            "masks": masks,
            "decision": decision,
            "result": build(ActionExecutionResult),
            "reward_inputs": inputs,
            "rewards": rewards,
        },
    )
    return record, policy.reset_state(state, inputs.rolled_back_E)


def test_one_step_is_told_end_to_end(build):
    policy, diary = Waiter(score_gain), Diary()
    diary.on_round_start(0, 3)
    record, state = step_of(build, policy, policy.initial_state(3))
    diary.on_step(record)
    rollout = build(Rollout, {"final_state": state})
    diary.on_round_end(rollout)
    assert diary.reported == ["round 0: 3 members", "step 0", "end 0"]
    assert record.rewards.total.tolist() == pytest.approx([0.24, -0.26, -0.01])
    assert policy.rewards[0].tolist() == record.rewards.total.tolist()
    assert policy.terminals[0].all()
    assert rollout.final_state.tolist() == [1.0, 1.0, 1.0]
    assert policy.update(rollout) is None


def test_reset_touches_only_the_rows_it_is_told():
    policy = Waiter(score_gain)
    state = policy.reset_state(np.array([4.0, 5.0]), np.array([True, False]))
    assert state.tolist() == [0.0, 5.0]


def test_certain_decision_puts_all_weight_on_the_choice():
    actions = ActionSpec.wait(2)
    decision = PolicyDecision.deterministic(actions)
    assert decision.op_probability_EO[:, LifecycleOp.WAIT].tolist() == [1.0, 1.0]
    assert (decision.op_probability_EO.sum(axis=1) == 1).all()
    assert decision.head_confidence_EA.shape == (2, len(ActionHead))
    assert np.isnan(decision.value_E).all()


def test_decision_of_another_size_is_refused(build):
    with pytest.raises(EsperError, match="5 operations and 8 heads, there are 10 and 8"):
        build(PolicyDecision, O=5)
