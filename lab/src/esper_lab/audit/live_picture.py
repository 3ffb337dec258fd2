"""Live policies in the picture of an audit (`frontier_picture`).

Cases of the tables have drawn prices and caps; the picture has three prices and no caps. So live
policies are also trained at these prices in every context, on the first hosts only.

Marks of the picture are means over all hosts. How the first hosts differ from all is known from the
records, so it is taken out: a live mark is the regression's mark, plus what live and regression
differ by in the same contexts and on the same hosts. A policy that plants and trains as the
regression does has the regression's mark.

Shape letters: N episodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from esper.leyline.codec import Json
from esper.leyline.errors import EsperError
from esper_lab.audit.bench import Bench
from esper_lab.audit.cases import TermsSpec
from esper_lab.audit.leaderboard import BUILT_IN
from esper_lab.audit.live_rows import LiveKind, LiveRows, live_files, read_live
from esper_lab.audit.picks import (
    SHOWN,
    Pick,
    accuracy_on_test,
    mean_pick,
    play_at_prices,
    shown_prices,
)
from esper_lab.audit.records import identity_of

PICTURE_HOSTS: Final = 2
"""Hosts that live policies are trained on for the picture."""
REFERENCE: Final = "regression"
"""Policy whose records show how the first hosts differ from all."""
CONTROLLER: Final = "controller"
"""Key of a controller's checksum in the settings of its episodes."""
LIVE_NOTES: Final = {
    "closed_loop": "regression; prunes and stops",
    "closed_loop_generous": "plants too much; prunes and stops",
    "closed_loop_fill": "fills all slots; prunes and stops",
    "closed_loop_prune": "regression; prunes",
    "closed_loop_stop": "regression; stops",
}
"""What live policies are, in a few words."""


@dataclass(frozen=True, slots=True)
class LivePicks:
    """What live policies end up with at the prices of the picture."""

    picks: tuple[Pick, ...]
    left_out: tuple[str, ...]
    """Why policies are missing, in one line each."""


def picture_settings(terms: TermsSpec, hosts: int) -> dict[str, Json]:
    """Settings that episodes of the picture depend on."""
    return {"prices": list(shown_prices(terms.price)), "hosts": hosts}


def collect_live_picks(folder: Path, bench: Bench, seed: int = 0) -> LivePicks:
    """Picks of the live policies in the folder of an audit; `seed`: that of `collect_picks`."""
    found, left_out = [], []
    for path in live_files(folder, LiveKind.PICTURE):
        try:
            found.append(_read(path, bench))
        except EsperError as error:
            left_out.append(str(error))
    shift = {hosts: _host_shift(bench, hosts, seed) for hosts in {it.hosts for it in found}}
    picks = [pick for it in found for pick in _picks(it, bench, shift[it.hosts])]
    return LivePicks(tuple(picks), tuple(left_out))


@dataclass(frozen=True, slots=True, eq=False)
class _Shown:
    """Episodes of a policy for the picture."""

    rows: LiveRows
    hosts: int
    controller: bool


def _read(path: Path, bench: Bench) -> _Shown:
    rows, saved = read_live(path, identity_of(bench.info))
    hosts, own = saved.get("hosts"), saved.get("settings")
    if not isinstance(hosts, int) or not 0 < hosts <= bench.hosts:
        raise EsperError(f"{path} is damaged (no hosts): remove that file to run it again")
    prices = shown_prices(bench.terms.price)
    if saved.get("prices") != list(prices):
        raise EsperError(f"{path} was run at other prices than the picture's")
    whole = len(bench.context_C) * len(prices) * hosts
    there = int(np.isin(rows.context_N, bench.context_C).sum())
    if saved.get("contexts") != bench.context_C.tolist() or there != whole:
        raise EsperError(f"{path} does not have all contexts: run it to its end")
    return _Shown(rows, hosts, isinstance(own, dict) and CONTROLLER in own)


def _picks(it: _Shown, bench: Bench, shift: Sequence[float]) -> list[Pick]:
    """Picks of a policy, one for each price."""
    rows, name = it.rows, it.rows.policy
    note = "learned controller" if it.controller else LIVE_NOTES.get(name, "trained live")
    label = f"{name} (live)" if name in SHOWN else name
    picks = []
    for place, price in enumerate(shown_prices(bench.terms.price)):
        mine = rows.where(rows.draw_N // it.hosts == place)
        figures = mine.params_N, mine.test_N + shift[place], mine.compute_N
        picks.append(mean_pick(label, price, *figures, note=note))
    return picks


def _host_shift(bench: Bench, hosts: int, seed: int) -> list[float]:
    """Test accuracy of the reference on all hosts minus that on the first, at each price."""
    played = play_at_prices(bench, {REFERENCE: BUILT_IN[REFERENCE]}, seed=seed)
    shift = []
    for price in shown_prices(bench.terms.price):
        outcomes = played[REFERENCE, price]
        test_N = np.concatenate([accuracy_on_test(bench, found) for found in outcomes])
        host_N = np.concatenate([found.host_N for found in outcomes])
        shift.append(float(test_N.mean() - test_N[host_N < hosts].mean()))
    return shift
