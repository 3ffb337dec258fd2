"""`RolloutBuffer`: tensors `[T, E, ...]` of one rollout, allocated once and written in place.

Network inputs are kept on the device (normalised observations, masks, choices, log-probabilities,
the initial state); rewards, values and episode ends on the host in float64. Shape letters: T steps,
E members, M members of a minibatch, S slots, K blueprints, O operations, N choices of the fixed
heads, A heads, G, F features, D width (in `candidate`: features of a candidate).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from esper.leyline.actions import ActionHead, LifecycleOp
from esper.leyline.arrays import Bools, Doubles
from esper.leyline.errors import EsperError
from esper.tamiyo.heads import required_heads
from esper.tamiyo.inputs import FIXED_CHOICES, MaskTensors, PolicyInputs
from esper.tamiyo.network import PolicyState
from esper.tamiyo.network_config import PolicySpec
from esper.tamiyo.sequences import SequenceSplit


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """What the buffer stores of one `act`."""

    inputs: PolicyInputs
    state: PolicyState
    """Recurrent state before the step."""
    choice_EA: Tensor
    log_prob_EA: Tensor
    value_E: Doubles
    epsilon: float
    legal_O: Bools
    """Operations that are legal for at least one member."""
    forced_E: Bools
    """Members with a single legal action."""


@dataclass(frozen=True, slots=True, eq=False)
class Minibatch:
    """Full sequences of some members."""

    inputs: PolicyInputs
    start: PolicyState
    split: SequenceSplit
    choice_TMA: Tensor
    log_prob_TMA: Tensor
    epsilon_T11: Tensor
    needed: frozenset[ActionHead]


class RolloutBuffer:
    """Buffer of one rollout: `record` and `reward` at each step, `finish` at the end."""

    def __init__(
        self,
        steps: int,
        members: int,
        slots: int,
        blueprints: int,
        spec: PolicySpec,
        width: int,
        device: str | torch.device = "cpu",
    ) -> None:
        self.steps, self.members, self.slots, self.blueprints = steps, members, slots, blueprints
        self.device = torch.device(device)
        self.filled = 0
        ops, heads = len(LifecycleOp), len(ActionHead)

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(steps, *shape, dtype=dtype, device=self.device)

        self.global_TEG = zeros(members, spec.global_features)
        self.slot_TESF = zeros(members, slots, spec.slot_features)
        self.candidate_TESKD = zeros(members, slots, blueprints, spec.candidate_features)
        self.blueprint_TES = zeros(members, slots, dtype=torch.int64)
        self.op_TEO = zeros(members, ops, dtype=torch.bool)
        self.slot_TEOS = zeros(members, ops, slots, dtype=torch.bool)
        self.blueprint_TESK = zeros(members, slots, blueprints, dtype=torch.bool)
        self.fixed_T1N = zeros(1, FIXED_CHOICES, dtype=torch.bool)
        self.choice_TEA = zeros(members, heads, dtype=torch.int64)
        self.log_prob_TEA = zeros(members, heads)
        self.epsilon_T11 = zeros(1, 1)
        self.hidden_ED = torch.zeros(members, width, device=self.device)
        self.cell_ED = torch.zeros(members, width, device=self.device)
        self.legal_O: Bools = np.zeros(ops, dtype=bool)
        self.reward_TE: Doubles = np.zeros((steps, members))
        self.value_TE: Doubles = np.zeros((steps, members))
        self.bootstrap_TE: Doubles = np.zeros((steps, members))
        self.terminal_TE: Bools = np.zeros((steps, members), dtype=bool)
        self.truncated_TE: Bools = np.zeros((steps, members), dtype=bool)
        self.forced_TE: Bools = np.zeros((steps, members), dtype=bool)
        self.void_TE: Bools = np.zeros((steps, members), dtype=bool)
        self.unfinished_E: Bools = np.zeros(members, dtype=bool)
        """Members whose episode continues in the next rollout; set by `finish`."""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(steps, members, slots, blueprints) it was allocated for."""
        return self.steps, self.members, self.slots, self.blueprints

    def record(self, trace: Trace) -> None:
        """Store inputs and choices of a step; call `reward` before the next `record`."""
        t = self.filled
        if t == self.steps:
            raise EsperError(f"the rollout buffer holds {t} steps already: update and clear() it")
        inputs, masks = trace.inputs, trace.inputs.masks
        pairs = (
            (self.global_TEG, inputs.global_G),
            (self.slot_TESF, inputs.slot_SF),
            (self.candidate_TESKD, inputs.candidate_SKD),
            (self.blueprint_TES, inputs.blueprint_S),
            (self.op_TEO, masks.op_O),
            (self.slot_TEOS, masks.slot_OS),
            (self.blueprint_TESK, masks.blueprint_SK),
            (self.fixed_T1N, masks.fixed_N),
            (self.choice_TEA, trace.choice_EA),
            (self.log_prob_TEA, trace.log_prob_EA),
        )
        for stored, new in pairs:
            place = stored[t]
            if place.shape != new.shape:
                raise EsperError(
                    f"rollout step {t}: shape {tuple(new.shape)} does not fit the buffer's "
                    f"{tuple(place.shape)} (members {self.members}, slots {self.slots}, "
                    f"blueprints {self.blueprints})"
                )
            place.copy_(new)
        self.epsilon_T11[t] = trace.epsilon
        self.value_TE[t] = trace.value_E
        self.legal_O |= trace.legal_O
        self.forced_TE[t] = trace.forced_E
        if t == 0:
            self.hidden_ED.copy_(trace.state.hidden_ED)
            self.cell_ED.copy_(trace.state.cell_ED)

    def reward(
        self,
        reward_E: Doubles,
        terminal_E: Bools,
        truncated_E: Bools | None = None,
        bootstrap_E: Doubles | None = None,
        void_E: Bools | None = None,
    ) -> None:
        """Complete the last recorded step.

        `truncated_E`: the episode was truncated, its return is bootstrapped with `bootstrap_E`. The
        policy state must be reset after a terminal or truncated step. `void_E`: the action was not
        executed.
        """
        t = self.filled
        if not np.isfinite(reward_E).all():
            member = int(np.flatnonzero(~np.isfinite(reward_E))[0])
            raise EsperError(f"reward of member {member} at rollout step {t}: {reward_E[member]}")
        self.reward_TE[t], self.terminal_TE[t] = reward_E, terminal_E
        self.truncated_TE[t] = False if truncated_E is None else truncated_E & ~terminal_E
        if self.truncated_TE[t].any() and bootstrap_E is None:
            raise EsperError(
                f"rollout step {t} was truncated: give bootstrap_E, the value after it"
            )
        self.bootstrap_TE[t] = 0.0 if bootstrap_E is None else bootstrap_E
        self.void_TE[t] = False if void_E is None else void_E
        self.filled += 1

    def finish(self, value_E: Doubles, continues: bool = True) -> None:
        """End the rollout; unfinished episodes are bootstrapped with `value_E`.

        `continues`: whether the next rollout continues them.
        """
        last = self.filled - 1
        running_E = ~(self.terminal_TE[last] | self.truncated_TE[last])
        self.truncated_TE[last] |= running_E
        self.bootstrap_TE[last] = np.where(running_E, value_E, self.bootstrap_TE[last])
        self.unfinished_E = running_E & continues

    def clear(self) -> None:
        """Empty the buffer without freeing its memory."""
        self.filled = 0
        self.legal_O[:] = self.unfinished_E[:] = False

    @property
    def ended_TE(self) -> Bools:
        """Steps after which the return is terminal or truncated, over the filled steps."""
        return np.asarray(self.terminal_TE[: self.filled] | self.truncated_TE[: self.filled])

    @property
    def episode_over_TE(self) -> Bools:
        """As `ended_TE`, without episodes that only the end of the rollout truncated."""
        over_TE = self.ended_TE
        over_TE[-1] &= ~self.unfinished_E
        return over_TE

    @property
    def decided_TE(self) -> Bools:
        """Steps at which the policy had a choice and its action was executed."""
        return np.asarray(~(self.forced_TE[: self.filled] | self.void_TE[: self.filled]))

    def minibatch(self, members: Tensor) -> Minibatch:
        """Return all steps of these members."""
        steps = self.filled

        def of(stored: Tensor) -> Tensor:
            return stored[:steps].index_select(1, members)

        masks = MaskTensors(
            of(self.op_TEO),
            of(self.slot_TEOS),
            of(self.blueprint_TESK),
            self.fixed_T1N[:steps],
        )
        restart_TE = np.concatenate([np.zeros((1, self.members), dtype=bool), self.ended_TE[:-1]])
        return Minibatch(
            PolicyInputs(
                of(self.global_TEG),
                of(self.slot_TESF),
                of(self.candidate_TESKD),
                of(self.blueprint_TES),
                masks,
            ),
            PolicyState(self.hidden_ED[members], self.cell_ED[members]),
            # SYNC: once a minibatch of the update, a few indices; never in the step.
            SequenceSplit.at(restart_TE[:, members.cpu().numpy()], self.device),
            of(self.choice_TEA),
            of(self.log_prob_TEA),
            self.epsilon_T11[:steps],
            required_heads(self.legal_O),
        )
