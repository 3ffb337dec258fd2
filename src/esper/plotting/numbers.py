"""Numbers in words: of tables, labels and axes."""

from __future__ import annotations

import math

from esper.leyline.statistics import Estimate


def number(value: float | None, form: str = ".4f") -> str:
    """A number for a table; a dash if it is not known.

    >>> number(0.51234, ".3f"), number(float("nan")), number(0.02, "+.3f")
    ('0.512', '-', '+0.020')
    """
    return "-" if value is None or not math.isfinite(value) else format(value, form)


def interval(found: Estimate, form: str = ".4f") -> str:
    """An estimate for a table.

    >>> interval(Estimate(0.5, 0.4, 0.6), ".1f"), interval(Estimate(0.5, math.nan, 0.6), ".1f")
    ('0.5 (0.4 to 0.6)', '0.5')
    """
    if not (math.isfinite(found.low) and math.isfinite(found.high)):
        return number(found.value, form)
    return f"{found.value:{form}} ({found.low:{form}} to {found.high:{form}})"


def short_number(value: float) -> str:
    """A count for an axis.

    >>> short_number(950), short_number(1500), short_number(2_000_000)
    ('950', '1,500', '2M')
    """
    for least, unit, letter in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if value >= least:
            return f"{value / unit:g}{letter}"
    return f"{value:,.6g}"
