"""Column layout of `outputs_EX`, the policy outputs of a step that are copied to the host.

One row per member, all float32 (choices are small enough to be exact), so that one copy transfers
everything. Device tensor and host copy have the same columns.

Shape letters: E members, A heads, O operations, X columns.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from esper.leyline.actions import ActionHead, LifecycleOp
from esper.tamiyo.network import PolicyOutput

_HEADS: Final = len(ActionHead)
_OPS: Final = len(LifecycleOp)

CHOICE_A: Final = slice(0, _HEADS)
"""Choice of each head."""
LOG_PROB_A: Final = slice(_HEADS, 2 * _HEADS)
"""Log-probability of the choice."""
OP_P_O: Final = slice(2 * _HEADS, 2 * _HEADS + _OPS)
"""Probability of each operation."""
VALUE: Final = 2 * _HEADS + _OPS
"""State value."""
OUTPUT_COLUMNS: Final = VALUE + 1
"""X: number of columns."""


def pack_outputs(output: PolicyOutput) -> Tensor:
    """Pack network outputs into `outputs_EX`."""
    choices = output.choices
    parts = [choices.choice_A.to(torch.float32), choices.log_prob_A, choices.op_p_O]
    return torch.cat([*parts, output.value.unsqueeze(-1)], dim=-1)
