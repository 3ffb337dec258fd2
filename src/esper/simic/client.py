"""Who decides, learnt: the client that puts a PPO agent into the engine's loop.

    client = SimicClient(agent, ScoreReward(spec.upkeep))
    rollout = engine.run_rollout(client)     act and store, step by step
    metrics = client.update(rollout)         learn from it and forget it

The engine's words (signals, masks, reward inputs, rollouts) become the agent's (observations,
traces, rewards, ends). What the client owns is its reward and the store of the rollout under way.

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
from esper.simic.training.runner import run_ppo_updates
from esper.tamiyo.features import FEATURE_NAMES, batch_signals_to_features
from esper.tamiyo.network import PolicyState
from esper.tamiyo.network_config import PolicySpec


class ActingMode(Enum):
    """How actions are chosen, and whether anything is learnt from them."""

    LEARN = "learn"
    """Sampled, explored, stored for `update`."""
    SAMPLE = "sample"
    """Sampled as learnt, nothing stored, no mark on the running statistics."""
    GREEDY = "greedy"
    """The likeliest choice of each head, nothing stored."""


def policy_spec(blueprints: tuple[str, ...]) -> PolicySpec:
    """What a policy of this version is shown of hosts with these blueprints."""
    return PolicySpec(len(FEATURE_NAMES.whole), len(FEATURE_NAMES.slot), blueprints)


class SimicClient:
    """A `PolicyProtocol` around a `PPOAgent`."""

    def __init__(
        self,
        agent: PPOAgent,
        reward: RewardProtocol,
        mode: ActingMode = ActingMode.LEARN,
        updates_per_rollout: int = 1,
        use_amp: bool = False,
    ) -> None:
        if updates_per_rollout < 1:
            raise EsperError(f"updates_per_rollout={updates_per_rollout}: must be 1 or more")
        self.agent = agent
        self.reward = reward
        self.mode = mode
        self.updates_per_rollout = updates_per_rollout
        self.use_amp = use_amp
        self.buffer: RolloutBuffer | None = None
        """The rollout under way; made at the first step, when its size is known."""

    # ---- what the engine asks (PolicyProtocol) ------------------------------------------------

    def initial_state(self, members: int) -> PolicyState:
        """The state before the first step of an episode."""
        return self.agent.initial_state(members)

    def reset_state(self, policy_state: PolicyState, reset_E: Bools) -> PolicyState:
        """The state with the rows of `reset_E` as at the start."""
        return self.agent.reset_state(policy_state, reset_E)

    def act(
        self, obs: TrainingSignals, masks: ActionMasks, policy_state: PolicyState
    ) -> tuple[PolicyDecision, PolicyState]:
        """Choose an action for each member; while learning, remember what was seen and chosen."""
        act = self._choose(obs, masks, policy_state, self.mode)
        if self.mode is ActingMode.LEARN:
            self._record(obs, act.trace)
        return act.decision, act.state

    def get_action(
        self, obs: TrainingSignals, masks: ActionMasks, policy_state: PolicyState
    ) -> tuple[ActionSpec, PolicyState]:
        """The greedy action, for use outside an engine; the stored rollout is not touched."""
        act = self._choose(obs, masks, policy_state, ActingMode.GREEDY)
        return act.decision.actions, act.state

    def _choose(
        self, obs: TrainingSignals, masks: ActionMasks, policy_state: PolicyState, mode: ActingMode
    ) -> Act:
        self._require_names(obs)
        return self.agent.act(
            batch_signals_to_features(obs),
            masks,
            policy_state,
            obs.round_index,
            obs.step,
            greedy=mode is ActingMode.GREEDY,
            learning=mode is ActingMode.LEARN,
        )

    def compute_reward(self, inputs: RewardInputs) -> tuple[Doubles, RewardComponentsTelemetry]:
        """What this client's reward pays for a step `[E]`, and its parts."""
        return self.reward(inputs)

    def store(self, inputs: RewardInputs, terminal_E: Bools) -> RewardComponentsTelemetry:
        """Pay the step; while learning, complete the transition of the last `act`.

        A rollout that is cut here goes on: the value beyond is asked for in `update`, where what
        comes next is known.
        """
        reward_E, components = self.compute_reward(inputs)
        if self.mode is ActingMode.LEARN:
            buffer = self._open_buffer("store")
            buffer.reward(reward_E, terminal_E, void_E=inputs.rolled_back_E)
        return components

    def update(self, rollout: Rollout[PolicyState]) -> PPOUpdateMetrics | None:
        """Learn from the rollout that was stored, and forget it; None where nothing is learnt."""
        if self.mode is not ActingMode.LEARN:
            return None
        buffer = self._open_buffer("update")
        if buffer.filled != rollout.steps:
            raise EsperError(
                f"update of a rollout of {rollout.steps} steps, but {buffer.filled} are stored: "
                f"one client serves one engine, and every rollout is learnt from before the next"
            )
        self._finish(buffer, rollout)
        return run_ppo_updates(
            self.agent,
            self.updates_per_rollout,
            buffer,
            self.agent.obs_normalizer,
            self.use_amp,
        )

    def _require_names(self, obs: TrainingSignals) -> None:
        """Indices mean the same to host and agent only where the names behind them are the same."""
        known, offered = self.agent.spec.blueprints, obs.slots.blueprints
        if known != offered:
            raise EsperError(
                f"controller of blueprints {', '.join(known)} on hosts that offer "
                f"{', '.join(offered)}: agent.for_blueprints({offered!r}) makes one that fits"
            )

    # ---- the store ----------------------------------------------------------------------------

    def _record(self, obs: TrainingSignals, trace: Trace) -> None:
        """Keep what `act` saw and chose, in a store that fits this population."""
        members, slots = obs.slots.stage_ES.shape
        wanted = (obs.episode_length, members, slots)
        buffer = self.buffer
        fits = buffer is not None and (buffer.steps, buffer.members, buffer.slots) == wanted
        if buffer is None or (not buffer.filled and not fits):
            buffer = self.buffer = self.agent.make_buffer(*wanted)
        buffer.record(trace)

    def _open_buffer(self, verb: str) -> RolloutBuffer:
        if self.buffer is None:
            raise EsperError(f"SimicClient.{verb} before act: nothing is stored yet")
        return self.buffer

    def _finish(self, buffer: RolloutBuffer, rollout: Rollout[PolicyState]) -> None:
        """Give returns that go on beyond the rollout the value of what comes next."""
        cut_E = np.zeros(buffer.members, dtype=np.bool_)
        cut_E[rollout.truncated_bootstrap_targets.member_N] = True
        running_E = ~buffer.terminal_TE[buffer.filled - 1]
        if not np.array_equal(cut_E, running_E):
            member = int(np.flatnonzero(cut_E != running_E)[0])
            raise EsperError(
                f"member {member} at the end of the rollout: "
                f"{'cut, but its return ended' if cut_E[member] else 'runs on, but is not cut'}"
            )
        value_E = np.zeros(buffer.members)
        if cut_E.any():
            features = batch_signals_to_features(rollout.final_signals)
            beyond_E = self.agent.value(features, rollout.final_masks, rollout.final_state)
            value_E = beyond_E.astype(np.float64)
        buffer.finish(value_E)
