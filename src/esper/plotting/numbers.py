"""Numbers in words: of tables, labels and axes; `static/js/format.js` of the dashboard writes the
same.

What is halfway is rounded away from zero, as JavaScript does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Final

from esper.leyline.statistics import Estimate

UNKNOWN: Final = "-"
_HUGE, _TINY = 1e15, 1e-3
"""From here on, and below, powers of ten are written."""
_UNITS: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_MAX_TICK_DIGITS: Final = 8


def number(value: float | None, digits: int = 4) -> str:
    """A number by its significant digits; a dash if it is not known.

    >>> number(0.51234), number(0.85), number(12345.6), number(0.000123), number(float("nan"))
    ('0.5123', '0.85', '12,346', '1.23e-4', '-')
    """
    if value is None or not math.isfinite(value):
        return UNKNOWN
    size = abs(value)
    if size >= _HUGE or 0 < size < _TINY:
        return _power(value, 3)
    if size >= 10**digits:
        return f"{_rounded(value, math.floor(math.log10(size)) + 1):,f}".partition(".")[0]
    return _plain(_rounded(value, digits))


def percent(share: float | None) -> str:
    """A share in per cent.

    >>> percent(0.123), percent(1.0), percent(None)
    ('12.3 %', '100 %', '-')
    """
    known = share is not None and math.isfinite(share)
    return f"{number(100 * share, 3)} %" if known and share is not None else UNKNOWN


def signed(value: float | None) -> str:
    """A difference with its sign.

    >>> signed(0.021), signed(0.0)
    ('+0.021', '±0')
    """
    if value is None or not math.isfinite(value):
        return UNKNOWN
    sign = "+" if value > 0 else "-" if value < 0 else "±"
    return f"{sign}{number(abs(value), 3)}"


def interval(found: Estimate) -> str:
    """An estimate with its interval, if it has one.

    >>> interval(Estimate(0.5, 0.4, 0.6)), interval(Estimate(0.5, math.nan, 0.6))
    ('0.5 [0.4, 0.6]', '0.5')
    """
    return f"{number(found.value)} {ends(found)}".rstrip()


def signed_interval(found: Estimate) -> str:
    """A difference with its interval, if it has one.

    >>> signed_interval(Estimate(0.05, 0.01, 0.11))
    '+0.05 [+0.01, +0.11]'
    """
    return f"{signed(found.value)} {signed_ends(found)}".rstrip()


def ends(found: Estimate) -> str:
    """Ends of an interval, if it is known.

    >>> ends(Estimate(0.5, 0.4, 0.6))
    '[0.4, 0.6]'
    """
    return f"[{number(found.low, 3)}, {number(found.high, 3)}]" if _is_known(found) else ""


def signed_ends(found: Estimate) -> str:
    """Ends of the interval of a difference, if it is known."""
    return f"[{signed(found.low)}, {signed(found.high)}]" if _is_known(found) else ""


def _is_known(found: Estimate) -> bool:
    return math.isfinite(found.low + found.high + found.value)


def fixed(value: float | None, decimals: int = 3) -> str:
    """A number of a column whose numbers stand below each other.

    >>> fixed(0.5), fixed(1234.0, 1), fixed(None)
    ('0.500', '1,234.0', '-')
    """
    return UNKNOWN if value is None or not math.isfinite(value) else f"{value:,.{decimals}f}"


def short_number(value: float, digits: int = 3) -> str:
    """A number of an axis, or where there is little room.

    >>> short_number(950), short_number(1500), short_number(2_000_000), short_number(5e-5)
    ('950', '1.5k', '2M', '5e-5')
    """
    rounded = _rounded(value, digits)
    size = abs(float(rounded))
    if (size and size < _TINY) or size >= _HUGE:
        return _power(value, digits)
    for unit, letter in _UNITS:
        if size >= unit:
            return f"{_bare(rounded / int(unit))}{letter}"
    return _bare(rounded)


def tick_texts(ticks: Sequence[float]) -> list[str]:
    """Short numbers of an axis, with the digits that tell them apart.

    >>> tick_texts([0.9712, 0.9714]), tick_texts([1000, 2000])
    (['0.9712', '0.9714'], ['1k', '2k'])
    """
    for digits in range(3, _MAX_TICK_DIGITS):
        texts = [short_number(tick, digits) for tick in ticks]
        if len(set(texts)) == len(set(ticks)):
            return texts
    return [short_number(tick, _MAX_TICK_DIGITS) for tick in ticks]


def _rounded(value: float, digits: int) -> Decimal:
    return Context(prec=digits, rounding=ROUND_HALF_UP).create_decimal(Decimal(value))


def _bare(value: Decimal) -> str:
    """Without needless zeros."""
    text = f"{value:f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def _plain(value: Decimal) -> str:
    whole, point, rest = _bare(value).partition(".")
    return f"{int(whole):,}" if not point else f"{_grouped(whole)}{point}{rest}"


def _grouped(whole: str) -> str:
    """Thousands apart; the sign of -0 stays."""
    return whole if len(whole) < 4 else f"{int(whole):,}"


def _power(value: float, digits: int) -> str:
    """As `1.5e-4`."""
    mantissa, _, power = f"{_rounded(value, digits):.{digits - 1}e}".partition("e")
    mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    return f"{mantissa}e{int(power)}"
