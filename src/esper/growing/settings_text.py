"""Settings of a run in words, for the report and `esper show`."""

from __future__ import annotations

from dataclasses import fields

from esper.growing.budget import Budget
from esper.growing.folder import GrowInfo


def settings_of(info: GrowInfo) -> list[tuple[str, str]]:
    """(name, value) of each setting."""
    rates = ", ".join(f"{rate:.3g}" for rate in info.rates)
    places = [f"{slot} {place}" for slot, place in zip(info.slots, info.places, strict=True)]
    full_run = f"{info.length:,} batches of {info.batch_size} ({info.epochs:g} epochs)"
    decay = f", weight decay {info.weight_decay:g}"
    clip = f", gradients clipped at {info.clip:g}" if info.clip else ", gradients not clipped"
    return [
        ("model", f"{info.model}, {info.host_params:,} parameters, {info.host_macs:,} MACs"),
        ("budget", budget_text(info.budget)),
        ("loss, metric", f"{info.loss}, {info.metric}"),
        ("full training run", full_run),
        ("optimizer", f"{info.optimizer}, learning rates {rates}{decay}{clip}"),
        ("precision", "bfloat16 by autocast" if info.amp else "float32"),
        ("places to grow", ", ".join(places) or "none"),
        ("other widths", ", ".join(info.variants[1:]) or "none"),
        ("blueprints", ", ".join(info.blueprints) or "all that fit"),
        ("seed", str(info.seed)),
        ("device", info.device),
        ("created", f"{info.created} UTC"),
        ("versions", ", ".join(f"{name} {version}" for name, version in info.versions)),
    ]


def budget_text(budget: Budget) -> str:
    """Limits in words.

    >>> budget_text(Budget(params=50_000, minutes=10))
    'params 50,000, minutes 10'
    """
    given = [(field.name, getattr(budget, field.name)) for field in fields(budget)]
    limits = [
        f"{name.replace('_', ' ')} {_amount(value)}" for name, value in given if value is not None
    ]
    return ", ".join(limits) or "default"


def _amount(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else f"{value:,g}"
