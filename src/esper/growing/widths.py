"""Widths of the user's model that a search starts from.

The widest that the budget allows comes first, then narrower ones at equal steps. Under a cap the
best network is often the widest that fits, so that one is searched for, not taken from a fixed
list.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from esper.growing.variants import Variant
from esper.leyline.errors import EsperError

WIDEST: Final = 4.0
"""Widest network without a limit on its size, as a multiple of the model's own width."""
WIDEST_UNDER_CAP: Final = 16.0
"""Widest network under a limit on its size."""
NARROWEST: Final = 0.5
STEP: Final = math.sqrt(2.0)
"""Least ratio between neighbouring widths: about twice the parameters."""
COUNT: Final = 6
"""Most widths besides the model's own."""
TRIALS: Final = 6
"""Networks that are built to find the widest one."""
CLOSE: Final = 1.01
"""Ratio of widths that makes no difference."""

MakeVariant = Callable[[float], Variant]
"""Width -> variant; raises `EsperError` if it cannot be made, or exceeds the budget."""


def spread_widths(make: MakeVariant, base: Variant, most_cost: float) -> list[Variant]:
    """Other widths of a model, within a budget, narrowest first.

    `most_cost`: of training one, relative to the model as given.
    """
    found = _Widths(make, base, most_cost)
    if found.variant(1.0) is None:
        return []  # it cannot be scaled
    top = found.widest()
    step = max(STEP, (top / NARROWEST) ** (1.0 / COUNT))
    for place in range(COUNT + 1):  # one of them may be the model itself
        found.variant(short(top / step**place))
    others = [variant for variant in found.variants.values() if variant is not base]
    return sorted(others, key=lambda variant: variant.space.costs.host_params)


class _Widths:
    """Variants by number of parameters: two widths may round to one network."""

    def __init__(self, make: MakeVariant, base: Variant, most_cost: float) -> None:
        self.make, self.base, self.most_cost = make, base, most_cost
        self.variants = {base.space.costs.host_params: base}

    def variant(self, factor: float) -> Variant | None:
        """The network of a width, if it can be made within the budget."""
        made = self._made(factor)
        if made is None:
            return None
        return self.variants.setdefault(made.space.costs.host_params, made)

    def _made(self, factor: float) -> Variant | None:
        try:
            made = self.make(factor)
        except EsperError:
            return None
        return made if made.cost <= max(1.0, self.most_cost) else None

    def widest(self) -> float:
        """The largest width that fits."""
        low, room = 1.0, _room(self.base)
        high = min(room, WIDEST_UNDER_CAP) if math.isfinite(room) else WIDEST
        failed = False
        for _ in range(TRIALS):
            if high <= low * CLOSE:
                break
            # Sizes grow at most with the square of the width: this one fits, but for rounding.
            trial = low * math.sqrt(room)
            if failed or trial <= low * CLOSE:
                trial = math.sqrt(low * high)
            trial = short(min(trial, high))
            made = self._made(trial)
            failed = made is None
            if made is None:
                high = trial
            else:
                low, room = trial, _room(made)
        return low


def _room(variant: Variant) -> float:
    """By how much a network may grow within the limits on its size."""
    space = variant.space
    return min(
        space.params_cap / space.costs.host_params,
        space.macs_cap / max(1, space.costs.host_macs),
    )


def short(factor: float) -> float:
    """The width in three digits, so that a name holds all of it."""
    return float(f"{factor:.3g}")


def width_name(factor: float) -> str:
    """Name of the variant of a width."""
    return f"x{factor:g}"


def named_widths(names: Sequence[str]) -> tuple[float, ...]:
    """Widths of variants by their names, the model as given left out.

    >>> named_widths(["", "x0.5", "x1.41"])
    (0.5, 1.41)
    """
    return tuple(float(name.removeprefix("x")) for name in names if name)
