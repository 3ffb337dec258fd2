"""How one head chooses: a masked categorical distribution, mixed with the masked uniform one.

    p = (1 - epsilon) * softmax(legal logits) + epsilon * uniform(legal choices)

The mixture is what is sampled and what log-probabilities are of, so the learner's ratios are exact
and its gradient is never cut, as a hard floor would cut it. Everything here is float32 at least.
Shape letters: C choices of the head; any leading axes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from esper.leyline.actions import ActionHead
from esper.leyline.arrays import Floats, Ints
from esper.leyline.streams import stream_keys


@dataclass(frozen=True, slots=True, eq=False)
class MaskedCategorical:
    """The distribution of one head. In a row without a legal choice, whatever is chosen is -inf."""

    p_C: Tensor
    """Exactly 0 where masked."""
    log_p_C: Tensor
    """0 where masked, so that sums and gradients stay finite."""
    legal_C: Tensor

    @classmethod
    def of(cls, logits_C: Tensor, legal_C: Tensor, epsilon: Tensor) -> MaskedCategorical:
        """Mask, soften, mix; `epsilon` has an axis of 1 in place of C."""
        logits_C = logits_C.float()
        legal_C = legal_C.expand_as(logits_C)
        greedy_C = torch.log_softmax(logits_C.masked_fill(~legal_C, -torch.inf), dim=-1)
        greedy_C = greedy_C.masked_fill(~legal_C, 0.0)
        uniform = torch.log(epsilon / legal_C.sum(-1, keepdim=True))
        log_p_C = torch.logaddexp(greedy_C + torch.log1p(-epsilon), uniform.expand_as(greedy_C))
        p_C, log_p_C = (torch.where(legal_C, x, 0.0) for x in (log_p_C.exp(), log_p_C))
        return cls(p_C, log_p_C, legal_C)

    def sample(self, uniform: Tensor) -> Tensor:
        """The choice at each uniform number in [0, 1): inverse CDF, never a masked one."""
        cdf_C = sums_by_themselves(self.p_C) if self.p_C.is_cuda else self.p_C.cumsum(-1)
        below = (cdf_C <= (uniform * cdf_C[..., -1]).unsqueeze(-1)).sum(-1)
        places = torch.arange(self.p_C.shape[-1], device=self.p_C.device)
        last_legal = torch.where(self.p_C > 0, places, 0).amax(-1)
        return torch.minimum(below, last_legal)

    def mode(self) -> Tensor:
        """The likeliest choice."""
        return self.p_C.argmax(-1)

    def log_prob(self, choice: Tensor) -> Tensor:
        """Log-probability of one choice per row; -inf for a masked one."""
        at = choice.unsqueeze(-1)
        log_p = self.log_p_C.gather(-1, at).squeeze(-1)
        return torch.where(self.legal_C.gather(-1, at).squeeze(-1), log_p, -torch.inf)

    def entropy(self) -> Tensor:
        """In nats."""
        return -(self.p_C * self.log_p_C).sum(-1)


def sums_by_themselves(p_C: Tensor) -> Tensor:
    """Running sums, each added up from the start; C is small.

    For a GPU, where `exact` refuses torch's `cumsum`: the order of its additions is left open. Here
    all sums have the same order, so one that gains nothing (a masked choice) is exactly the one
    before it.
    """
    choices = p_C.shape[-1]
    upto_CC = torch.ones(choices, choices, dtype=p_C.dtype, device=p_C.device).tril()
    return (p_C.unsqueeze(-2) * upto_CC).sum(-1)


def action_uniforms(seed: int, round_index: int, step: int, members: Ints) -> Floats:
    """`[E, A]` numbers in [0, 1) for the heads of these members at one step.

    A member's numbers follow from (seed, round, step, member, head) alone, so neither E nor the
    order of members matters.

    >>> all_of_them = action_uniforms(7, 0, 3, np.arange(8))
    >>> bool((all_of_them[5:6] == action_uniforms(7, 0, 3, np.array([5]))).all())
    True
    """
    heads = np.arange(len(ActionHead))[None, :]
    path = ("action", round_index, step, members[:, None], heads)
    bits = stream_keys(seed, *path) >> np.uint64(40)
    return np.asarray(bits.astype(np.float32) * np.float32(2.0**-24))
