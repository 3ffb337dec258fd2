"""What the policy network reads: features, blueprint indices and masks, as arrays and as tensors.

Shape letters: E members, S slots, O operations, K blueprints, G global features, F features of a
slot, N choices of the fixed heads. Tensors may have any leading axes before their letters: `[E]`
while acting, `[T, E]` while learning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from esper.leyline.actions import HEAD_CHOICES, ActionHead
from esper.leyline.arrays import ArrayStruct, Floats, Ints
from esper.leyline.errors import EsperError
from esper.leyline.masks import ActionMasks

FIXED_HEADS: Final = tuple(h for h in HEAD_CHOICES if h is not ActionHead.OP)
"""Heads whose choices do not depend on the host, in the order they are sampled."""
FIXED_SIZES: Final = tuple(len(HEAD_CHOICES[h]) for h in FIXED_HEADS)
FIXED_CHOICES: Final = sum(FIXED_SIZES)
"""N."""


@dataclass(frozen=True, slots=True, eq=False)
class Observation(ArrayStruct):
    """What is known of every member, as numbers of a moderate size; on the host."""

    global_EG: Floats
    """Of the member as a whole."""
    slot_ESF: Floats
    """Of each of its slots."""
    blueprint_ES: Ints
    """Blueprint that stands in the slot; `NO_BLUEPRINT` where none does."""

    def require_finite(self) -> None:
        """Refuse numbers that would poison running statistics for good."""
        for name in ("global_EG", "slot_ESF"):
            values = getattr(self, name)
            if not np.isfinite(values).all():
                at = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
                raise EsperError(
                    f"Observation.{name} at {at} (member first): {values[at]}; features must be "
                    f"finite, say what was not measured by a feature of its own"
                )


@dataclass(frozen=True, slots=True, eq=False)
class MaskTensors:
    """`ActionMasks` where the network runs; what all members share has a member axis of 1."""

    op_O: Tensor
    slot_OS: Tensor
    blueprint_SK: Tensor
    fixed_N: Tensor
    """The masks of `FIXED_HEADS`, one behind the other."""

    @classmethod
    def of(cls, masks: ActionMasks, device: torch.device) -> MaskTensors:
        """The masks of E members; `ActionMasks` has refused empty ones already."""
        fixed_N = np.concatenate(
            (
                masks.style_Y,
                masks.tempo_M,
                masks.alpha_target_T,
                masks.alpha_speed_V,
                masks.alpha_curve_U,
            )
        )
        arrays = (masks.op_EO, masks.slot_EOS, masks.blueprint_SK[None], fixed_N[None])
        return cls(
            *(
                torch.from_numpy(np.ascontiguousarray(a)).to(device, non_blocking=True)
                for a in arrays
            )
        )

    def fixed(self, head: ActionHead) -> Tensor:
        """The mask of one fixed head."""
        place = FIXED_HEADS.index(head)
        return self.fixed_N.narrow(-1, sum(FIXED_SIZES[:place]), FIXED_SIZES[place])


@dataclass(frozen=True, slots=True, eq=False)
class PolicyInputs:
    """One forward pass's worth of input, normalised, on the network's device."""

    global_G: Tensor
    slot_SF: Tensor
    blueprint_S: Tensor
    masks: MaskTensors

    @classmethod
    def of(cls, obs: Observation, masks: ActionMasks, device: torch.device) -> PolicyInputs:
        """The inputs of E members."""
        arrays = (obs.global_EG, obs.slot_ESF, obs.blueprint_ES)
        whole, slots, blueprints = (
            torch.from_numpy(np.ascontiguousarray(a)).to(device, non_blocking=True) for a in arrays
        )
        return cls(whole, slots, blueprints, MaskTensors.of(masks, device))
