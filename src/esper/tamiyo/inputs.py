"""Inputs of the policy network: features, blueprint indices and masks, as arrays and tensors.

Shape letters: E members, S slots, O operations, K blueprints, G global features, F features of a
slot, D features of a candidate, N choices of the fixed heads. Tensors may have any leading axes
before their letters: `[E]` while acting, `[T, E]` while learning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from esper.leyline.actions import HEAD_CHOICES, ActionHead
from esper.leyline.arrays import ArrayStruct, Floats, Ints
from esper.leyline.errors import EsperError
from esper.leyline.masks import FIXED_MASK, ActionMasks

FIXED_HEADS: Final = tuple(FIXED_MASK)
"""Heads whose choices do not depend on the host, in sampling order."""
FIXED_SIZES: Final = tuple(len(HEAD_CHOICES[h]) for h in FIXED_HEADS)
FIXED_CHOICES: Final = sum(FIXED_SIZES)
"""N."""

NamedArrays = dict[str, npt.NDArray[np.generic]]


@dataclass(frozen=True, slots=True, eq=False)
class Observation(ArrayStruct):
    """Features of every member, on the host (CPU)."""

    global_EG: Floats
    """Features of the member."""
    slot_ESF: Floats
    """Features of each slot."""
    candidate_ESKD: Floats
    """Descriptor of each blueprint in each slot."""
    blueprint_ES: Ints
    """Blueprint in the slot; `NO_BLUEPRINT` if it is empty."""

    def require_finite(self) -> None:
        """Raise if a feature is not finite: it would corrupt running statistics permanently."""
        for name in ("global_EG", "slot_ESF", "candidate_ESKD"):
            values = getattr(self, name)
            if not np.isfinite(values).all():
                at = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
                raise EsperError(
                    f"Observation.{name} at {at} (member first): {values[at]}; features must be "
                    f"finite; encode a missing measurement as a separate feature"
                )


@dataclass(frozen=True, slots=True, eq=False)
class MaskTensors:
    """`ActionMasks` on the network's device; masks shared by all members have member axis 1."""

    op_O: Tensor
    slot_OS: Tensor
    blueprint_SK: Tensor
    fixed_N: Tensor
    """Masks of `FIXED_HEADS`, concatenated."""

    @staticmethod
    def arrays(masks: ActionMasks) -> NamedArrays:
        """Masks of E members on the host, by field name."""
        fixed = [getattr(masks, name) for name in FIXED_MASK.values()]
        return {
            "op_O": masks.op_EO,
            "slot_OS": masks.slot_EOS,
            "blueprint_SK": masks.blueprint_ESK,
            "fixed_N": np.concatenate(fixed)[None],
        }

    def fixed(self, head: ActionHead) -> Tensor:
        """Mask of one fixed head."""
        place = FIXED_HEADS.index(head)
        return self.fixed_N.narrow(-1, sum(FIXED_SIZES[:place]), FIXED_SIZES[place])


@dataclass(frozen=True, slots=True, eq=False)
class PolicyInputs:
    """Input of one forward pass, normalised, on the network's device."""

    global_G: Tensor
    slot_SF: Tensor
    candidate_SKD: Tensor
    blueprint_S: Tensor
    masks: MaskTensors

    @staticmethod
    def arrays(obs: Observation, masks: ActionMasks) -> NamedArrays:
        """Inputs of E members on the host, by the names `from_tensors` reads."""
        features: NamedArrays = {
            "global_G": obs.global_EG,
            "slot_SF": obs.slot_ESF,
            "candidate_SKD": obs.candidate_ESKD,
            "blueprint_S": obs.blueprint_ES,
        }
        return features | MaskTensors.arrays(masks)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> PolicyInputs:
        """Build from named tensors; unknown names are ignored."""
        masks = MaskTensors(**{f.name: tensors[f.name] for f in fields(MaskTensors)})
        names = (f.name for f in fields(cls) if f.name != "masks")
        return cls(**{name: tensors[name] for name in names}, masks=masks)

    @classmethod
    def of(cls, obs: Observation, masks: ActionMasks, device: torch.device) -> PolicyInputs:
        """Copy the inputs of E members to the device."""
        return cls.from_tensors(_to_device(cls.arrays(obs, masks), device))


def _to_device(arrays: NamedArrays, device: torch.device) -> dict[str, Tensor]:
    """Copy arrays to the device without synchronising."""
    return {
        name: torch.from_numpy(np.array(array, order="C")).to(device, non_blocking=True)
        for name, array in arrays.items()
    }
