"""Widths of the user's model that a search starts from.

The widest that the budget allows comes first, then narrower ones at equal steps. Under a cap the
best network is often the widest that fits, so that one is searched for, not taken from a fixed
list. A cap may be below the model itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from esper.growing.networks import Networks, Variant
from esper.kasmina.layers.counting import Size
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
SMALLEST: Final = (0.001, 0.03, 0.1, 0.25, 0.5)
"""Widths that are tried until one can be made, to find the smallest network."""


def spread_widths(networks: Networks, most_cost: float) -> list[Variant]:
    """Other widths of a model, within the budget, narrowest first.

    `most_cost`: of training one, relative to the model as given.
    """
    found = _Widths(networks, most_cost)
    if networks.base_fits:
        if not networks.base.bare or found.variant(1.0) is None:
            return []  # it has no places, or cannot be scaled
        top = found.widest()
    else:
        top = found.widest_below(narrowest(networks)[0])
    step = max(STEP, (top / NARROWEST) ** (1.0 / COUNT))
    for place in range(COUNT + 1):  # one of them may be the model itself
        found.variant(short(top / step**place))
    del found.variants[networks.base.bare_size.params]
    others = [variant for variant in found.variants.values() if _is_traced(variant)]
    return sorted(others, key=lambda variant: variant.bare_size.params)


def narrowest(networks: Networks) -> tuple[float, Size]:
    """The narrowest width that can be made, and its size.

    Raises if there is none, or if even that exceeds the budget.
    """
    size, budget = networks.base.bare_size, networks.budget
    name, has = budget.excess(size.params, size.macs)
    limit = f"budget {name}={getattr(budget, name):g}: your model has {has:,}"
    advice = f"give {name}={has} or more, or start from a smaller model"
    reason = ""
    for factor in SMALLEST:
        try:
            found = networks.scaled(width_name(factor), factor).bare_size
        except EsperError as error:
            reason = str(error)
            continue
        if not budget.allows(found.params, found.macs):
            name, has = budget.excess(found.params, found.macs)
            raise EsperError(
                f"{limit}, and the smallest network that can be made of it {has:,}; give "
                f"{name}={has} or more, or start from a smaller model"
            )
        return factor, found
    raise EsperError(f"{limit}, and no smaller network can be made of it ({reason}); {advice}")


def named_variants(networks: Networks, factors: Sequence[float]) -> list[Variant]:
    """The widths that the user named; raises if one cannot be made, or exceeds the budget."""
    found = {networks.base.bare_size.params: networks.base}
    for factor in factors:
        try:
            made = networks.scaled(width_name(factor), factor)
            size = made.size(made.bare)  # traces it
            networks.budget.require(size.params, size.macs)
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

    def widest_below(self, fits: float) -> float:
        """The largest width that fits, where the model itself does not; `fits`: one that does."""
        # Sizes shrink with the width, at least, and at most with its square.
        room = self._room(self.networks.base)
        low, high = max(fits, room / 2), min(1.0, CLOSE * math.sqrt(room))
        for _ in range(TRIALS):
            trial = short(math.sqrt(low * high))
            if self._made(trial) is None:
                high = trial
            else:
                low = fits = trial
        return fits

    def _room(self, variant: Variant) -> float:
        """By how much a network may grow within the limits on its size."""
        size = variant.bare_size
        return self.networks.budget.room(size.params, size.macs)


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
