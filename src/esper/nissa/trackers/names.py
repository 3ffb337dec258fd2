"""Which trackers there are, and what each needs to be installed. Imports none of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from types import MappingProxyType
from typing import Final, Literal, cast

from esper.leyline.errors import EsperError, install_hint, shown, unknown_name

TrackerName = Literal["tensorboard", "wandb", "mlflow"]


@dataclass(frozen=True, slots=True)
class _Library:
    """What a tracker is made of; the extra that installs it has the tracker's name."""

    modules: tuple[str, ...]
    """Modules that must be installed."""
    home: str
    """Module of ours that has the tracker, as `open_tracker`."""


LIBRARIES: Final[Mapping[TrackerName, _Library]] = MappingProxyType(
    {
        "tensorboard": _Library(("tensorboard",), "esper.nissa.trackers.tensorboard_files"),
        "wandb": _Library(("wandb",), "esper.nissa.trackers.wandb_run"),
        # MLflow keeps local runs in a SQLite database, and brings what that needs only as extra.
        "mlflow": _Library(("mlflow", "sqlalchemy", "alembic"), "esper.nissa.trackers.mlflow_run"),
    }
)
"""All trackers."""


def require_trackers(names: Sequence[str], where: str = "track") -> tuple[TrackerName, ...]:
    """Raise unless all of these are trackers that are installed; returns each once.

    `where`: what the user wrote the names in.

    >>> require_trackers([])
    ()
    """
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise EsperError(f"{where}={shown(names)}: give a list of names, as in ['tensorboard']")
    for name in names:
        if name not in LIBRARIES:
            raise unknown_name("tracker", name, LIBRARIES, f"in {where}")
    known = cast("Sequence[TrackerName]", names)
    for name in known:
        missing = [module for module in LIBRARIES[name].modules if find_spec(module) is None]
        if missing:
            raise EsperError(
                f"{where} {name}: {' and '.join(missing)} not installed; {install_hint(name)}"
            )
    return tuple(dict.fromkeys(known))
