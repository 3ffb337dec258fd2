"""Policy network: maps the observation of each member to an action and a state value.

    descriptors of the candidates -> keys
    features, held seed, mean key of its candidates -> one token per slot; one for the member
      -> attention among the tokens -> LSTM over the member's steps
      -> heads in order (heads.py; the blueprint head points at keys), and V(s)

No weight depends on the number of slots or on the blueprints, so a policy trained on one host runs
on another with more slots and other blueprints.

Shape letters: G, F features, S slots, K blueprints, B key of a candidate, D width (in names of
inputs: features of a candidate); T steps, M members.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from esper.leyline.actions import ActionHead
from esper.leyline.arrays import Bools
from esper.tamiyo.heads import ActionHeads, Choices, Chooser
from esper.tamiyo.inputs import PolicyInputs
from esper.tamiyo.network_config import NetworkConfig, PolicySpec
from esper.tamiyo.sequences import SequenceSplit

FORGET_BIAS: Final = 1.0
"""Initial bias of the LSTM's forget gate: sigmoid(1) = 0.73 of the cell is kept per step."""


@dataclass(frozen=True, slots=True, eq=False)
class PolicyState:
    """LSTM state, one row per member."""

    hidden_ED: Tensor
    cell_ED: Tensor

    def reset(self, reset_E: Bools) -> PolicyState:
        """Return a copy with the masked rows set to the initial state."""
        keep = torch.from_numpy(~reset_E).to(self.hidden_ED.device, non_blocking=True).unsqueeze(-1)
        hidden, cell = (torch.where(keep, x, 0.0) for x in (self.hidden_ED, self.cell_ED))
        return PolicyState(hidden, cell)


@dataclass(frozen=True, slots=True, eq=False)
class PolicyOutput:
    """Actions and values for every leading position."""

    choices: Choices
    value: Tensor


class _SlotAttention(nn.Module):
    """One self-attention layer over the tokens of a member, with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, tokens_ND: Tensor) -> Tensor:
        """Map `[.., N, D]` to the same shape; equivariant to the order of the N tokens."""
        *lead, count, width = tokens_ND.shape
        split = self.qkv(self.norm(tokens_ND)).view(*lead, count, 3, self.heads, -1)
        query, key, value = (part.transpose(-2, -3) for part in split.unbind(-3))
        scores = query @ key.transpose(-1, -2) / math.sqrt(width // self.heads)
        mixed = (torch.softmax(scores, dim=-1) @ value).transpose(-2, -3)
        return tokens_ND + self.out(mixed.reshape(*lead, count, width))  # type: ignore[no-any-return]


class PolicyNetwork(nn.Module):
    """Encoder, recurrent core, action heads and value head; stateless."""

    def __init__(self, spec: PolicySpec, config: NetworkConfig) -> None:
        super().__init__()
        self.spec, self.config = spec, config
        width, embedding = config.width, config.embedding
        self.encode_candidate = _key_layers(spec.candidate_features, embedding)
        self.encode_global = _mlp(spec.global_features, width)
        self.encode_slot = _mlp(spec.slot_features + spec.candidate_features + embedding, width)
        self.attention = _SlotAttention(width, config.attention_heads)
        self.core = nn.LSTM(width, width) if config.core == "lstm" else nn.Linear(width, width)
        self.heads = ActionHeads(width, embedding, config.op_prior[: spec.ops])
        self.value = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))
        self._initialise()

    def _initialise(self) -> None:
        if isinstance(self.core, nn.LSTM):
            for name, parameter in self.core.named_parameters():
                if "weight" in name:
                    nn.init.orthogonal_(parameter)
                else:
                    nn.init.zeros_(parameter)
            # torch orders the gates (input, forget, cell, output).
            forget = slice(self.config.width, 2 * self.config.width)
            nn.init.constant_(self.core.get_parameter("bias_hh_l0")[forget], FORGET_BIAS)
        for layer, gain in ((self.value[0], math.sqrt(2.0)), (self.value[2], 1.0)):
            assert isinstance(layer, nn.Linear)
            nn.init.orthogonal_(layer.weight, gain)
            nn.init.zeros_(layer.bias)

    def initial_state(self, members: int) -> PolicyState:
        """Return the state at the start of an episode."""
        zeros = next(self.parameters()).new_zeros(members, self.config.width)
        return PolicyState(zeros.detach(), zeros.detach().clone())

    def step(
        self,
        inputs: PolicyInputs,
        state: PolicyState,
        epsilon: Tensor,
        chooser: Chooser,
        needed: Collection[ActionHead],
    ) -> tuple[PolicyOutput, PolicyState]:
        """Run one step of E members; returns the output and the next state.

        `needed`: heads to compute (`required_heads`).
        """
        x_ED, slots_ESD, keys_ESKB = self._encode(inputs)
        if isinstance(self.core, nn.LSTM):
            carried = (state.hidden_ED.unsqueeze(0), state.cell_ED.unsqueeze(0))
            out, (hidden, cell) = self.core(x_ED.unsqueeze(0), carried)
            core_ED, state = x_ED + out[0], PolicyState(hidden[0], cell[0])
        else:
            core_ED = x_ED + torch.tanh(self.core(x_ED))
        output = self._decide(core_ED, slots_ESD, keys_ESKB, inputs, epsilon, chooser, needed)
        return output, state

    def unroll(
        self,
        inputs: PolicyInputs,
        start: PolicyState,
        split: SequenceSplit,
        epsilon: Tensor,
        chooser: Chooser,
        needed: Collection[ActionHead],
    ) -> PolicyOutput:
        """Run T steps of M members at once; `split` says where the state was reset."""
        x_TMD, slots_TMSD, keys_TMSKB = self._encode(inputs)
        if isinstance(self.core, nn.LSTM):
            carried = (split.start(start.hidden_ED), split.start(start.cell_ED))
            out_LND, _ = self.core(split.pad(x_TMD), tuple(s.unsqueeze(0) for s in carried))
            core_TMD = x_TMD + split.unpad(out_LND)
        else:
            core_TMD = x_TMD + torch.tanh(self.core(x_TMD))
        return self._decide(core_TMD, slots_TMSD, keys_TMSKB, inputs, epsilon, chooser, needed)

    def _encode(self, inputs: PolicyInputs) -> tuple[Tensor, Tensor, Tensor]:
        """Return the member token `[.., D]` and the slot tokens `[.., S, D]` after attention, and
        the keys of the candidates `[.., S, K, B]`."""
        keys_SKB: Tensor = self.encode_candidate(inputs.candidate_SKD)
        about_SF = [inputs.slot_SF, _held_seed(inputs), keys_SKB.mean(dim=-2)]
        slots_SD = self.encode_slot(torch.cat(about_SF, dim=-1))
        member_token = self.encode_global(inputs.global_G).unsqueeze(-2)
        tokens = self.attention(torch.cat([member_token, slots_SD], dim=-2))
        return tokens[..., 0, :], tokens[..., 1:, :], keys_SKB

    def _decide(
        self,
        core_D: Tensor,
        slots_SD: Tensor,
        keys_SKB: Tensor,
        inputs: PolicyInputs,
        epsilon: Tensor,
        chooser: Chooser,
        needed: Collection[ActionHead],
    ) -> PolicyOutput:
        """Compute heads and value, always in float32."""
        with torch.autocast(core_D.device.type, enabled=False):
            core_D, slots_SD, keys_SKB = core_D.float(), slots_SD.float(), keys_SKB.float()
            choices = self.heads(core_D, slots_SD, keys_SKB, inputs.masks, epsilon, chooser, needed)
            return PolicyOutput(choices, self.value(core_D).squeeze(-1))


def _held_seed(inputs: PolicyInputs) -> Tensor:
    """Descriptor `[.., S, D]` of the blueprint that each slot holds; zeros if it is empty."""
    held_S = inputs.blueprint_S >= 0
    index = inputs.blueprint_S.clamp(min=0)[..., None, None]
    descriptor_SD = torch.take_along_dim(inputs.candidate_SKD, index, dim=-2).squeeze(-2)
    return descriptor_SD * held_S.unsqueeze(-1)


def _key_layers(inputs: int, size: int) -> nn.Sequential:
    """Layers from a descriptor to its key.

    Biases are random: like an embedding, a key is not 0 before anything is learnt, not even where
    all descriptors are alike. Otherwise slot tokens are small, and slots are learnt slowly.
    """
    layers = nn.Sequential(nn.Linear(inputs, size), nn.Tanh(), nn.Linear(size, size))
    for layer in layers:
        if isinstance(layer, nn.Linear):
            nn.init.orthogonal_(layer.weight, math.sqrt(2.0))
            nn.init.normal_(layer.bias)
    return layers


def _mlp(inputs: int, width: int) -> nn.Sequential:
    layers = nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
    for layer in layers:
        if isinstance(layer, nn.Linear):
            nn.init.orthogonal_(layer.weight, math.sqrt(2.0))
            nn.init.zeros_(layer.bias)
    return layers
