"""How an action is put together: heads sampled in order, each seeing the choices before it.

A running context starts as the core's output and gains an embedding of every choice made, so

    log p(action) = sum over heads that count of log p(head's choice | core, earlier choices)

is exact. Heads that do not count for the chosen operation have log-probability and entropy exactly
0, choice 0, and leave no trace in the context. Shape letters: D width, S slots, K blueprints, B
blueprint embedding, C choices of a head, A heads; any leading axes.
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
from esper.tamiyo.actions import COUNTS_OA
from esper.tamiyo.distribution import MaskedCategorical
from esper.tamiyo.inputs import FIXED_HEADS, MaskTensors

HEAD_GAIN: Final = 0.01
"""Scale of a head's last layer at birth: a fresh policy is close to uniform."""

LAST_HEAD: Final = ActionHead(len(ActionHead) - 1)
"""No head comes after it, so its choice is not embedded."""


def heads_needed(legal_O: Bools) -> frozenset[ActionHead]:
    """Heads that some legal operation asks for; the others need not be computed."""
    legal = [op for op in LifecycleOp if legal_O[op]]
    return frozenset(head for op in legal for head in HEADS_BY_OP[op])


@dataclass(frozen=True, slots=True, eq=False)
class Choices:
    """How the heads chose, or how likely given choices are."""

    choice_A: Tensor
    log_prob_A: Tensor
    entropy_A: Tensor
    """Of each head given the choices before it."""
    counts_A: Tensor
    op_p_O: Tensor

    @property
    def log_prob(self) -> Tensor:
        """Of the joint action."""
        return self.log_prob_A.sum(-1)


@dataclass(frozen=True, slots=True, eq=False)
class Chooser:
    """Where choices come from: given ones, numbers to sample at, or (neither) the likeliest."""

    given_A: Tensor | None = None
    uniform_A: Tensor | None = None

    def choose(self, head: ActionHead, distribution: MaskedCategorical) -> Tensor:
        """The choice of one head."""
        if self.given_A is not None:
            return self.given_A[..., head]
        if self.uniform_A is not None:
            return distribution.sample(self.uniform_A[..., head])
        return distribution.mode()


class ActionHeads(nn.Module):
    """The eight heads. No weight depends on S; K appears only in the embedding table, passed in."""

    counts_OA: Tensor

    def __init__(self, width: int, embedding: int, op_prior: Sequence[float]) -> None:
        """`op_prior`: log-weights of the operations at birth."""
        super().__init__()
        sizes = {head.name: len(HEAD_CHOICES[head]) for head in (ActionHead.OP, *FIXED_HEADS)}
        outputs = sizes | {ActionHead.SLOT.name: width, ActionHead.BLUEPRINT.name: embedding}
        self.hidden = nn.ModuleDict({head.name: nn.Linear(width, width) for head in ActionHead})
        self.output = nn.ModuleDict({h.name: nn.Linear(width, outputs[h.name]) for h in ActionHead})
        self.slot_key = nn.Linear(width, width, bias=False)
        heard = {name: n for name, n in sizes.items() if name != LAST_HEAD.name}
        self.embed = nn.ModuleDict({name: nn.Embedding(n, width) for name, n in heard.items()})
        self.embed_slot = nn.Linear(width, width, bias=False)
        self.embed_blueprint = nn.Linear(embedding, width, bias=False)
        self.register_buffer("counts_OA", torch.from_numpy(COUNTS_OA), persistent=False)
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
        table_KB: Tensor,
        masks: MaskTensors,
        epsilon: Tensor,
        chooser: Chooser,
        needed: Collection[ActionHead],
    ) -> Choices:
        """Go through the heads in order; `needed` holds every head a legal operation asks for."""
        lead = core_D.shape[:-1]
        nothing = core_D.new_zeros(lead)
        nowhere = torch.zeros(lead, dtype=torch.int64, device=core_D.device)
        counts_A = (nowhere == 0).unsqueeze(-1).expand(*lead, len(ActionHead))
        choices, log_probs, entropies = [], [], []
        context_D, op_p_O = core_D, nothing
        for head in ActionHead:
            if head not in needed:
                choices.append(nowhere)
                log_probs.append(nothing)
                entropies.append(nothing)
                continue
            counts = counts_A[..., head]
            logits_C = self._logits(head, context_D, slots_SD, table_KB)
            legal_C = self._legal(head, masks, choices) | ~counts.unsqueeze(-1)
            distribution = MaskedCategorical.of(logits_C, legal_C, epsilon)
            choice = torch.where(counts, chooser.choose(head, distribution), 0)
            choices.append(choice)
            log_probs.append(torch.where(counts, distribution.log_prob(choice), 0.0))
            entropies.append(torch.where(counts, distribution.entropy(), 0.0))
            if head is ActionHead.OP:
                counts_A, op_p_O = self.counts_OA[choice], distribution.p_C
            if head is not LAST_HEAD:
                said_D = self._embedded(head, choice, slots_SD, table_KB)
                context_D = context_D + said_D * counts.unsqueeze(-1)
        choice_A, log_prob_A, entropy_A = (
            torch.stack(parts, dim=-1) for parts in (choices, log_probs, entropies)
        )
        return Choices(choice_A, log_prob_A, entropy_A, counts_A, op_p_O)

    def _logits(
        self, head: ActionHead, context_D: Tensor, slots_SD: Tensor, table_KB: Tensor
    ) -> Tensor:
        """Scores of a head's choices: a pointer over slots, over blueprints, or a plain layer.

        Pointers divide by the root of the width, without which one step of Adam, which moves all
        weights alike, would move their scores that many times as far as a plain layer's.
        """
        hidden_D = torch.tanh(self._linear(self.hidden, head)(context_D))
        output: Tensor = self._linear(self.output, head)(hidden_D)
        if head is ActionHead.SLOT:
            key_SD: Tensor = self.slot_key(slots_SD)
            return (key_SD @ output.unsqueeze(-1)).squeeze(-1) / math.sqrt(key_SD.shape[-1])
        if head is ActionHead.BLUEPRINT:
            return output @ table_KB.T / math.sqrt(table_KB.shape[-1])
        return output

    def _legal(self, head: ActionHead, masks: MaskTensors, choices: list[Tensor]) -> Tensor:
        """The mask of a head, given the choices before it.

        Lists are indexed by plain integers: torch.compile cannot follow an enum there.
        """
        if head is ActionHead.OP:
            return masks.op_O
        if head is ActionHead.SLOT:
            return _row(masks.slot_OS, choices[ActionHead.OP.value])
        if head is ActionHead.BLUEPRINT:
            return _row(masks.blueprint_SK, choices[ActionHead.SLOT.value])
        return masks.fixed(head)

    def _embedded(
        self, head: ActionHead, choice: Tensor, slots_SD: Tensor, table_KB: Tensor
    ) -> Tensor:
        """What later heads see of a choice."""
        said_D: Tensor
        if head is ActionHead.SLOT:
            said_D = self.embed_slot(_row(slots_SD, choice))
        elif head is ActionHead.BLUEPRINT:
            said_D = self.embed_blueprint(table_KB[choice])
        else:
            said_D = self.embed[head.name](choice)
        return said_D


def _row(table: Tensor, index: Tensor) -> Tensor:
    """`table[..., index, :]` with one index per leading position."""
    return torch.take_along_dim(table, index[..., None, None], dim=-2).squeeze(-2)
