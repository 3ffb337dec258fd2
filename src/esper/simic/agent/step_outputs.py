"""What is the host told of a step of the policy, and in which column of `outputs_EX` does it lie?

One row a member, float32 throughout (choices are small enough to be exact), so that one copy takes
all of it. The columns are the same of a tensor on the device and of its copy on the host.

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
"""What each head chose."""
LOG_PROB_A: Final = slice(_HEADS, 2 * _HEADS)
"""The log-probability of that."""
OP_P_O: Final = slice(2 * _HEADS, 2 * _HEADS + _OPS)
"""The chances of the operations."""
VALUE: Final = 2 * _HEADS + _OPS
"""V of the state."""
TOLD: Final = VALUE + 1
"""X: all of it."""


def tell(output: PolicyOutput) -> Tensor:
    """`outputs_EX` of what the network put out, in the order of the columns above."""
    choices = output.choices
    parts = [choices.choice_A.to(torch.float32), choices.log_prob_A, choices.op_p_O]
    return torch.cat([*parts, output.value.unsqueeze(-1)], dim=-1)
