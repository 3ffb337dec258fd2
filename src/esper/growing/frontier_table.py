"""The frontier as a table for people: what each network is, its score, its size, its recipe.

A network that is no better than a smaller one, by one standard error, or than a constant prediction
takes no line of its own; the pick and the user's model always do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from esper.leyline.variants import describe_variant

if TYPE_CHECKING:
    from esper.growing.folder import GrowInfo
    from esper.growing.result import GrownNetwork, NetworkRecord

FIGURES: Final = (2, 3, 4)
"""Columns of numbers."""
CLOSE: Final = "within one standard error of a smaller network"
CONSTANT: Final = "no better than a constant prediction"


@dataclass(frozen=True, slots=True)
class FrontierTable:
    """Lines of a frontier, smallest network first."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str
    """How many networks have no line, and why; empty: all have one."""

    def lines(self) -> list[str]:
        """As text in columns."""
        widths = [max(map(len, column)) for column in zip(self.head, *self.rows, strict=True)]
        cells = [
            [
                cell.rjust(width) if column in FIGURES else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            for row in (self.head, *self.rows)
        ]
        lines = ["  ".join(row).rstrip() for row in cells]
        return [*lines, *([f"   {self.note}"] if self.note else [])]


def frontier_table(networks: Sequence[GrownNetwork], pick: int, host: int) -> FrontierTable:
    """The table of some networks; `pick`, `host`: numbers of the pick and of the user's model."""
    info = networks[0].info
    networks = sorted(networks, key=lambda one: one.params)
    folded = _folded([one.record for one in networks], info, (pick, host))
    shown = [one for one in networks if one.record.number not in folded]
    size = "MACs" if info.budget.latency_ms is None else "ms a sample"
    return FrontierTable(
        ("", "network", f"test {info.metric}", "parameters", size, "recipe"),
        tuple((">" if one.record.number == pick else "", *_cells(one)) for one in shown),
        f"{len(folded)} more, {' or '.join(sorted(set(folded.values())))}" if folded else "",
    )


def _folded(
    records: Sequence[NetworkRecord], info: GrowInfo, always: Sequence[int]
) -> Mapping[int, str]:
    """Number of each network without a line -> why; `records`: smallest first."""
    sign = 1.0 if info.higher_is_better else -1.0
    folded, best = {}, -math.inf
    for one in records:
        merit, error = sign * one.test_score, 0.0 if math.isnan(one.test_se) else one.test_se
        if one.number not in always:
            if sign * one.val_score <= sign * info.constant_score:
                folded[one.number] = CONSTANT
            elif merit - error <= best:
                folded[one.number] = CLOSE
        if one.number not in folded and not math.isnan(merit):
            best = max(best, merit)
    return folded


def _cells(network: GrownNetwork) -> tuple[str, ...]:
    record = network.record
    error = "" if math.isnan(record.test_se) else f" ±{record.test_se:.4f}"
    return (
        _network(network),
        f"{record.test_score:.4f}{error}",
        f"{record.params:,}",
        f"{record.macs:,}" if network.info.budget.latency_ms is None else _latency(record),
        _recipe(record, network.info),
    )


def _latency(record: NetworkRecord) -> str:
    if not record.latency_low:
        return f"{record.latency:.3g}"
    return f"{record.latency:.3g} ({record.latency_low:.3g} to {record.latency_high:.3g})"


def _network(network: GrownNetwork) -> str:
    """What it is: width, depth and seeds."""
    record = network.record
    seeds = [f"{name} {place}" for place, name in network.seeds.items()]
    width = [describe_variant(record.variant)] if record.variant else []
    above = "" if network.info.host_fits or record.variant else ", above the budget"
    return (", ".join((*width, *seeds)) or "your model") + above


def _recipe(record: NetworkRecord, info: GrowInfo) -> str:
    """How it was trained: for how long, and what differs from the default."""
    recipe = record.recipe
    times = recipe.batches * recipe.batch_size / (info.length * info.batch_size)
    epochs = times * info.epochs
    default = info.rates[len(info.rates) // 2]
    times_own = "x" if recipe.optimizer == "own" else ""  # a multiple of the user's own rates
    parts = [
        f"{epochs:.3g} epochs" if epochs > 0 else f"{recipe.batches:,} batches",
        "" if recipe.lr == default else f"rate {times_own}{recipe.lr:.3g}",
        "" if recipe.augment == "none" else recipe.augment,
        "" if recipe.weight_decay == info.weight_decay else f"decay {recipe.weight_decay:.3g}",
        "" if recipe.batch_size == info.batch_size else f"batches of {recipe.batch_size}",
        f"smoothing {recipe.label_smoothing:g}" if recipe.label_smoothing else "",
        record.origin if record.origin in ("grown", "pruned") else "",
        "refit" if record.refit else "",
        "cut short" if record.cut else "",
    ]
    return ", ".join(part for part in parts if part)
