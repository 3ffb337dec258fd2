"""Per-row losses and correct counts.

Shape letters: R rows, B batch, K classes; language models have a time axis between B and K.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from esper.leyline.errors import EsperError

FEW_CLASSES: Final = 64
"""Number of classes below which a CPU is faster with the class axis first."""

IGNORED: Final = -100
"""torch's label for ignored positions."""

RowLoss = Callable[[Tensor, Tensor], Tensor]
"""(outputs `[R, B, ...]`, targets `[R, B, ...]`) -> loss `[R]`, averaged over all other axes."""


def cross_entropy(logits_RBK: Tensor, target_RB: Tensor) -> Tensor:
    """Return the mean cross-entropy of each row, in nats."""
    if logits_RBK.device.type == "cpu" and logits_RBK.shape[-1] < FEW_CLASSES:
        apart_RKB = logits_RBK.flatten(1, -2).transpose(1, 2).contiguous()
        losses = F.cross_entropy(apart_RKB, target_RB.flatten(1), reduction="none")
    else:
        losses = F.cross_entropy(logits_RBK.flatten(0, -2), target_RB.flatten(), reduction="none")
    return losses.view(logits_RBK.shape[0], -1).mean(dim=1)


def row_targets(target: Tensor, member_R: Tensor | None, rows: int) -> Tensor:
    """Return the targets of each row (`member_R` None: row e is member e).

    They are given for members, `[E, B, ...]`, or for all of them, `[1, B, ...]`.
    """
    if target.shape[0] == 1:
        return target.expand(rows, *target.shape[1:])
    return target if member_R is None else target.index_select(0, member_R)


def scaled_loss(
    loss: RowLoss, target_R: Tensor, scale_R: Tensor | None, outputs: Tensor, rows: slice
) -> tuple[Tensor, Tensor]:
    """Return the losses of some rows, and these times their scales (None: 1)."""
    each = loss(outputs, target_R[rows])
    return each, each if scale_R is None else each * scale_R[rows]


def check_labels(
    target: Tensor, batch: int, output_shape: Sequence[int], read_values: bool
) -> None:
    """Raise unless `cross_entropy` accepts the labels for outputs `[R, B, *output_shape]`.

    `read_values`: also check that each is a valid class, which synchronises a GPU.
    """
    if not output_shape:
        raise EsperError(
            "outputs are one number per sample: cross-entropy needs one for each class; give the "
            "host such a head, or the population your own loss="
        )
    *places, classes = output_shape
    wanted = (batch, *places)
    if target.shape[1:] != wanted:
        raise EsperError(
            f"targets of shape {tuple(target.shape)}: outputs are {(batch, *output_shape)} for "
            f"each member, so give labels {wanted}, one class index per position"
        )
    if target.dtype not in (torch.int64, torch.uint8):
        raise EsperError(
            f"targets of {str(target.dtype).removeprefix('torch.')}: labels are class indices of "
            f"int64, as in y.long(); for others give the population your own loss="
        )
    if not read_values:
        return
    least, most = (int(value) for value in target.aminmax())
    if least < 0 or most >= classes:
        wrong = target[((target < 0) | (target >= classes)) & (target != IGNORED)]
        if wrong.numel():
            raise EsperError(
                f"label {int(wrong[0])}: the host has {classes} outputs, so labels are 0 to "
                f"{classes - 1}"
            )


def count_correct(logits_RBK: Tensor, target_RB: Tensor) -> Tensor:
    """Return the number of correct predictions of each row; 0 if targets are not classes."""
    if target_RB.shape != logits_RBK.shape[:-1]:
        return torch.zeros(len(logits_RBK), dtype=torch.int64, device=logits_RBK.device)
    return (logits_RBK.argmax(dim=-1) == target_RB).flatten(1).sum(dim=1)
