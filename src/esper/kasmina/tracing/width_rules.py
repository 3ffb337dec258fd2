"""How old widths become new ones: tables that keep sums, ratios and divisibility.

A model may split a width into heads, concatenate two widths, or add a sum of widths to another one.
Several rules are tried, the most faithful to the factor first, until the model runs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torch import nn
from torch.nn.modules.conv import _ConvNd

from esper.kasmina.tracing.resizing import GENERATORS, is_depthwise, output_width
from esper.kasmina.tracing.width_sources import WidthSources

_CLOSE: Final = 0.05
"""A common unit is scaled first if it comes this close to the factor."""
_FARTHEST: Final = 64
"""Units tried on each side of the wanted one."""
_COUNTS: Final = re.compile(r"head|group", re.IGNORECASE)
"""In names of attributes that hold numbers of heads or groups, unless they hold sizes."""
_WIDTHS: Final = re.compile(r"dim|width|channel|feature|hidden|embd|embed|^d_|^c_", re.I)
_SIZES: Final = re.compile(rf"size|shape|{_WIDTHS.pattern}", re.I)
"""Widths, and sizes of space or time."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A table of widths, and whether the number of attention heads grows with them."""

    table: dict[int, int]
    heads: dict[int, int]
    """Old number -> new number; empty: numbers stay and heads become wider."""


def choices(
    model: nn.Module, sources: WidthSources, widths: Sequence[int], factor: float
) -> Iterator[tuple[Rule, dict[tuple[str, str], Any]]]:
    """Yield rules, each with sets of attributes that it scales, the most faithful first."""
    for rule in rules(widths, factor, _divisors(model, sources), _head_counts(model)):
        counts, sizes = _scaled_counts(model, rule), _scaled_attributes(model, rule)
        # Left as they are, widths may do harm that no check sees, as in x[:, : self.width].
        yield rule, counts | {key: v for key, v in sizes.items() if _WIDTHS.search(key[1])}
        yield rule, counts
        yield rule, counts | {key: v for key, v in sizes.items() if _SIZES.search(key[1])}
        yield rule, counts | sizes


def int_attributes(model: nn.Module) -> Iterator[tuple[str, str, int]]:
    """Yield path, name and value of the integers that the user's modules hold."""
    for path, name, value in _size_attributes(model):
        if isinstance(value, int):
            yield path, name, value


def _size_attributes(model: nn.Module) -> Iterator[tuple[str, str, int | tuple[int, ...]]]:
    """Yield path, name and value of integers, and tuples of them, that the user's modules hold."""
    for path, module in model.named_modules():
        if type(module).__module__.startswith("torch.nn"):
            continue
        for name, value in module.__dict__.items():
            is_tuple = isinstance(value, tuple) and all(type(part) is int for part in value)
            if not name.startswith("_") and (is_tuple or (type(value) is int and value > 1)):
                yield path, name, value


def _scaled_attributes(model: nn.Module, rule: Rule) -> dict[tuple[str, str], Any]:
    """Return the attributes that equal a scaled width, a tuple with one, or the size of a head."""
    found: dict[tuple[str, str], Any] = {}
    heads = [] if rule.heads else sorted(_head_counts(model))
    for path, name, value in _size_attributes(model):
        new: Any = value
        if isinstance(value, tuple):
            new = tuple(rule.table.get(part, part) for part in value)
        elif "head" in name.lower() and _SIZES.search(name):
            number = next((h for h in heads if value * h in rule.table), 0)
            whole = rule.table.get(value, value)
            new = rule.table[value * number] // number if number else whole
        elif not _is_count(name):
            new = rule.table.get(value, value)
        if new != value:
            found[path, name] = new
    return found


def _scaled_counts(model: nn.Module, rule: Rule) -> dict[tuple[str, str], Any]:
    """Return the numbers of heads that the rule changes."""
    return {
        (path, name): rule.heads[value]
        for path, name, value in int_attributes(model)
        if _is_count(name) and value in rule.heads
    }


def _is_count(name: str) -> bool:
    """Whether an attribute is a number of heads or groups, by its name."""
    return bool(_COUNTS.search(name)) and not _SIZES.search(name)


def _head_counts(model: nn.Module) -> set[int]:
    """Return the numbers of attention heads in a model."""
    found = {n.num_heads for n in model.modules() if isinstance(n, nn.MultiheadAttention)}
    named = {
        v for _, name, v in int_attributes(model) if _is_count(name) and "head" in name.lower()
    }
    return found | named


def _divisors(model: nn.Module, sources: WidthSources) -> set[tuple[int, int]]:
    """Return pairs of a width and a number that must divide it."""
    found = set(sources.divided)
    for layer in sources.layers.values():
        if isinstance(layer, nn.MultiheadAttention):
            found.add((layer.embed_dim, layer.num_heads))
        elif isinstance(layer, nn.GroupNorm):
            found.add((layer.num_channels, layer.num_groups))
        elif isinstance(layer, _ConvNd) and not is_depthwise(layer):
            found |= {(layer.in_channels, layer.groups), (layer.out_channels, layer.groups)}
    for path, name, value in int_attributes(model):
        if _is_count(name):
            for layer in model.get_submodule(path).modules():
                if isinstance(layer, GENERATORS) and output_width(layer) % value == 0:
                    found.add((output_width(layer), value))
    return {(width, number) for width, number in found if number > 1}


def rules(
    widths: Sequence[int], factor: float, divided: set[tuple[int, int]], heads: set[int]
) -> Iterator[Rule]:
    """Yield tables to try, the most faithful first."""
    unit = math.gcd(*widths)
    known = sorted(set(widths))
    scaled = _scaled_unit(unit, factor, [(w // unit, n) for w, n in divided if w % unit == 0])
    linear = Rule({w: w // unit * scaled for w in known}, {})
    multiples = {w: math.lcm(*(n for v, n in divided if v == w)) for w in known}
    if abs(scaled / unit / factor - 1) <= _CLOSE:
        yield linear
    yield Rule({w: _nearest(w * factor, multiples[w]) for w in known}, {})
    yield Rule(_by_multiples(known, factor, multiples), {})
    yield linear
    if heads:
        # Heads of constant size: what rotary tables need.
        more = _scaled_unit(unit, factor, [], [(h, unit) for h in heads])
        table = {w: w // unit * more for w in known}
        yield Rule(table, {h: max(1, h * more // unit) for h in heads})


def _scaled_unit(
    unit: int,
    factor: float,
    parts: Sequence[tuple[int, int]],
    counts: Sequence[tuple[int, int]] = (),
) -> int:
    """Return the integer nearest to unit * factor whose multiples are divisible as asked."""
    middle = round(unit * factor)
    near = range(max(1, middle - _FARTHEST), middle + _FARTHEST)
    for size in sorted(near, key=lambda n: abs(n - unit * factor)):
        if all(part * size % number == 0 for part, number in (*parts, *counts)):
            return size
    return unit


def _nearest(wanted: float, multiple: int) -> int:
    return max(1, round(wanted / multiple)) * multiple


def _by_multiples(known: Sequence[int], factor: float, multiples: dict[int, int]) -> dict[int, int]:
    """Round each width that is no multiple of a smaller one; the others follow."""
    table: dict[int, int] = {}
    for width in known:
        smaller = [w for w in table if width % w == 0]
        table[width] = (
            width // smaller[0] * table[smaller[0]]
            if smaller
            else _nearest(width * factor, multiples[width])
        )
    return table
