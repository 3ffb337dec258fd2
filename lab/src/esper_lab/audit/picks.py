"""What policies and searches pick at a low, a middle and a high price: size, accuracy, compute.

Every context is played on every host, without caps, at three prices. So all picks, and all
topologies, are means over the same contexts and hosts and can be drawn into one picture.

Shape letters: N episodes, C contexts, K topologies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from esper.leyline.arrays import ArrayStruct, Doubles, Floats, Ints
from esper.leyline.context import Range
from esper_lab.audit.bench import Bench, EpisodeOutcomes, SimulatedEpisodes
from esper_lab.audit.cases import TermsSpec, final_means
from esper_lab.audit.leaderboard import (
    BUILT_IN,
    OnPolicy,
    PolicyMaker,
    fitted_policies,
    naming_policy,
    play,
)
from esper_lab.audit.search_lookup import asha

QUANTILES: Final = (1 / 6, 1 / 2, 5 / 6)
"""Of the distribution of prices: low, middle, high."""
SHOWN: Final = ("table", "regression", "patience", "predict", "best")
"""Built-in policies whose picks are shown."""
SEARCH: Final = "asha:"
"""How names of searches begin; the number of topologies follows."""
MAX_SEARCH_RUNS: Final = 16
"""Topologies of the search that is shown, if there are as many."""


@dataclass(frozen=True, slots=True)
class Pick:
    """What a way of choosing picks, on average."""

    name: str
    params: float
    """Geometric mean."""
    test: float
    """Test accuracy."""
    compute: float
    """All that was spent, in training runs of the host."""
    price: float | None = None
    """Price factor it was given; None: it does not depend on one."""
    note: str = ""
    """What it is, in a few words; empty: as the picture knows it."""


@dataclass(frozen=True, slots=True, eq=False)
class Picks(ArrayStruct):
    """Means over contexts and hosts of every topology, and what was picked at each price."""

    task: str
    contexts: int
    hosts: int
    params_K: Ints
    test_K: Doubles
    """NaN for a topology that is missing in a context."""
    prices: tuple[float, ...]
    doubling: float
    """Accuracy that twice the parameters and MACs must gain to be worth it, at price 1."""
    picks: tuple[Pick, ...]


def shown_policies(bench: Bench) -> dict[str, PolicyMaker]:
    """The built-in policies of the picture; no curve can be read if there is one step only."""
    return {name: BUILT_IN[name] for name in SHOWN if name != "predict" or bench.info.steps > 1}


def shown_prices(prices: Range) -> tuple[float, ...]:
    """A low, a middle and a high price; one if there is only one.

    >>> [round(price, 2) for price in shown_prices(Range(0.1, 4.0))]
    [0.18, 0.63, 2.16]
    """
    return tuple(dict.fromkeys(prices.log_uniform(QUANTILES).tolist()))


def collect_picks(
    bench: Bench,
    makers: Mapping[str, PolicyMaker] | None = None,
    seed: int = 0,
    on_policy: OnPolicy | None = None,
) -> Picks:
    """Play policies (None: `shown_policies`) and a search at each price."""
    makers = shown_policies(bench) if makers is None else makers
    played = play_at_prices(bench, makers, seed, on_policy)
    picks = [_pick(bench, name, price, played[name, price]) for name, price in played]
    picks += [_search(priced, price, seed) for price, priced in _at_prices(bench).items()]
    constants = bench.info.constants
    finals = final_means(bench.audit, np.arange(bench.hosts)).take(bench.context_C)
    return Picks(
        task=bench.info.task,
        contexts=len(bench.context_C),
        hosts=bench.hosts,
        params_K=np.array(bench.info.params),
        test_K=finals.test_CJ.mean(axis=0),
        prices=shown_prices(bench.terms.price),
        doubling=constants.c_p + constants.c_m,
        picks=tuple(picks),
    )


def play_at_prices(
    bench: Bench,
    makers: Mapping[str, PolicyMaker],
    seed: int = 0,
    on_policy: OnPolicy | None = None,
) -> dict[tuple[str, float], list[EpisodeOutcomes]]:
    """Play policies in every context on every host, by name and price; one outcome per fold."""
    at_price = _at_prices(bench)
    played: dict[tuple[str, float], list[EpisodeOutcomes]] = {}
    for name, policy, judged_C in fitted_policies(bench, makers, seed=seed, on_policy=on_policy):
        for price, priced in at_price.items():
            context_N, host_N = _everywhere(judged_C, bench.hosts)
            episodes = SimulatedEpisodes(priced, len(context_N), judged_C)
            obs = episodes.reset_to(context_N, host_N, np.zeros_like(host_N), seed)
            with naming_policy(name):
                played.setdefault((name, price), []).append(play(episodes, policy, obs))
    return played


def _at_prices(bench: Bench) -> dict[float, Bench]:
    """The bench at each price of the picture, without caps."""
    prices = shown_prices(bench.terms.price)
    return {p: Bench(bench.audit, TermsSpec(Range(p, p), capped=0.0)) for p in prices}


def _everywhere(contexts: Ints, hosts: int) -> tuple[Ints, Ints]:
    """Context and host `[N]` of every pair."""
    return np.repeat(contexts, hosts), np.tile(np.arange(hosts), len(contexts))


def _pick(bench: Bench, name: str, price: float, played: list[EpisodeOutcomes]) -> Pick:
    """Means of episodes."""
    params_N = np.concatenate([found.params_N for found in played])
    test_N = np.concatenate([accuracy_on_test(bench, found) for found in played])
    compute_N = np.concatenate([found.compute_N for found in played])
    return mean_pick(name, price, params_N, test_N, compute_N)


def accuracy_on_test(bench: Bench, found: EpisodeOutcomes) -> Floats:
    """Test accuracy of episodes.

    It is recorded at the end only. Of a run that stops before, it is taken to be lower by as much
    as the accuracy on `val_score` is.
    """
    records, at = bench.audit.records, (found.context_N, found.host_N, found.topology_N)
    accuracy_NT = records.accuracy_CHKT[at]
    lost_N = accuracy_NT[:, -1] - accuracy_NT[np.arange(len(at[0])), found.steps_N]
    return np.asarray(records.test_CHK[at] - lost_N)


def _search(priced: Bench, price: float, seed: int) -> Pick:
    """Successive halving in every context on every host."""
    size = min(MAX_SEARCH_RUNS, len(priced.topologies))
    context_N, host_N = _everywhere(priced.context_C, priced.hosts)
    episodes = SimulatedEpisodes(priced, len(context_N))
    episodes.reset_to(context_N, host_N, np.zeros_like(host_N), seed)
    at = context_N, host_N, np.zeros_like(host_N), episodes.observed
    found = asha(priced.audit, *at, size, seed)
    params_N = np.array(priced.info.params)[found.topology_N]
    return mean_pick(f"{SEARCH}{size}", price, params_N, found.test_N, found.compute_N)


def mean_pick(
    name: str,
    price: float,
    params_N: Ints,
    test_N: Doubles | Floats,
    compute_N: Doubles,
    note: str = "",
) -> Pick:
    """The pick of episodes: geometric mean of parameters, means of the rest."""
    params = float(np.exp(np.log(params_N).mean()))
    return Pick(name, params, float(test_N.mean()), float(compute_N.mean()), price, note)
