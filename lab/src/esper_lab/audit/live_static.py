"""What a live policy ended with, planted from the start, in the same cases.

A policy that is not better than its own final topology has decided well, but did not have to decide
in training.

Shape letters: N cases, S slots.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import numpy as np

from esper.leyline.arrays import Ints
from esper.leyline.codec import Json
from esper.leyline.errors import EsperError
from esper.leyline.signals import NO_BLUEPRINT
from esper.tolaria.engine import VectorizedEngine
from esper_lab.audit.bench import Bench
from esper_lab.audit.closed_loop import ClosedLoop, ClosedLoopConfig
from esper_lab.audit.live_policies import UNMEASURED, LiveCases, LivePolicy
from esper_lab.audit.live_rows import LiveRows, live_path, read_live
from esper_lab.audit.records import identity_of

STATIC: Final = ", static"
"""How names of these policies end."""
_WAIT: Final = ClosedLoopConfig(prunes=False, stops=False)


class StaticMaker:
    """Makes the policy that plants what another ended with."""

    def __init__(self, folder: Path, bench: Bench, policy: str) -> None:
        """`folder`: of the audit, with finished episodes of the policy."""
        rows, saved = read_live(live_path(folder, policy), identity_of(bench.info))
        self._rows = rows
        self.settings: Json = {"static_of": saved.get("settings")}
        """What results depend on."""

    def __call__(self, bench: Bench, contexts: Ints) -> LivePolicy:
        """The policy; nothing is fitted."""
        return StaticFinal(bench, self._rows)


class StaticFinal:
    """Plants the final topology of each case, and trains it to the end."""

    limits = UNMEASURED

    def __init__(self, bench: Bench, rows: LiveRows) -> None:
        kinds = {name: kind for kind, name in enumerate(bench.info.blueprints)}
        self._kinds = {
            (int(context), int(draw)): [kinds.get(name, NO_BLUEPRINT) for name in final]
            for context, draw, final in zip(rows.context_N, rows.draw_N, rows.final, strict=True)
        }

    def client(self, cases: LiveCases, engine: VectorizedEngine) -> ClosedLoop:
        """A loop that plants and waits."""
        wanted = [self._kinds.get((cases.context, draw)) for draw in cases.draw_N.tolist()]
        if None in wanted:
            raise EsperError(
                f"static topologies of context {cases.context}: the policy has no episodes there "
                f"yet; run it first"
            )
        return ClosedLoop(np.array(wanted, dtype=np.int64), _WAIT)


def static_makers(folder: Path, bench: Bench, policies: Iterable[str]) -> dict[str, StaticMaker]:
    """Makers by name, for live policies that were run."""
    return {f"{name}{STATIC}": StaticMaker(folder, bench, name) for name in policies}
