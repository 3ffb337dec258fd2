"""The leaderboard: policies played in the records, on contexts they were not fitted on.

To enter: write a policy (`plan(obs)`, `stop(obs, step)`), and a function that makes it from a
benchmark and the numbers of its training contexts:

    rows = leaderboard(bench, {**BUILT_IN, "mine": lambda bench, contexts: Mine(bench, contexts)})

Shape letters: N episodes, C contexts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np

from esper.leyline.arrays import Doubles, Ints
from esper.leyline.errors import EsperError
from esper.leyline.statistics import Estimate, mean_estimate
from esper_lab.audit.bench import Bench, EpisodeOutcomes, Observation, SimulatedEpisodes
from esper_lab.audit.cases import Options
from esper_lab.audit.policies import (
    BestChoice,
    Oracle,
    Patience,
    PlanAndStop,
    PlanOnly,
    Policy,
    RandomPlan,
    SeesAll,
    fit_planner,
)
from esper_lab.audit.prediction import PredictionSettings, PredictThenAct
from esper_lab.audit.regrets import STOP, context_folds

PolicyMaker = Callable[[Bench, Ints], Policy]
"""Makes a policy from a benchmark and the training contexts, by their numbers in the audit."""
OnPolicy = Callable[[str, int, int], None]
"""Called before a policy is made, with its name, how many were, and how many will be."""
FOLDS: Final = 5
"""Parts of the contexts, each judged by policies that were made from the others."""


def _planned(name: str) -> PolicyMaker:
    return lambda bench, contexts: PlanOnly(fit_planner(name, bench, contexts))


def _planned_with_stop(name: str) -> PolicyMaker:
    return lambda bench, contexts: PlanAndStop(
        fit_planner(name, bench, contexts, stops=True), Options.with_stop(bench.info)
    )


BUILT_IN: Final[Mapping[str, PolicyMaker]] = {
    "bare": _planned("bare"),
    "random": lambda _, __: RandomPlan(),
    "one": _planned("one"),
    "table": _planned("table"),
    "regression": _planned("regression"),
    f"table{STOP}": _planned_with_stop("table"),
    f"regression{STOP}": _planned_with_stop("regression"),
    "patience": lambda bench, contexts: Patience(
        fit_planner("regression", bench, contexts), bench.info.constants.c_f
    ),
    "predict": lambda bench, contexts: PredictThenAct(bench, contexts),
    "predict, optimistic": lambda bench, contexts: PredictThenAct(
        bench, contexts, PredictionSettings(optimism=1.0)
    ),
    "best": lambda bench, _: BestChoice(bench, Options.trained_to_the_end(bench.info)),
    f"best{STOP}": lambda bench, _: BestChoice(bench, Options.with_stop(bench.info)),
    "oracle": lambda _, __: Oracle(),
}
"""`table_stop` and `regression_stop` choose before training when it stops; `patience` plans by
regression. `best`, `best_stop` and `oracle` see what no contender sees."""
_ONLY_IN_RECORDS: Final = ("random", "best", f"best{STOP}", "oracle")
LIVE_BENCH: Final = tuple(name for name in BUILT_IN if name not in _ONLY_IN_RECORDS)
"""Those that can be trained live. Draws of `random` would depend on which episodes were run before;
the others look into the records."""


@dataclass(frozen=True, slots=True)
class Row:
    """A policy on the leaderboard."""

    name: str
    score: Estimate
    """Mean score, with its interval over contexts."""
    above_one: Estimate
    """Score minus that of `one`, paired by context."""
    gap_closed: float
    """(policy - one) / (oracle - one)."""
    compute: float
    """Mean, in training runs of the host."""
    params: float
    stopped: float
    """Share of episodes that stopped before the end."""
    n: int
    """Episodes."""
    sees_all: bool
    """A yardstick that looks into the records."""


def run_policy(
    bench: Bench,
    policy: Policy,
    episodes: int,
    seed: int,
    contexts: Sequence[int] | Ints | None = None,
) -> EpisodeOutcomes:
    """Play episodes with a policy; equal seeds give equal episodes."""
    played = SimulatedEpisodes(bench, episodes, contexts)
    return play(played, policy, played.reset(seed))


def play(played: SimulatedEpisodes, policy: Policy, obs: Observation) -> EpisodeOutcomes:
    """Play episodes that were reset, to their end; `obs`: what `reset` returned."""
    if isinstance(policy, SeesAll):
        policy.reveal(played)
    obs = played.plan(policy.plan(obs))
    step = 1
    while not played.done:
        obs = played.step(policy.stop(obs, step))
        step += 1
    return played.outcome()


def leaderboard(
    bench: Bench,
    makers: Mapping[str, PolicyMaker] = BUILT_IN,
    episodes_per_context: int = 32,
    folds: int = FOLDS,
    seed: int = 0,
    on_policy: OnPolicy | None = None,
) -> tuple[Row, ...]:
    """Play all policies in the same episodes, best first.

    Contexts are split into folds; a policy is made from the others' contexts and played in these,
    so every context is judged and none is among those a policy was made from.
    """
    missing = {"one", "oracle"} - set(makers)
    if missing:
        raise EsperError(f"leaderboard without {sorted(missing)}: the gap closed needs both")
    played: dict[str, list[EpisodeOutcomes]] = {name: [] for name in makers}
    sees_all = dict.fromkeys(makers, False)
    for name, policy, judged_C in fitted_policies(bench, makers, folds, seed, on_policy):
        sees_all[name] = isinstance(policy, SeesAll)
        count = episodes_per_context * len(judged_C)
        with naming_policy(name):
            played[name].append(run_policy(bench, policy, count, seed, judged_C))
    score_C = {name: _by_context(bench, outcomes) for name, outcomes in played.items()}
    rows = (
        _row(name, score_C, outcomes, bench.info.steps, sees_all[name])
        for name, outcomes in played.items()
    )
    return tuple(sorted(rows, key=lambda row: -row.score.value))


def fitted_policies(
    bench: Bench,
    makers: Mapping[str, PolicyMaker],
    folds: int = FOLDS,
    seed: int = 0,
    on_policy: OnPolicy | None = None,
) -> Iterator[tuple[str, Policy, Ints]]:
    """Every policy once per fold: its name, the policy, and the contexts it may be judged in."""
    fold_C = context_folds(len(bench.context_C), folds, seed)
    numbers = np.unique(fold_C)
    for at, fold in enumerate(numbers):
        train_C, judged_C = bench.context_C[fold_C != fold], bench.context_C[fold_C == fold]
        for place, (name, make) in enumerate(makers.items()):
            if on_policy is not None:
                on_policy(name, at * len(makers) + place, len(numbers) * len(makers))
            with naming_policy(name):
                policy = make(bench, train_C)
            yield name, policy, judged_C


@contextmanager
def naming_policy(name: str) -> Iterator[None]:
    """Begin errors with the policy's name."""
    try:
        yield
    except EsperError as error:
        raise EsperError(f"policy {name}: {error}") from error


def _by_context(bench: Bench, outcomes: Sequence[EpisodeOutcomes]) -> Doubles:
    """Mean score `[C]` of each context."""
    context_N = np.concatenate([found.context_N for found in outcomes])
    score_N = np.concatenate([found.score_N for found in outcomes])
    place_N = np.searchsorted(bench.context_C, context_N)
    return np.asarray(np.bincount(place_N, score_N) / np.bincount(place_N))


def _row(
    name: str,
    score_C: Mapping[str, Doubles],
    outcomes: Sequence[EpisodeOutcomes],
    steps: int,
    sees_all: bool,
) -> Row:
    gained_C = score_C[name] - score_C["one"]
    gap = float((score_C["oracle"] - score_C["one"]).mean())
    steps_N = np.concatenate([found.steps_N for found in outcomes])
    return Row(
        name=name,
        score=mean_estimate(score_C[name]),
        above_one=mean_estimate(gained_C),
        gap_closed=float(gained_C.mean()) / gap if gap > 0 else math.nan,
        compute=float(np.concatenate([found.compute_N for found in outcomes]).mean()),
        params=float(np.concatenate([found.params_N for found in outcomes]).mean()),
        stopped=float((steps_N < steps).mean()),
        n=len(steps_N),
        sees_all=sees_all,
    )
