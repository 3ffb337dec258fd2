"""What is said about one run of a search: why it was made, what changed, why it ended."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from esper.karn.views.documents import Entries, entries, real, text, texts, whole
from esper.karn.views.search_table import SearchTable
from esper.leyline.variants import describe_variant

MAX_NAMED: Final = 3
"""Runs that a sentence names; of more it has the number."""
_SAME: Final = 0.02
"""Lengths that differ by this share are the same."""
_MADE: Final = {
    "survivor": "Among the best of its rung for its size: {run} again",
    "best": "One of the two best so far: {run} again",
    "regularised": "A variation of the best so far: {run}",
    "control": "Your model by its best recipe, to compare others with: {run} again",
    "widest": "The largest network by its best recipe: {run} again",
    "longer": "Longer training has paid: {run}",
    "unfinished": "No full run is better at its size: {run} again",
    "neighbour": "A neighbour of {run}",
    "filling": "Time was left: {run} again",
    "finale": "The finale, for the rest of the time: {run}",
    "smaller": "A smaller network for longer, so that the frontier has one: {run} again",
    "reference": "Your model for longer, to compare the finale with: {run} again",
    "": "From {run}",
}
"""How a sentence begins, by purpose; what has changed follows."""
_CHANGES: Final = {
    "lr": "rate", "weight_decay": "weight decay", "batch_size": "batches of",
    "clip": "gradients clipped at", "label_smoothing": "label smoothing", "augment": "augmentation",
    "optimizer": "",
}  # fmt: skip
"""Entries of a recipe in words, in this order."""


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a run."""

    is_pick: bool
    on_frontier: bool
    under_way: bool
    fits: bool
    """Within the limits on its size."""
    better: str
    """What of the frontier is at least as good and no larger; empty: nothing."""
    again: Sequence[Entries]
    """Runs of the same network by the same recipe that came from it."""
    others: int
    """Other runs that came from it."""
    is_refit: bool


def network_name(search: SearchTable, row: Entries) -> str:
    """The network of a run: width and depth, then its seeds."""
    seeds = [name for name in texts(row, "topology") if name]
    variant = search.variant(row)
    return ", ".join(([describe_variant(variant)] if variant else []) + seeds) or "your model"


def same_network(one: Entries, other: Entries) -> bool:
    """Whether two runs train the same layers."""
    return all(one.get(name) == other.get(name) for name in ("variant", "topology"))


def trained_again(row: Entries, parent: Entries) -> bool:
    """Whether a run is another one's network by the same recipe, but for its length."""
    same = same_network(row, parent) and row.get("seed") == parent.get("seed")
    return same and whole(row, "start") is None and not _recipe_changes(row, parent)


# ---- why it was made ---------------------------------------------------------------------------


def made_text(search: SearchTable, row: Entries, parent: Entries | None) -> str:
    """Why a run was made, in a sentence."""
    purpose, name = text(row, "purpose"), network_name(search, row)
    if parent is None:
        rate = f"at rate {real(entries(row, 'recipe'), 'lr'):.3g}"
        if purpose == "random":
            return f"Drawn at random: {name} {rate}."
        first = purpose == "first" or (not purpose and whole(row, "number") == 0)
        return f"The first run: your model {rate}." if first else f"A first look at {name} {rate}."
    said = _MADE.get(purpose, _MADE[""]).format(run=f"#{whole(parent, 'number')}")
    changed = ", ".join(_changes(search, row, parent))
    return f"{said}, {changed}." if changed else f"{said}."


def _changes(search: SearchTable, row: Entries, parent: Entries) -> list[str]:
    """What differs between a run and the one that it came from."""
    found = [] if same_network(row, parent) else [f"as {network_name(search, row)}"]
    if whole(row, "start") is not None:
        found.append("from its weights")
    found += _recipe_changes(row, parent)
    if row.get("seed") != parent.get("seed"):
        found.append("other initial weights and order of samples")
    return [*found, *_length_change(row, parent)]


def _recipe_changes(row: Entries, parent: Entries) -> list[str]:
    now, before = entries(row, "recipe"), entries(parent, "recipe")
    return [
        f"{said} {_short(now, name)}".strip()
        for name, said in _CHANGES.items()
        if now.get(name) != before.get(name)
    ]


def _short(recipe: Entries, name: str) -> str:
    value = recipe.get(name)
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _length_change(row: Entries, parent: Entries) -> list[str]:
    now, before = _samples(row), _samples(parent)
    ratio = now / before if before else math.nan
    if not math.isfinite(ratio) or abs(ratio - 1.0) <= _SAME:
        return []
    return [f"{ratio:.2g} times as long"]


def _samples(row: Entries) -> float:
    recipe = entries(row, "recipe")
    return real(recipe, "batches") * real(recipe, "batch_size")


# ---- why it ended ------------------------------------------------------------------------------


def ended_text(search: SearchTable, row: Entries, fate: Fate) -> str:
    """How a run ended and what became of it, in sentences."""
    said = [end_text(search, row, fate.under_way)]
    if row.get("diverged") is not True and math.isfinite(real(row, "score")):
        said.append(_rank(fate))
    if fate.is_refit:
        said.append("It was trained once more, on training and validation samples.")
    said += _descendants(fate)
    return " ".join(one for one in said if one)


def end_text(search: SearchTable, row: Entries, under_way: bool) -> str:
    """How a run ended, in a sentence."""
    trained, batches = real(row, "trained"), real(entries(row, "recipe"), "batches")
    if row.get("diverged") is True:
        return f"Diverged within {trained:,.0f} batches."
    status = text(row, "status")
    if status == "finished":
        return "Finished."
    over = bool(text(search.spent, "ended"))
    if status == "planned":
        return "Not started: the search ended before." if over else "Not trained yet."
    of = f"{trained:,.0f} of {batches:,.0f} batches"
    if under_way:
        return f"Under way: {of}."
    return f"Cut by the time after {of}." if over else f"Interrupted after {of}."


def _rank(fate: Fate) -> str:
    if fate.is_pick:
        return "It is the pick."
    if not fate.fits:
        return "It is beyond the limits of the budget."
    if fate.on_frontier:
        return "No smaller network is better."
    return f"Not better than {fate.better}." if fate.better else ""


def _descendants(fate: Fate) -> list[str]:
    said = []
    if fate.again:
        named = [f"#{whole(one, 'number')} in rung {whole(one, 'rung')}" for one in fate.again]
        many = len(named) > MAX_NAMED
        said.append(f"It went on as {f'{len(named)} runs' if many else ', '.join(named)}.")
    if fate.others:
        what = ("other" if fate.again else "run") + ("" if fate.others == 1 else "s")
        said.append(f"{fate.others} {what} came from it.")
    return said
