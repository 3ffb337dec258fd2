"""`SimicClient`: the engine's policy client around a `PPOAgent`.

    client = SimicClient(agent, ScoreReward(spec.upkeep))
    rollout = engine.run_rollout(client)     act and store, step by step
    metrics = client.update(rollout)         train on it and clear it

It converts the engine's signals, masks, reward inputs and rollouts to the agent's observations,
traces, rewards and episode ends. It owns the reward and the buffer of the current rollout.

Shape letters: E members, S slots.
"""

from __future__ import annotations

from enum import Enum

import numpy as np

from esper.leyline.actions import ActionSpec
from esper.leyline.arrays import Bools, Doubles
from esper.leyline.errors import EsperError
from esper.leyline.masks import ActionMasks
from esper.leyline.payloads import PPOUpdateMetrics
from esper.leyline.protocols import RewardProtocol
from esper.leyline.records import PolicyDecision, Rollout
from esper.leyline.rewards import RewardComponentsTelemetry, RewardInputs
from esper.leyline.signals import TrainingSignals
from esper.simic.agent.agent import Act, PPOAgent
from esper.simic.agent.buffer import RolloutBuffer, Trace
from esper.simic.agent.update_passes import run_ppo_updates
from esper.tamiyo.curve import draw_hidden, hide_curve
from esper.tamiyo.features import batch_signals_to_features, feature_names
from esper.tamiyo.inputs import Observation
from esper.tamiyo.network import PolicyState
from esper.tamiyo.network_config import PolicySpec


class ActingMode(Enum):
    """How actions are chosen, and whether they are stored for training."""

    LEARN = "learn"
    """Sampled with exploration, stored for `update`."""
    SAMPLE = "sample"
    """Sampled without exploration; nothing stored, running statistics unchanged."""
    GREEDY = "greedy"
    """Most likely choice of each head; nothing stored."""


def policy_spec(restarts: bool = False) -> PolicySpec:
    """`PolicySpec` of this version's features; `restarts`: members may begin anew."""
    names = feature_names(restarts)
    return PolicySpec(len(names.whole), len(names.slot), len(names.candidate), restarts)


class SimicClient:
    """Implements `PolicyProtocol` with a `PPOAgent`."""

    def __init__(
        self,
        agent: PPOAgent,
        reward: RewardProtocol,
        mode: ActingMode = ActingMode.LEARN,
        updates_per_rollout: int = 1,
        use_amp: bool = False,
        hide_curve: bool = False,
    ) -> None:
        """`hide_curve`: hide the learning curve from the policy, always; in LEARN mode the agent's
        `curve_dropout` hides it from some members."""
        self.agent = agent
        self.reward = reward
        self.mode = mode
        self.updates_per_rollout = updates_per_rollout
        self.use_amp = use_amp
        self.hide_curve = hide_curve
        self.buffer: RolloutBuffer | None = None
        """Current rollout; created at the first step, when its size is known."""

    @property
    def reads_activation_gradients(self) -> bool:
        """Whether the engine should measure the gradients at the slots."""
        return not self.hide_curve

    # ---- PolicyProtocol -----------------------------------------------------------------------

    def initial_state(self, members: int) -> PolicyState:
        """Recurrent state at the start of an episode."""
        return self.agent.initial_state(members)

    def reset_state(self, policy_state: PolicyState, reset_E: Bools) -> PolicyState:
        """Reset the recurrent state of the members in `reset_E`."""
        return self.agent.reset_state(policy_state, reset_E)

    def act(
        self, obs: TrainingSignals, masks: ActionMasks, policy_state: PolicyState
    ) -> tuple[PolicyDecision, PolicyState]:
        """Choose an action for each member; in LEARN mode, store observation and action.

        Decisions of the plan phase are stored like steps, before them.
        """
        act = self._choose(obs, masks, policy_state, self.mode)
        if self.mode is ActingMode.LEARN:
            self._record(obs, act.trace)
        return act.decision, act.state

    def get_action(
        self, obs: TrainingSignals, masks: ActionMasks, policy_state: PolicyState
    ) -> tuple[ActionSpec, PolicyState]:
        """Greedy action, for use outside an engine; the rollout buffer is not changed."""
        act = self._choose(obs, masks, policy_state, ActingMode.GREEDY)
        return act.decision.actions, act.state

    def _choose(
        self, obs: TrainingSignals, masks: ActionMasks, policy_state: PolicyState, mode: ActingMode
    ) -> Act:
        return self.agent.act(
            self._features(obs, mode),
            masks,
            policy_state,
            obs.round_index,
            obs.decision_index,
            greedy=mode is ActingMode.GREEDY,
            learning=mode is ActingMode.LEARN,
        )

    def _features(self, obs: TrainingSignals, mode: ActingMode) -> Observation:
        """Features of the observation, without the curves that are hidden in this episode."""
        members = self.agent.ranks.numbers(len(obs.train_loss_E))
        hidden_E = np.full(len(members), self.hide_curve)
        if mode is ActingMode.LEARN and not self.hide_curve:
            dropout = self.agent.config.curve_dropout
            hidden_E = draw_hidden(dropout, self.agent.seed, obs.round_index, members)
        return batch_signals_to_features(hide_curve(obs, hidden_E), self.agent.spec.restarts)

    def compute_reward(self, inputs: RewardInputs) -> tuple[Doubles, RewardComponentsTelemetry]:
        """Reward `[E]` of a step and its components."""
        return self.reward(inputs)

    def store(self, inputs: RewardInputs, terminal_E: Bools) -> RewardComponentsTelemetry:
        """Compute the reward of the step; in LEARN mode, complete the transition of the last `act`.

        If the rollout is truncated here, `update` adds the bootstrap value.
        """
        reward_E, components = self.compute_reward(inputs)
        if self.mode is ActingMode.LEARN:
            assert self.buffer is not None  # `act` comes first
            self.buffer.reward(reward_E, terminal_E, void_E=inputs.rolled_back_E)
        return components

    def update(self, rollout: Rollout[PolicyState]) -> PPOUpdateMetrics | None:
        """Train on the stored rollout and clear it; returns None unless in LEARN mode."""
        if self.mode is not ActingMode.LEARN:
            return None
        buffer = self.buffer
        if buffer is None or buffer.filled != rollout.decisions:
            stored = 0 if buffer is None else buffer.filled
            raise EsperError(
                f"update of a rollout of {rollout.decisions} steps, but {stored} are "
                f"stored: use one client per engine, and update after every rollout"
            )
        self._bootstrap(buffer, rollout)
        return run_ppo_updates(
            self.agent,
            self.updates_per_rollout,
            buffer,
            self.agent.obs_normalizer,
            self.use_amp,
        )

    # ---- rollout buffer -----------------------------------------------------------------------

    def _record(self, obs: TrainingSignals, trace: Trace) -> None:
        """Store a trace, creating a buffer that fits this population if needed."""
        shape = (obs.decisions, *obs.candidates.fits_ESK.shape)
        buffer = self.buffer
        fits = buffer is not None and buffer.shape == shape
        if buffer is None or (not buffer.filled and not fits):
            buffer = self.buffer = self.agent.make_buffer(*shape)
        buffer.record(trace)

    def _bootstrap(self, buffer: RolloutBuffer, rollout: Rollout[PolicyState]) -> None:
        """Add the bootstrap values of episodes that the end of the rollout truncates."""
        value_E = np.zeros(buffer.members)
        if len(rollout.truncated_bootstrap_targets.member_N):
            features = self._features(rollout.final_signals, self.mode)
            beyond_E = self.agent.value(features, rollout.final_masks, rollout.final_state)
            value_E = beyond_E.astype(np.float64)
        buffer.finish(value_E, continues=not rollout.ends_episode)
