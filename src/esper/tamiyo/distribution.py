"""Masked categorical distribution of one action head, mixed with a masked uniform one.

    p = (1 - epsilon) * softmax(legal logits) + epsilon * uniform(legal choices)

Samples and log-probabilities both use the mixture, so PPO ratios are exact. Unlike a hard floor on
the probabilities, the mixture never zeroes the gradient. Everything is computed in float32.
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
    """Distribution of one head. Every log-probability of a row without a legal choice is -inf."""

    p_C: Tensor
    """Exactly 0 where masked."""
    log_p_C: Tensor
    """0 where masked, so that sums and gradients stay finite."""
    legal_C: Tensor

    @classmethod
    def of(cls, logits_C: Tensor, legal_C: Tensor, epsilon: Tensor) -> MaskedCategorical:
        """Build from logits; `epsilon` is the weight of the uniform part, with size 1 in axis C."""
        logits_C = logits_C.float()
        legal_C = legal_C.expand_as(logits_C)
        softmax_C = torch.log_softmax(logits_C.masked_fill(~legal_C, -torch.inf), dim=-1)
        softmax_C = softmax_C.masked_fill(~legal_C, 0.0)
        uniform = torch.log(epsilon / legal_C.sum(-1, keepdim=True))
        log_p_C = torch.logaddexp(softmax_C + torch.log1p(-epsilon), uniform.expand_as(softmax_C))
        p_C, log_p_C = (torch.where(legal_C, x, 0.0) for x in (log_p_C.exp(), log_p_C))
        return cls(p_C, log_p_C, legal_C)

    def sample(self, uniform: Tensor) -> Tensor:
        """Inverse-CDF sample at each uniform number in [0, 1); never a masked choice."""
        cdf_C = _deterministic_cumsum(self.p_C) if self.p_C.is_cuda else self.p_C.cumsum(-1)
        below = (cdf_C <= (uniform * cdf_C[..., -1]).unsqueeze(-1)).sum(-1)
        places = torch.arange(self.p_C.shape[-1], device=self.p_C.device)
        # Rounding in the CDF could otherwise select a masked choice behind the last legal one.
        last_legal = torch.where(self.p_C > 0, places, 0).amax(-1)
        return torch.minimum(below, last_legal)

    def mode(self) -> Tensor:
        """Most likely choice."""
        return self.p_C.argmax(-1)

    def log_prob(self, choice: Tensor) -> Tensor:
        """Log-probability of one choice per row; -inf where it is masked."""
        at = choice.unsqueeze(-1)
        log_p = self.log_p_C.gather(-1, at).squeeze(-1)
        return torch.where(self.legal_C.gather(-1, at).squeeze(-1), log_p, -torch.inf)

    def entropy(self) -> Tensor:
        """Entropy in nats."""
        return -(self.p_C * self.log_p_C).sum(-1)


def _deterministic_cumsum(p_C: Tensor) -> Tensor:
    """Cumulative sum by a triangular mask, O(C^2), for GPUs under profile `exact`.

    `torch.cumsum` is not deterministic on CUDA. Every prefix is summed in the same order here, so
    a masked choice (p = 0) leaves the sum bit-identical to the one before it.
    """
    choices = p_C.shape[-1]
    upto_CC = torch.ones(choices, choices, dtype=p_C.dtype, device=p_C.device).tril()
    return (p_C.unsqueeze(-2) * upto_CC).sum(-1)


def action_uniforms(seed: int, round_index: int, step: int, members: Ints) -> Floats:
    """Uniform numbers `[E, A]` in [0, 1), one per member and head.

    Each is a hash of (seed, round, step, member, head): independent of E and of member order.

    >>> all_of_them = action_uniforms(7, 0, 3, np.arange(8))
    >>> bool((all_of_them[5:6] == action_uniforms(7, 0, 3, np.array([5]))).all())
    True
    """
    heads = np.arange(len(ActionHead))[None, :]
    path = ("action", round_index, step, members[:, None], heads)
    bits = stream_keys(seed, *path) >> np.uint64(40)
    return np.asarray(bits.astype(np.float32) * np.float32(2.0**-24))
