"""Widths of the user's model that a search starts from.

The widest that the budget allows comes first, then narrower ones at equal steps. Under a cap the
best network is often the widest that fits, so that one is searched for, not taken from a fixed
list.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from esper.growing.networks import Networks, Variant
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


def spread_widths(networks: Networks, most_cost: float) -> list[Variant]:
    """Other widths of a model, within the budget, narrowest first.

    `most_cost`: of training one, relative to the model as given.
    """
    found = _Widths(networks, most_cost)
    if not networks.base.bare or found.variant(1.0) is None:
        return []  # it has no places, or cannot be scaled
    top = found.widest()
    step = max(STEP, (top / NARROWEST) ** (1.0 / COUNT))
    for place in range(COUNT + 1):  # one of them may be the model itself
        found.variant(short(top / step**place))
    del found.variants[networks.base.bare_size.params]
    others = [variant for variant in found.variants.values() if _is_traced(variant)]
    return sorted(others, key=lambda variant: variant.bare_size.params)


def named_variants(networks: Networks, factors: Sequence[float]) -> list[Variant]:
    """The widths that the user named; raises if one cannot be made, or exceeds the budget."""
    found = {networks.base.bare_size.params: networks.base}
    for factor in factors:
        try:
            made = networks.scaled(width_name(factor), factor)
            size = made.size(made.bare)  # traces it
            networks.budget.check_host(size.params, size.macs)
        except EsperError as error:
            raise EsperError(f"width {factor:g}: {error}") from error
        found.setdefault(size.params, made)
    return list(found.values())[1:]


class _Widths:
    """Variants by number of parameters: two widths may round to one network."""

    def __init__(self, networks: Networks, most_cost: float) -> None:
        self.networks, self.most_cost = networks, most_cost
        self.variants = {networks.base.bare_size.params: networks.base}
        self._tried: dict[float, Variant | None] = {}

    def variant(self, factor: float) -> Variant | None:
        """The network of a width, if it can be made within the budget."""
        made = self._made(factor)
        return None if made is None else self.variants.setdefault(made.bare_size.params, made)

    def _made(self, factor: float) -> Variant | None:
        if factor not in self._tried:
            self._tried[factor] = self._make(factor)
        return self._tried[factor]

    def _make(self, factor: float) -> Variant | None:
        networks = self.networks
        try:
            made = networks.scaled(width_name(factor), factor)
            size = made.bare_size
        except EsperError:
            return None
        allowed = networks.budget.allows(size.params, size.macs)
        return made if allowed and networks.cost_of(size) <= max(1.0, self.most_cost) else None

    def widest(self) -> float:
        """The largest width that fits."""
        low, room = 1.0, self._room(self.networks.base)
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
                low, room = trial, self._room(made)
        return low

    def _room(self, variant: Variant) -> float:
        """By how much a network may grow within the limits on its size."""
        size, budget = variant.bare_size, self.networks.budget
        return min(
            math.inf if budget.params is None else budget.params / max(1, size.params),
            math.inf if budget.macs is None else budget.macs / max(1, size.macs),
        )


def _is_traced(variant: Variant) -> bool:
    """Whether a trace of it exists; that of the model does, but widths may mislead the tracer."""
    try:
        return variant.trace is not None
    except EsperError:
        return False


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
