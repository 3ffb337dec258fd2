"""Whether the database of a sweep can be used; damage is one line, before Optuna opens it.

Optuna would make missing tables anew, and so lose their trials in silence.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

from esper.leyline.errors import EsperError, shorten

LOCK_SECONDS: Final = 2.0
"""How long to wait for another program that writes."""
TABLES: Final = frozenset(
    {
        "studies",
        "study_directions",
        "trials",
        "trial_intermediate_values",
        "trial_params",
        "trial_user_attributes",
        "trial_values",
    }
)
"""Those of Optuna that hold what a sweep reads."""


def require_sound(path: Path) -> None:
    """Raise in one line if the database is empty, locked, damaged or not one of Optuna's."""
    if not path.exists():
        return
    with damage_is_one_line(path):
        if not path.stat().st_size:
            raise ValueError("it is empty")
        place = f"file:{quote(str(path.absolute()))}?mode=rw"
        with closing(sqlite3.connect(place, timeout=LOCK_SECONDS, uri=True)) as database:
            ((found,),) = database.execute("pragma integrity_check(1)").fetchall()
            if found != "ok":
                raise ValueError(found)
            query = "select name from sqlite_master where type = 'table'"
            missing = TABLES - {name for (name,) in database.execute(query)}
            if missing:
                raise ValueError(f"it has no table {min(missing)}")


@contextmanager
def damage_is_one_line(path: Path) -> Iterator[None]:
    """Turn what a database raises, through Optuna or not, into one line that names it."""
    try:
        yield
    except EsperError:
        raise
    except Exception as error:  # of sqlite3, SQLAlchemy and Optuna, by what is wrong
        reason = shorten(" ".join(str(error).partition("\n[")[0].split()), 160)
        if "locked" in reason:
            raise EsperError(
                f"{path} is locked by another program (optuna-dashboard?): close it and try again"
            ) from error
        raise EsperError(
            f"{path} is damaged ({reason}), its trials are lost: restore it from a copy, remove it "
            f"to search anew, or choose another --out"
        ) from error
