"""Esper grows neural networks while they train.

    result = esper.grow(model, train=(x, y), budget=esper.Budget(params=50_000, minutes=10))

Importing this module imports nothing else, so that `--help` stays fast: `grow`, `Budget`,
`GrowResult`, `encoded_columns`, `EsperError` and `Policy` (for controllers of your own) are loaded
at first use.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esper.growing.api import grow as grow
    from esper.growing.budget import Budget as Budget
    from esper.growing.data.encoding import encoded_columns as encoded_columns
    from esper.growing.result import GrowResult as GrowResult
    from esper.leyline.errors import EsperError as EsperError
    from esper.tamiyo.policy import Policy as Policy

__version__ = "0.1.0"
"""The one place of the version: the build reads it from here."""

__all__ = [
    "Budget",
    "EsperError",
    "GrowResult",
    "Policy",
    "__version__",
    "encoded_columns",
    "grow",
]

_HOMES = {
    "grow": "esper.growing.api",
    "Budget": "esper.growing.budget",
    "GrowResult": "esper.growing.result",
    "encoded_columns": "esper.growing.data.encoding",
    "EsperError": "esper.leyline.errors",
    "Policy": "esper.tamiyo.policy",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'esper' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
