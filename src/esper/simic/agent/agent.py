"""`PPOAgent`: policy network, optimizer and normalisers, with acting, updating and saving.

    act = agent.act(obs, masks, state, round_index, step)   act.decision to the engine
    rollout.record(act.trace); rollout.reward(...)          ... T times; rollout.finish(...)
    metrics = run_ppo_updates(agent, 1, rollout, agent.obs_normalizer)

Random draws are keyed by (seed, round, step, member, head) and (seed, update, epoch). There is no
generator state, so a loaded agent resumes bit for bit. Shape letters: E members, A heads, O
operations.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from esper.device.bfloat16 import bfloat16_passes
from esper.device.graphs import CudaRecorder, GraphCache
from esper.device.threads import cpu_threads
from esper.leyline.actions import ActionHead
from esper.leyline.arrays import Bools, Floats, Ints
from esper.leyline.codec import to_json
from esper.leyline.errors import EsperError
from esper.leyline.masks import ActionMasks
from esper.leyline.records import PolicyDecision
from esper.leyline.streams import stream_seed
from esper.simic.agent.acting import ActRequest, ActResult, ReplayedSteps, run_eager
from esper.simic.agent.buffer import RolloutBuffer, Trace
from esper.simic.agent.config import PPOConfig
from esper.simic.agent.gae import advantages
from esper.simic.agent.saving import capture_agent, load_agent
from esper.simic.agent.schedule import Schedule
from esper.simic.agent.step_outputs import CHOICE_A, LOG_PROB_A, OP_P_O, VALUE
from esper.simic.agent.update import PassSettings, Row, Targets, make_targets, run_pass
from esper.simic.control.normalizers import ObservationNormalizer, RewardNormalizer
from esper.simic.distributed.ranks import SINGLE_PROCESS, Ranks
from esper.storage.saves import PathLike
from esper.tamiyo.actions import parse_sampled_action
from esper.tamiyo.distribution import action_uniforms
from esper.tamiyo.heads import required_heads
from esper.tamiyo.inputs import Observation
from esper.tamiyo.masks import forced_members, without_restart
from esper.tamiyo.network import PolicyNetwork, PolicyState
from esper.tamiyo.network_config import PolicySpec


@dataclass(frozen=True, slots=True, eq=False)
class Act:
    """Decision, recurrent state after the step, and trace for the buffer."""

    decision: PolicyDecision
    state: PolicyState
    trace: Trace


class PPOAgent:
    """PPO with a recurrent, masked, factored policy. Spec, seed and network size are fixed."""

    def __init__(
        self,
        spec: PolicySpec,
        config: PPOConfig | None = None,
        seed: int = 0,
        device: str | torch.device = "cpu",
        ranks: Ranks = SINGLE_PROCESS,
    ) -> None:
        """`ranks`: the processes that train this agent together, each with members of its own."""
        self.ranks = ranks
        self.spec, self.config, self.seed = spec, config or PPOConfig(), seed
        self.device = torch.device(device)
        # One thread: QR rounds differently with more, and a seed has one set of first weights.
        with torch.random.fork_rng(devices=[]), cpu_threads(1):
            torch.default_generator.manual_seed(stream_seed(seed, "policy"))
            network = PolicyNetwork(spec, self.config.network)
        self.network = network.to(self.device)
        rate = self.config.learning_rate.start
        self.optimizer = torch.optim.Adam(network.parameters(), lr=rate, eps=1e-5, fused=True)
        self.obs_normalizer = ObservationNormalizer(spec)
        self.reward_normalizer = RewardNormalizer(self.config.gamma)
        self.updates_done = 0
        """Update passes so far, including those skipped by the KL limit; schedules count these."""
        self.run_updates: int | None = None
        """`updates_done` at the end of the run; set by the trainer."""
        on_gpu = self.device.type == "cuda"
        self.use_graphs(GraphCache(CudaRecorder(self.device), reason="CUDA") if on_gpu else None)

    def untrained(self) -> PPOAgent:
        """The agent as it began: the same settings and first weights, no updates."""
        return PPOAgent(self.spec, self.config, self.seed, self.device, self.ranks)

    def origin_digest(self) -> str:
        """Checksum of what its first weights and its draws follow from.

        Not of the weights: the last bits of the first ones depend on the machine.
        """
        config = self.config
        made_from = [self.seed, self.spec, config.network, config.normalize_observations]
        return hashlib.sha256(json.dumps(to_json(made_from)).encode()).hexdigest()

    # ---- acting -------------------------------------------------------------------------------

    def initial_state(self, members: int) -> PolicyState:
        """Recurrent state at the start of an episode."""
        return self.network.initial_state(members)

    def reset_state(self, state: PolicyState, reset_E: Bools) -> PolicyState:
        """Reset the recurrent state of the members in `reset_E`."""
        return state.reset(reset_E)

    def make_buffer(self, steps: int, members: int, slots: int, blueprints: int) -> RolloutBuffer:
        """Create a rollout buffer for this agent."""
        width = self.config.network.width
        return RolloutBuffer(steps, members, slots, blueprints, self.spec, width, self.device)

    @property
    def exploration(self) -> float:
        """Current fraction of the masked uniform distribution in every head."""
        return self._now(self.config.exploration)

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next update."""
        return self._now(self.config.learning_rate)

    @property
    def entropy_coef(self) -> float:
        """Weight of the entropy bonus in the next update."""
        return self._now(self.config.entropy)

    def _now(self, schedule: Schedule) -> float:
        return schedule.at(self.updates_done, self.run_updates)

    def act(
        self,
        obs: Observation,
        masks: ActionMasks,
        state: PolicyState,
        round_index: int,
        step: int,
        members: Ints | None = None,
        greedy: bool = False,
        learning: bool = True,
    ) -> Act:
        """Choose an action for each member.

        `step`: index of the decision within the round, which keys the random draws; so do
        `members` (default: the numbers of this rank's members). `greedy`: take the most likely
        choice of each head. If `greedy` or not `learning`, there is no exploration and the running
        statistics are not updated.
        """
        obs.require_finite()
        self._require_fit(obs, masks)
        masks = masks if self.spec.restarts else without_restart(masks)
        uniform_EA, epsilon = None, 0.0
        learning = learning and not greedy
        if not greedy:
            numbers = self.ranks.numbers(len(obs.global_EG)) if members is None else members
            uniform_EA = action_uniforms(self.seed, round_index, step, numbers)
            epsilon = self.exploration if learning else 0.0
        legal_O = np.asarray(masks.op_EO.any(axis=0))
        needed = required_heads(legal_O)
        request = ActRequest(self._scaled(obs), masks, state, epsilon, uniform_EA, needed)
        result = self._run_step(request)
        # While the device computes: neither is needed for this step.
        if learning and self.config.normalize_observations:
            self.obs_normalizer.observe(obs)
        forced_E = forced_members(masks)
        decision = _to_host(result.outputs_EX)
        value_E = decision.value_E.astype(np.float64)
        trace = Trace(
            result.inputs,
            state,
            result.choice_EA,
            result.log_prob_EA,
            value_E,
            epsilon,
            legal_O,
            forced_E,
        )
        return Act(decision, result.state, trace)

    def value(self, obs: Observation, masks: ActionMasks, state: PolicyState) -> Floats:
        """State values `[E]`, to bootstrap truncated returns."""
        obs.require_finite()
        self._require_fit(obs, masks)
        only_op = frozenset({ActionHead.OP})  # the value needs no other head
        request = ActRequest(self._scaled(obs), masks, state, 0.0, None, only_op)
        outputs_EX = run_eager(self.network, self.device, request).outputs_EX
        # SYNC: one copy per truncated rollout, in the update; never in the step.
        return np.asarray(outputs_EX[:, VALUE].cpu().numpy())

    def use_graphs(self, graphs: GraphCache | None) -> None:
        """Replay `act` with CUDA graphs captured in `graphs`; None: run eagerly."""
        self._replayed = None
        if graphs is not None:
            self._replayed = ReplayedSteps(self.network, self.device, graphs)

    @property
    def graphs(self) -> GraphCache | None:
        """Cache of the captured graphs; None if `act` runs eagerly."""
        return None if self._replayed is None else self._replayed.graphs

    def _run_step(self, request: ActRequest) -> ActResult:
        """Replay a graph if enabled; not under autocast: a graph would keep stale cast weights."""
        if self._replayed is None or torch.is_autocast_enabled(self.device.type):
            return run_eager(self.network, self.device, request)
        return self._replayed.step(request)

    def _scaled(self, obs: Observation) -> Observation:
        return self.obs_normalizer.normalize(obs) if self.config.normalize_observations else obs

    def _require_fit(self, obs: Observation, masks: ActionMasks) -> None:
        seen, legal = obs.sizes(), masks.sizes()
        wanted = {
            "global features": (seen["G"], self.spec.global_features),
            "slot features": (seen["F"], self.spec.slot_features),
            "candidate features": (seen["D"], self.spec.candidate_features),
            "members in masks": (legal["E"], seen["E"]),
            "slots in masks": (legal["S"], seen["S"]),
            "blueprints in masks": (legal["K"], seen["K"]),
        }
        for name, (found, expected) in wanted.items():
            if found != expected:
                raise EsperError(f"PPOAgent: {found} {name}, expected {expected}")

    # ---- learning -----------------------------------------------------------------------------

    def targets(self, rollout: RolloutBuffer) -> Targets:
        """Advantages and returns of a finished rollout; updates the reward normaliser."""
        rollout.legal_O |= np.asarray(self.ranks.gather(rollout.legal_O[None]).any(axis=0))
        reward_TE = rollout.reward_TE[: rollout.filled]
        if self.config.normalize_rewards:
            self.reward_normalizer.update(reward_TE, rollout.episode_over_TE, self.ranks)
            reward_TE = self.reward_normalizer.normalize(reward_TE)
        value_TE = rollout.value_TE[: rollout.filled]
        advantage_TE = advantages(
            reward_TE,
            value_TE,
            rollout.bootstrap_TE[: rollout.filled],
            rollout.terminal_TE[: rollout.filled],
            rollout.truncated_TE[: rollout.filled],
            self.config.gamma,
            self.config.gae_lambda,
        )
        normalize = self.config.normalize_advantages
        return make_targets(
            advantage_TE, value_TE, rollout.decided_TE, normalize, self.device, self.ranks
        )

    def update(self, rollout: RolloutBuffer, targets: Targets, use_amp: bool = False) -> list[Row]:
        """One update pass over a rollout; returns metric rows for `aggregate_ppo_metrics`."""
        settings = PassSettings(
            number=self.updates_done,
            seed=self.seed,
            learning_rate=self.learning_rate,
            entropy_coef=self.entropy_coef,
            use_amp=use_amp,
        )
        with bfloat16_passes(self.device.type, use_amp):
            rows = run_pass(
                self.network, self.optimizer, rollout, targets, self.config, settings, self.ranks
            )
        self.updates_done += 1
        return rows

    # ---- saving -------------------------------------------------------------------------------

    def save(self, path: PathLike) -> None:
        """Write the agent to a folder, replacing an existing save."""
        capture_agent(self).write(path)

    @classmethod
    def load(
        cls,
        path: PathLike,
        device: str | torch.device = "cpu",
        spec: PolicySpec | None = None,
        config: PPOConfig | None = None,
    ) -> PPOAgent:
        """Load an agent from a folder.

        `spec`: expected numbers of features; a mismatch raises. `config`: replaces the saved
        settings; the network size must be the same.
        """
        return load_agent(cls, path, device, spec, config)


def _to_host(outputs_EX: Tensor) -> PolicyDecision:
    """Copy the outputs to the host (transfer 2) and decode the decision."""
    packed = outputs_EX.cpu().numpy()  # SYNC: transfer 2, the only copy of a step's decisions
    choice_EA, log_prob_EA = packed[:, CHOICE_A].astype(np.int64), packed[:, LOG_PROB_A]
    lost = np.argwhere(~np.isfinite(log_prob_EA))
    if lost.size:
        member, head = lost[0]
        raise EsperError(
            f"member {member}: head {ActionHead(head).name} chose with log-probability "
            f"{log_prob_EA[member, head]}: its mask is empty, or the weights are not finite"
        )
    return PolicyDecision(
        parse_sampled_action(choice_EA),
        packed[:, OP_P_O].copy(),
        np.exp(log_prob_EA),
        packed[:, VALUE].copy(),
    )
