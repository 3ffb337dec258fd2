"""Widths and depths of the user's model that a search starts from.

The widest that the budget allows comes first, then narrower ones at equal steps. Under a cap the
best network is often the widest that fits, so that one is searched for, not taken from a fixed
list. A cap may be below the model itself. Other depths are tried at two widths each.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Final, Literal

from esper.growing.networks import Networks, Variant
from esper.leyline.errors import EsperError
from esper.leyline.variants import read_variant

WIDEST: Final = 4.0
"""Widest network without a limit on its size, as a multiple of the model's own width."""
WIDEST_UNDER_CAP: Final = 16.0
"""Widest network under a limit on its size."""
NARROWEST: Final = 0.5
STEP: Final = math.sqrt(2.0)
"""Least ratio between neighbouring widths: about twice the parameters."""
COUNT: Final = 6
"""Most widths besides the model's own, not counting the small ones."""
SMALL: Final = (0.25, 0.125)
"""Widths that are tried besides if they are narrower than all others: cheap, and a frontier is to
have small networks."""
COUNT_BESIDE_DEPTHS: Final = 4
"""The same where other depths are tried."""
TRIALS: Final = 6
"""Networks that are built to find the widest one."""
CLOSE: Final = 1.01
"""Ratio of widths that makes no difference."""
NEAR: Final = 1.15
"""Ratio by which the widest network of another depth is first looked for around a guess."""
TRIALS_NEAR: Final = 3
SMALLEST: Final = (0.001, 0.03, 0.1, 0.25, 0.5)
"""Widths that are tried until one can be made, to find the smallest network."""


def spread_variants(
    networks: Networks, most_cost: float, depths: Sequence[float] = ()
) -> list[Variant]:
    """Other widths of a model, and other depths, within the budget, smallest first.

    `most_cost`: of training one, relative to the model as given.
    """
    found = _Widths(networks, most_cost)
    top = found.top()
    others = [one for depth in depths for one in _at_depth(networks, most_cost, depth, top)]
    if top is not None:
        count = COUNT_BESIDE_DEPTHS if others else COUNT
        step = max(STEP, (top / NARROWEST) ** (1.0 / count))
        for place in range(count + 1):  # one of them may be the model itself
            found.variant(short(top / step**place))
        for factor in SMALL:
            if factor < top / step**count / STEP:
                found.variant(factor)
    del found.variants[networks.base.bare_size.params]
    every = [*found.variants.values(), *others]
    traced = [variant for variant in every if _is_traced(variant)]
    return sorted(traced, key=lambda variant: variant.bare_size.params)


def _at_depth(
    networks: Networks, most_cost: float, depth: float, like: float | None
) -> list[Variant]:
    """The widest network of a depth, and one about its own width or half as wide.

    `like`: the widest of the model's own depth.
    """
    found = _Widths(networks, most_cost, depth)
    top = found.top(like)
    if top is not None:
        found.variant(top)
        found.variant(1.0 if top > STEP else short(top / 2))
    return list(found.variants.values())


def named_variants(
    networks: Networks, widths: Sequence[float], depths: Sequence[float] = ()
) -> list[Variant]:
    """The widths and depths that the user named, and all pairs of them.

    Raises if one cannot be made, or exceeds the budget.
    """
    found = {(networks.base.bare_size.params, 1.0): networks.base}
    for depth, width in product((1.0, *depths), (1.0, *widths)):
        if (width, depth) == (1.0, 1.0):
            continue
        try:
            made = networks.scaled(width, depth)
            size = made.size(made.bare)  # traces it
            networks.budget.require(size.params, size.macs, networks.latency(made, made.bare))
        except EsperError as error:
            names = [f"width {width:g}"] * (width != 1) + [f"depth {depth:g}"] * (depth != 1)
            raise EsperError(f"{', '.join(names)}: {error}") from error
        found.setdefault((size.params, depth), made)
    return list(found.values())[1:]


def own_width_variants(
    networks: Networks, most_cost: float, depths: Iterable[float]
) -> list[Variant]:
    """Other depths at the model's own width, as far as they can be made within the budget."""
    every = (_Widths(networks, most_cost, depth).variant(1.0) for depth in depths)
    return [variant for variant in every if variant is not None and _is_traced(variant)]


def remade_variants(networks: Networks, names: Sequence[str]) -> list[Variant]:
    """The variants of a search by their names, the model as given left out.

    Rows of its table name them by number, so all of them are made; the budget may be another now.
    """
    return [networks.scaled(*read_variant(name)) for name in names if name]


def require_smaller(
    networks: Networks, widths: Sequence[float] | Literal["auto"], depths: Sequence[float]
) -> None:
    """Raise if no network of these widths and depths is within the budget, as the model is not."""
    budget, base, size = networks.budget, networks.base, networks.base.bare_size
    name, has = budget.excess(size.params, size.macs, networks.latency(networks.base, base.bare))
    limit = f"budget {name}={getattr(budget, name):g}: your model has {has:,}"
    if not widths and not depths:
        raise EsperError(
            f"{limit}, and widths=() leaves no smaller one; give {name}={has} or more, or "
            f"widths='auto'"
        )
    made, reasons = list[tuple[str, float]](), list[str]()
    for depth in sorted({1.0, *depths}):
        for width in SMALLEST if widths == "auto" else sorted((*widths, 1.0)):
            try:
                variant = networks.scaled(width, depth)
                found, latency = variant.bare_size, networks.latency(variant, variant.bare)
            except EsperError as error:
                reasons.append(str(error))
                continue
            if budget.allows(found.params, found.macs, latency):
                return
            made.append(budget.excess(found.params, found.macs, latency))
            break
    if made:
        name, has = min(made, key=lambda one: one[1])
        limit += f", and the smallest network that can be made of it {has:,}"
    else:
        limit += f", and no smaller network can be made of it ({reasons[-1]})"
    raise EsperError(f"{limit}; give {name}={has} or more, or start from a smaller model")


class _Widths:
    """Variants of one depth by number of parameters: two widths may round to one network."""

    def __init__(self, networks: Networks, most_cost: float, depth: float = 1.0) -> None:
        self.networks, self.most_cost, self.depth = networks, max(1.0, most_cost), depth
        base = networks.base
        self.variants = {base.bare_size.params: base} if depth == 1 else {}
        self._built: dict[float, Variant | None] = {}

    def variant(self, factor: float) -> Variant | None:
        """The network of a width, if it can be made within the budget."""
        made = self._made(factor)
        return None if made is None else self.variants.setdefault(made.bare_size.params, made)

    def top(self, like: float | None = None) -> float | None:
        """The largest width that fits; None: no other width can be made, or none fits.

        `like`: that of the model's own depth, where the search may begin.
        """
        own, base = self._build(1.0), self.networks.base
        if own is None:
            return None
        if self.depth == 1:
            own = base
            if self.networks.base_fits and not base.bare:
                return None  # it has no places
        elif like is not None and math.isfinite(self._room(own)):
            share = base.bare_size.train_macs / max(1, own.bare_size.train_macs)
            guess = like * math.sqrt(share)
            near = self._bisected(guess / NEAR, guess * NEAR, TRIALS_NEAR)
            if near is not None:
                return near
        return self._widest(own) if self._made(1.0) is not None else self._widest_below(own)

    def _build(self, factor: float) -> Variant | None:
        """The network of a width, whatever its size."""
        if factor not in self._built:
            try:
                made = self.networks.scaled(factor, self.depth)
                self._built[factor] = made if made.bare_size else None  # may raise
            except EsperError:
                self._built[factor] = None
        return self._built[factor]

    def _made(self, factor: float) -> Variant | None:
        made, networks = self._build(factor), self.networks
        if made is None:
            return None
        size = made.bare_size
        if networks.cost_of(size) > self.most_cost or self._room(made, timed=False) < 1.0:
            return None
        return made if self._room(made) >= 1.0 else None

    def _widest(self, own: Variant) -> float:
        low, room = 1.0, self._room(own)
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

    def _widest_below(self, own: Variant) -> float | None:
        """The largest width that fits, where the model's own does not."""
        # Sizes shrink with the width, at least, and at most with its square.
        room = min(self._room(own), self.most_cost / self.networks.cost_of(own.bare_size))
        fits = self._bisected(room / 2, min(1.0, CLOSE * math.sqrt(room)), TRIALS)
        return fits or next((one for one in SMALLEST if self._made(one) is not None), None)

    def _bisected(self, low: float, high: float, trials: int) -> float | None:
        """A width between two that fits, where a little more does not; None: none was found."""
        fits = None
        for _ in range(trials):
            trial = short(math.sqrt(low * high))
            if self._made(trial) is None:
                high = trial
            else:
                low = fits = trial
        return fits

    def _room(self, variant: Variant, timed: bool = True) -> float:
        """By how much a network may grow within the limits on its size and, if `timed`, latency."""
        size, networks = variant.bare_size, self.networks
        latency = 0.0
        if timed and networks.budget.latency_ms is not None:
            try:
                latency = networks.latency(variant, variant.bare)
            except EsperError:  # it cannot be built: its trace differs
                return 0.0
        return networks.budget.room(size.params, size.macs, latency)


def _is_traced(variant: Variant) -> bool:
    """Whether a trace of it exists; that of the model does, but widths may mislead the tracer."""
    try:
        return variant.trace is not None
    except EsperError:
        return False


def short(factor: float) -> float:
    """The width in three digits, so that a name holds all of it."""
    return float(f"{factor:.3g}")
