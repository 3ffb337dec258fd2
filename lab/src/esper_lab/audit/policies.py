"""Policies of the benchmark: a plan from what is observed before training, and when to stop.

Shape letters: N episodes, K topologies, T observations so far.
"""

from __future__ import annotations

from typing import Final, Protocol, runtime_checkable

import numpy as np

from esper.leyline.arrays import Bools, Ints
from esper.leyline.errors import unknown_name
from esper.leyline.streams import stream_seed
from esper_lab.audit.bench import Bench, Observation, SimulatedEpisodes
from esper_lab.audit.cases import (
    Finals,
    Observed,
    Options,
    best_available,
    draw_cases,
    final_means,
    host_halves,
)
from esper_lab.audit.planners import (
    BarePlanner,
    OnePlanner,
    Planner,
    RegressionPlanner,
    TablePlanner,
    mean_price,
)

WINDOW: Final = 3
"""Steps over which `patience` measures a slope."""

PLANNERS: Final = ("bare", "one", "table", "regression")


class Policy(Protocol):
    """Decides for all episodes at once."""

    def plan(self, obs: Observation) -> Ints:
        """Topology `[N]` to plant, one that is available."""
        ...

    def stop(self, obs: Observation, step: int) -> Bools:
        """`[N]`: stop after this many steps; ignored for those that have stopped."""
        ...


@runtime_checkable
class SeesAll(Protocol):
    """A policy that looks into the records of the episodes it plays: a yardstick, no contender."""

    def reveal(self, episodes: SimulatedEpisodes) -> None:
        """Called after `reset`, before the plan."""
        ...


def never(obs: Observation) -> Bools:
    """`[N]`: stop nobody."""
    return np.zeros(len(obs.topology_N), dtype=np.bool_)


class PlanOnly:
    """Plants the planner's best available topology and trains to the end."""

    def __init__(self, planner: Planner) -> None:
        self.planner = planner

    def plan(self, obs: Observation) -> Ints:
        """The best available topology."""
        return best_available(self.planner.rank(obs.context), obs.available_NK)

    def stop(self, obs: Observation, step: int) -> Bools:
        """Never."""
        return never(obs)


class PlanAndStop:
    """Chooses the topology, and after how many steps training stops, before it begins."""

    def __init__(self, planner: Planner, options: Options) -> None:
        """`planner`: ranks these options."""
        self.planner, self.options = planner, options

    def plan(self, obs: Observation) -> Ints:
        """The topology of the best available option."""
        return self.options.topology_J[self._choice(obs)]

    def stop(self, obs: Observation, step: int) -> Bools:
        """`[N]`: where the best available option stops after this step."""
        return np.asarray(self.options.steps_J[self._choice(obs)] == step)

    def _choice(self, obs: Observation) -> Ints:
        available_NJ = obs.available_NK[:, self.options.topology_J]
        return best_available(self.planner.rank(obs.context), available_NJ)


class RandomPlan:
    """Plants a random available topology."""

    def __init__(self, seed: int = 0) -> None:
        self._generator = np.random.default_rng(stream_seed(seed, "random plan"))

    def plan(self, obs: Observation) -> Ints:
        """Any available topology, all equally likely."""
        return best_available(self._generator.random(obs.available_NK.shape), obs.available_NK)

    def stop(self, obs: Observation, step: int) -> Bools:
        """Never."""
        return never(obs)


class Patience(PlanOnly):
    """Stops where accuracy on `val_control` rises less than the compute for it costs."""

    def __init__(self, planner: Planner, compute_price: float, window: int = WINDOW) -> None:
        """`compute_price`: of a training run of the host, at price factor 1."""
        super().__init__(planner)
        self.compute_price, self.window = compute_price, window

    def stop(self, obs: Observation, step: int) -> Bools:
        """`[N]`: the last steps were not worth their compute."""
        if step < self.window:
            return never(obs)
        gained_N = obs.control_NT[:, -1] - obs.control_NT[:, -1 - self.window]
        spent_N = obs.compute_NT[:, -1] - obs.compute_NT[:, -1 - self.window]
        return np.asarray(gained_N < obs.context.price_N * self.compute_price * spent_N)


class BestChoice:
    """Knows the best option of each context, from the half of the hosts it does not play on."""

    def __init__(self, bench: Bench, options: Options) -> None:
        self._options = options
        self._halves = host_halves(bench.hosts)
        # The ranking for hosts of a half is made on the other.
        self._finals = [final_means(bench.audit, half, options) for half in reversed(self._halves)]

    def reveal(self, episodes: SimulatedEpisodes) -> None:
        """Note the context and half of each episode."""
        self._context_N = episodes.context_N
        self._half_N = (episodes.host_N >= self._halves[1][0]).astype(np.int64)

    def plan(self, obs: Observation) -> Ints:
        """The topology of the option with the best mean score on the other hosts."""
        ranks = [finals.scores(self._context_N, obs.context.price_N) for finals in self._finals]
        rank_NJ = np.where(self._half_N[:, None] == 0, ranks[0], ranks[1])
        topology_J = self._options.topology_J
        self._option_N = best_available(rank_NJ, obs.available_NK[:, topology_J])
        return np.asarray(topology_J[self._option_N])

    def stop(self, obs: Observation, step: int) -> Bools:
        """`[N]`: at the step of the option."""
        return np.asarray(self._options.steps_J[self._option_N] == step)


class Oracle:
    """Sees the records: plants what will score best on this very host, and stops at the best step.

    Nobody can do that: part of it is noise that cannot be known before training.
    """

    def reveal(self, episodes: SimulatedEpisodes) -> None:
        """Find the best (topology, step) of each episode."""
        bench, steps = episodes.bench, episodes.bench.info.steps
        context_N1, host_N1 = episodes.context_N[:, None], episodes.host_N[:, None]
        price_N1 = episodes.observed.price_N[:, None]
        every_K = np.arange(episodes.available_NK.shape[1])[None]
        best_NK = np.full(episodes.available_NK.shape, -np.inf)
        row_NK = np.full(episodes.available_NK.shape, steps)
        for row in range(1, steps + 1):
            at = context_N1, host_N1, every_K
            score_NK = bench.scores(at, np.array(row), price_N1)
            better_NK = score_NK > best_NK
            best_NK[better_NK] = score_NK[better_NK]
            row_NK[better_NK] = row
        self._pick_N = best_available(best_NK, episodes.available_NK)
        self._row_N = row_NK[np.arange(len(row_NK)), self._pick_N]

    def plan(self, obs: Observation) -> Ints:
        """The topology whose best score is highest."""
        return self._pick_N

    def stop(self, obs: Observation, step: int) -> Bools:
        """`[N]`: at the step of the best score."""
        return np.asarray(self._row_N == step)


# ---- planners from a benchmark ----------------------------------------------------------------


def training_figures(
    bench: Bench, contexts: Ints, options: Options | None = None
) -> tuple[Observed, Finals]:
    """Observed part and final figures of training contexts, over all hosts."""
    observed = draw_cases(bench.audit, contexts, np.zeros_like(contexts), bench.terms, seed=0)
    return observed, final_means(bench.audit, np.arange(bench.hosts), options).take(contexts)


def fit_planner(
    name: str, bench: Bench, contexts: Ints, stops: bool = False, seed: int = 0
) -> Planner:
    """One of `PLANNERS`, learnt from training contexts; `stops`: of options with STOP."""
    if name not in PLANNERS:
        raise unknown_name("planner", name, PLANNERS)
    key = ("planner", name, stops, tuple(contexts.tolist()), seed)
    return bench.fit_once(key, lambda: _fit_planner(name, bench, contexts, stops, seed))


def _fit_planner(name: str, bench: Bench, contexts: Ints, stops: bool, seed: int) -> Planner:
    made = Options.with_stop if stops else Options.trained_to_the_end
    options = made(bench.info)
    observed, finals = training_figures(bench, contexts, options)
    if name == "bare":
        return BarePlanner(options)
    if name == "one":
        return OnePlanner(finals, mean_price(bench.terms.price))
    if name == "table":
        return TablePlanner(finals, bench.terms.price)
    return RegressionPlanner(bench.info, observed, finals, options, seed)
