"""What a row is trained on and how it is judged: per-row loss and correct counts, stacked.

Shape letters: R rows, B batch, K classes; language models have a time axis between B and K.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch.nn.functional as F
from torch import Tensor

FEW_CLASSES: Final = 64
"""Below this a CPU is faster with the classes apart and the samples side by side."""

RowLoss = Callable[[Tensor, Tensor], Tensor]
"""(outputs `[R, B, ...]`, targets `[R, B, ...]`) -> loss `[R]`, the mean over everything else."""


def cross_entropy(logits_RBK: Tensor, target_RB: Tensor) -> Tensor:
    """Mean cross-entropy of each row, in nats."""
    if logits_RBK.device.type == "cpu" and logits_RBK.shape[-1] < FEW_CLASSES:
        apart_RKB = logits_RBK.flatten(1, -2).transpose(1, 2).contiguous()
        losses = F.cross_entropy(apart_RKB, target_RB.flatten(1), reduction="none")
    else:
        losses = F.cross_entropy(logits_RBK.flatten(0, -2), target_RB.flatten(), reduction="none")
    return losses.view(logits_RBK.shape[0], -1).mean(dim=1)


def count_correct(logits_RBK: Tensor, target_RB: Tensor) -> Tensor:
    """How many predictions of each row are right."""
    return (logits_RBK.argmax(dim=-1) == target_RB).flatten(1).sum(dim=1)
