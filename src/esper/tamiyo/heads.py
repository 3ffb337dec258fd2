"""Autoregressive action heads: sampled in order, each conditioned on the earlier choices.

The context starts as the core's output; the embedding of every choice is added to it, so

    log p(action) = sum over used heads of log p(choice | core, earlier choices)

is exact. Heads that the chosen operation does not use have choice 0, log-probability and entropy
exactly 0, and do not change the context.

Slots and blueprints are chosen by pointing: a query from the context against the tokens of the
slots, then against the keys of the chosen slot's candidates.

Shape letters: D width, S slots, K blueprints, B key of a candidate, C choices of a head, A heads;
any leading axes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from esper.leyline.actions import HEAD_CHOICES, HEADS_BY_OP, ActionHead, LifecycleOp
from esper.leyline.arrays import Bools
from esper.tamiyo.actions import HEAD_USED_OA
from esper.tamiyo.distribution import MaskedCategorical
from esper.tamiyo.inputs import FIXED_HEADS, MaskTensors

HEAD_GAIN: Final = 0.01
"""Initial gain of a head's last layer: an untrained policy is close to uniform."""

LAST_HEAD: Final = ActionHead(len(ActionHead) - 1)
"""Its choice is not embedded: no later head is conditioned on it."""


def required_heads(legal_O: Bools) -> frozenset[ActionHead]:
    """Heads used by at least one legal operation; the others need not be computed."""
    legal = [op for op in LifecycleOp if legal_O[op]]
    return frozenset(head for op in legal for head in HEADS_BY_OP[op])


@dataclass(frozen=True, slots=True, eq=False)
class Choices:
    """Choices of all heads, with their log-probabilities and entropies."""

    choice_A: Tensor
    log_prob_A: Tensor
    entropy_A: Tensor
    """Conditional on the earlier choices."""
    used_A: Tensor
    """True for heads that the chosen operation uses."""
    op_p_O: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Chooser:
    """Source of choices: `given_A`, samples at `uniform_A`, or (neither) the mode."""

    given_A: Tensor | None = None
    uniform_A: Tensor | None = None

    def choose(self, head: ActionHead, distribution: MaskedCategorical) -> Tensor:
        """Return the choice of one head."""
        if self.given_A is not None:
            return self.given_A[..., head]
        if self.uniform_A is not None:
            return distribution.sample(self.uniform_A[..., head])
        return distribution.mode()


class ActionHeads(nn.Module):
    """The eight action heads. No weight depends on S or K."""

    head_used_OA: Tensor

    def __init__(self, width: int, embedding: int, op_prior: Sequence[float]) -> None:
        """`op_prior`: initial logit bias of each operation; those beyond it are never chosen."""
        super().__init__()
        self.ops = len(op_prior)
        sizes = {ActionHead.OP.name: self.ops}
        sizes |= {head.name: len(HEAD_CHOICES[head]) for head in FIXED_HEADS}
        outputs = sizes | {ActionHead.SLOT.name: width, ActionHead.BLUEPRINT.name: embedding}
        self.hidden = nn.ModuleDict({head.name: nn.Linear(width, width) for head in ActionHead})
        self.output = nn.ModuleDict({h.name: nn.Linear(width, outputs[h.name]) for h in ActionHead})
        self.slot_key = nn.Linear(width, width, bias=False)
        embedded_heads = {name: n for name, n in sizes.items() if name != LAST_HEAD.name}
        self.embed = nn.ModuleDict(
            {name: nn.Embedding(n, width) for name, n in embedded_heads.items()}
        )
        self.embed_slot = nn.Linear(width, width, bias=False)
        self.embed_blueprint = nn.Linear(embedding, width, bias=False)
        self.register_buffer("head_used_OA", torch.from_numpy(HEAD_USED_OA), persistent=False)
        for head in ActionHead:
            nn.init.orthogonal_(self._linear(self.hidden, head).weight, math.sqrt(2.0))
            nn.init.orthogonal_(self._linear(self.output, head).weight, HEAD_GAIN)
            nn.init.zeros_(self._linear(self.hidden, head).bias)
            nn.init.zeros_(self._linear(self.output, head).bias)
        with torch.no_grad():
            self._linear(self.output, ActionHead.OP).bias.copy_(torch.tensor(op_prior))

    @staticmethod
    def _linear(group: nn.ModuleDict, head: ActionHead) -> nn.Linear:
        layer = group[head.name]
        assert isinstance(layer, nn.Linear)
        return layer

    def forward(
        self,
        core_D: Tensor,
        slots_SD: Tensor,
        keys_SKB: Tensor,
        masks: MaskTensors,
        epsilon: Tensor,
        chooser: Chooser,
        needed: Collection[ActionHead],
    ) -> Choices:
        """Run the heads in sampling order; heads not in `needed` are skipped (choice 0)."""
        lead = core_D.shape[:-1]
        zero = core_D.new_zeros(lead)
        no_choice = torch.zeros(lead, dtype=torch.int64, device=core_D.device)
        used_A = (no_choice == 0).unsqueeze(-1).expand(*lead, len(ActionHead))
        choices, log_probs, entropies = [], [], []
        context_D, op_p_O, keys_KB = core_D, zero, keys_SKB[..., 0, :, :]
        for head in ActionHead:
            if head not in needed:
                choices.append(no_choice)
                log_probs.append(zero)
                entropies.append(zero)
                continue
            used = used_A[..., head]
            logits_C = self._logits(head, context_D, slots_SD, keys_KB)
            # Unused heads get a full mask, so that their distribution stays finite.
            legal_C = self._legal(head, masks, choices) | ~used.unsqueeze(-1)
            distribution = MaskedCategorical.of(logits_C, legal_C, epsilon)
            choice = torch.where(used, chooser.choose(head, distribution), 0)
            choices.append(choice)
            log_probs.append(torch.where(used, distribution.log_prob(choice), 0.0))
            entropies.append(torch.where(used, distribution.entropy(), 0.0))
            if head is ActionHead.OP:
                used_A = self.head_used_OA[choice]
                op_p_O = nn.functional.pad(distribution.p_C, (0, len(LifecycleOp) - self.ops))
            elif head is ActionHead.SLOT:
                keys_KB = _slot_keys(keys_SKB, choice)
            if head is not LAST_HEAD:
                embedded_D = self._embed_choice(head, choice, slots_SD, keys_KB)
                context_D = context_D + embedded_D * used.unsqueeze(-1)
        choice_A, log_prob_A, entropy_A = (
            torch.stack(parts, dim=-1) for parts in (choices, log_probs, entropies)
        )
        return Choices(choice_A, log_prob_A, entropy_A, used_A, op_p_O)

    def _logits(
        self, head: ActionHead, context_D: Tensor, slots_SD: Tensor, keys_KB: Tensor
    ) -> Tensor:
        """Logits of a head: a pointer over slots or candidates, or a linear layer.

        Pointer logits are divided by sqrt(width), so that one Adam step, which changes all weights
        by a similar amount, changes them about as much as the logits of a linear layer.
        """
        hidden_D = torch.tanh(self._linear(self.hidden, head)(context_D))
        output: Tensor = self._linear(self.output, head)(hidden_D)
        if head is ActionHead.SLOT:
            return _point(output, self.slot_key(slots_SD))
        if head is ActionHead.BLUEPRINT:
            return _point(output, keys_KB)
        return output

    def _legal(self, head: ActionHead, masks: MaskTensors, choices: list[Tensor]) -> Tensor:
        """Mask of a head, given the earlier choices.

        `choices` is indexed by `.value`: torch.compile does not support an enum index.
        """
        if head is ActionHead.OP:
            return masks.op_O[..., : self.ops]
        if head is ActionHead.SLOT:
            return _row(masks.slot_OS, choices[ActionHead.OP.value])
        if head is ActionHead.BLUEPRINT:
            return _row(masks.blueprint_SK, choices[ActionHead.SLOT.value])
        return masks.fixed(head)

    def _embed_choice(
        self, head: ActionHead, choice: Tensor, slots_SD: Tensor, keys_KB: Tensor
    ) -> Tensor:
        """Embedding of a choice, added to the context of later heads."""
        embedded_D: Tensor
        if head is ActionHead.SLOT:
            embedded_D = self.embed_slot(_row(slots_SD, choice))
        elif head is ActionHead.BLUEPRINT:
            embedded_D = self.embed_blueprint(_row(keys_KB, choice))
        else:
            embedded_D = self.embed[head.name](choice)
        return embedded_D


def _point(query: Tensor, keys_C: Tensor) -> Tensor:
    """Scaled dot products of a query `[.., B]` with keys `[.., C, B]`."""
    return (keys_C @ query.unsqueeze(-1)).squeeze(-1) / math.sqrt(keys_C.shape[-1])


def _slot_keys(keys_SKB: Tensor, slot: Tensor) -> Tensor:
    """Keys `[.., K, B]` of the chosen slot's candidates."""
    return torch.take_along_dim(keys_SKB, slot[..., None, None, None], dim=-3).squeeze(-3)


def _row(table: Tensor, index: Tensor) -> Tensor:
    """`table[..., index, :]` with one index per leading position."""
    return torch.take_along_dim(table, index[..., None, None], dim=-2).squeeze(-2)
