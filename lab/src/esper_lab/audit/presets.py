"""Distributions of contexts for audits, by name.

Price and caps are no part of them: they do not change the training of a planted topology, so the
analysis applies them to the records.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from esper.leyline.context import ONE, PLANNED, ContextSpec, Range
from esper.leyline.errors import EsperError, unknown_name
from esper.tasks.context_files import read_context


@dataclass(frozen=True, slots=True)
class Preset:
    """What contexts of an audit are drawn from."""

    spec: ContextSpec
    budgets: tuple[float, ...] = ()
    """Budgets of the contexts, in turn; empty: drawn."""
    name: str = "own"
    notes: tuple[str, ...] = ()
    """What was changed so that the spec suits an audit, as sentences."""


def context_spec(spec: ContextSpec, budgets: tuple[float, ...], context: int) -> ContextSpec:
    """Spec of one context: `budgets`, if there are any, take turns."""
    if not budgets:
        return spec
    budget = budgets[context % len(budgets)]
    return replace(spec, budget=Range(budget, budget))


SMALL: Final = replace(
    PLANNED,
    learning_rate=Range(0.5, 2.0),
    budget=Range(2.0, 8.0),
    min_groups=2,
    pixel_noise=Range(0.0, 1.0),
    permuted=0.2,
    data_share=Range(0.1, 1.0),
    label_noise=Range(0.0, 0.4),
)
"""Budgets of 2 to 8 host runs; everything that policies cannot see differs."""
HARDER: Final = replace(
    SMALL, pixel_noise=Range(0.5, 2.0), permuted=0.4, label_noise=Range(0.0, 0.6)
)
"""As `SMALL` with stronger corruptions."""
FIXED_BUDGETS: Final = (1.0, 2.0, 4.0, 8.0)

PRESETS: Final = {
    "small": Preset(SMALL, name="small"),
    "harder": Preset(HARDER, name="harder"),
    "fixed": Preset(replace(PLANNED, budget=Range(1.0, 8.0)), FIXED_BUDGETS, "fixed"),
}
"""Presets by the name used on the command line; `fixed`: the task as it is at four budgets."""


def read_preset(text: str) -> Preset:
    """Return a preset by name, or one with the contexts of JSON text or a JSON file.

    >>> read_preset("fixed").budgets
    (1.0, 2.0, 4.0, 8.0)
    """
    if text in PRESETS:
        return PRESETS[text]
    if not text.lstrip().startswith("{") and not text.endswith(".json"):
        raise unknown_name("preset", text, PRESETS, "or JSON of a ContextSpec")
    return suit_audit(read_context(text))


def suit_audit(spec: ContextSpec) -> Preset:
    """The preset of a spec, without price and caps; raises without plan phase and compute clock."""
    for name in ("actions", "clock"):
        if getattr(spec, name) != getattr(PLANNED, name):
            raise EsperError(
                f"contexts of an audit: {name} {getattr(spec, name)!r}, but topologies are planted "
                f'at equal compute; set "{name}": "{getattr(PLANNED, name)}"'
            )
    notes = []
    if spec.price != ONE:
        notes.append(f"price {spec.price.low:g} to {spec.price.high:g} is taken as 1")
    if spec.capped > 0:
        notes.append(f"caps of {spec.capped:.0%} of the members are left out")
    return Preset(replace(spec, price=ONE, capped=0.0), notes=tuple(notes))
