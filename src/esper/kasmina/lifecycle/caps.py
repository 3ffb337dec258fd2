"""Parameter and MAC caps of members: which seeds may still be grown.

A cap is reserved when a seed starts: every seed in a slot counts, those in TRAINING and those being
pruned included, and a new seed counts with the costliest blend style it might get.

Shape letters: E members, S slots, K blueprints.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from esper.leyline.actions import BlendStyle
from esper.leyline.arrays import Bools, Codes, Doubles, Ints
from esper.leyline.errors import EsperError
from esper.leyline.signals import NO_BLUEPRINT


@dataclass(frozen=True, slots=True, eq=False)
class SeedCosts:
    """Size of a seed of every blueprint in every slot, and of the host."""

    host_params: int
    host_macs: int
    params_SK: Ints
    """Without a gate; 0 where the blueprint does not fit."""
    macs_SK: Ints
    gate_params_S: Ints
    """Parameters that blend style GATE adds."""

    def reserved(self, blueprint_ES: Ints, style_ES: Codes) -> tuple[Doubles, Doubles]:
        """Parameters and MACs `[E]` of the host and all seeds."""
        slot_S = np.arange(len(self.gate_params_S))
        held_ES = blueprint_ES != NO_BLUEPRINT
        kind_ES = np.where(held_ES, blueprint_ES, 0)
        gate_ES = np.where(style_ES == BlendStyle.GATE, self.gate_params_S, 0)
        params_ES = np.where(held_ES, self.params_SK[slot_S, kind_ES] + gate_ES, 0)
        macs_ES = np.where(held_ES, self.macs_SK[slot_S, kind_ES], 0)
        params_E = self.host_params + params_ES.sum(axis=1)
        macs_E = self.host_macs + macs_ES.sum(axis=1)
        return params_E.astype(np.float64), macs_E.astype(np.float64)

    def fullest(self, fits_SK: Bools) -> tuple[int, int]:
        """Parameters and MACs of the host with the largest seed in every slot."""
        largest = [
            np.where(fits_SK, sizes_SK, 0).max(axis=1, initial=0).sum()
            for sizes_SK in (self.params_SK, self.macs_SK)
        ]
        return self.host_params + int(largest[0]), self.host_macs + int(largest[1])


class Caps:
    """Limits `[E]` on the size of members, host included; inf: none."""

    def __init__(
        self,
        costs: SeedCosts,
        params_cap_E: npt.ArrayLike,
        macs_cap_E: npt.ArrayLike,
        gates_allowed: bool = True,
    ) -> None:
        """`gates_allowed`: a new seed might get blend style GATE."""
        self.costs, self.gates_allowed = costs, gates_allowed
        self.params_cap_E = np.asarray(params_cap_E, dtype=np.float64)
        self.macs_cap_E = np.asarray(macs_cap_E, dtype=np.float64)
        gate_S = costs.gate_params_S if gates_allowed else np.zeros_like(costs.gate_params_S)
        self.seed_params_SK: Ints = costs.params_SK + gate_S[:, None]
        """Parameters reserved for a new seed."""
        limits = (("parameter", self.params_cap_E, costs.host_params),)
        for name, cap_E, host in (*limits, ("MAC", self.macs_cap_E, costs.host_macs)):
            low = np.flatnonzero(~(cap_E >= host))
            if low.size:
                raise EsperError(
                    f"{name} cap {cap_E[low[0]]:g} of member {low[0]}: the host alone has {host}; "
                    f"set it to {host} or more"
                )

    def fits(self, blueprint_ES: Ints, style_ES: Codes) -> Bools:
        """`[E, S, K]`: whether one more seed stays within both caps."""
        params_E, macs_E = self.costs.reserved(blueprint_ES, style_ES)
        params_left_E, macs_left_E = self.params_cap_E - params_E, self.macs_cap_E - macs_E
        fits_ESK = self.seed_params_SK <= params_left_E[:, None, None]
        return np.asarray(fits_ESK & (self.costs.macs_SK <= macs_left_E[:, None, None]))
