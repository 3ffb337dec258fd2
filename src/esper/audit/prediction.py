"""Predict, then act: a model of the final score, with uncertainty, chooses the plan and STOP.

An ensemble, each member fitted on contexts drawn again with replacement: its spread says how much
the contexts at hand leave open. The plan is the topology with the highest predicted score (plus
`optimism` standard deviations). STOP comes where the accuracy still to be gained is predicted to
be worth less than the compute left.

Shape letters: N episodes, K topologies, T observations so far, R rows of a training table,
F features, M members of the ensemble, C contexts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from esper.audit.bench import Bench, Observation
from esper.audit.cases import Observed, best_available, draw_cases, expected_compute
from esper.audit.planners import known_rent
from esper.audit.policies import training_figures
from esper.audit.records import AuditInfo
from esper.audit.regression import TopologyRegression, boosted_trees, context_features
from esper.leyline.arrays import Bools, Doubles, Floats, Ints
from esper.leyline.errors import EsperError
from esper.leyline.streams import stream_seed

WINDOW: Final = 3
"""Steps over which slopes are measured."""


@dataclass(frozen=True, slots=True)
class PredictionSettings:
    """How a predictor learns and acts."""

    members: int = 3
    """Size of the ensemble."""
    optimism: float = 0.0
    """Standard deviations added to predicted scores, for the plan and for STOP."""
    rows: int = 20_000
    """Most points of curves that a member of the ensemble is fitted on."""
    seed: int = 0


class PredictThenAct:
    """Policy of the benchmark, fitted on training contexts."""

    def __init__(
        self, bench: Bench, contexts: Ints, settings: PredictionSettings | None = None
    ) -> None:
        self.info, self.settings = bench.info, settings or PredictionSettings()
        if self.info.steps < 2:
            raise EsperError("predict-then-act on episodes of 1 step: there is no curve to read")
        fit = replace(self.settings, optimism=0.0)  # optimism changes what is done, not the models
        key = ("predict then act", tuple(contexts.tolist()), fit)
        self._plans, self._gains = bench.fit_once(key, lambda: _fit(bench, contexts, fit))

    def predicted_scores(self, context: Observed) -> tuple[Doubles, Doubles]:
        """Mean and standard deviation `[N, K]` of final scores, up to a constant of the case."""
        features_NF = context_features(context)
        accuracy_MNK = np.stack([model.predict(features_NF) for model in self._plans])
        mean_NK = accuracy_MNK.mean(axis=0) - known_rent(self.info, context)
        return mean_NK, accuracy_MNK.std(axis=0)

    def predicted_gain(self, obs: Observation, step: int) -> tuple[Doubles, Doubles]:
        """Mean and standard deviation `[N]` of the accuracy still to be gained until the end."""
        curves = _Curves(obs.control_NT, obs.loss_NT, obs.train_loss_NT, obs.compute_NT)
        rows_NF = _curve_features(self.info, obs.context, obs.topology_N, curves, step)
        gain_MN = np.stack([model.predict(rows_NF) for model in self._gains])
        return gain_MN.mean(axis=0), gain_MN.std(axis=0)

    def plan(self, obs: Observation) -> Ints:
        """The available topology with the highest predicted score."""
        mean_NK, sd_NK = self.predicted_scores(obs.context)
        return best_available(mean_NK + self.settings.optimism * sd_NK, obs.available_NK)

    def stop(self, obs: Observation, step: int) -> Bools:
        """`[N]`: what can still be gained is worth less than the compute it takes."""
        gain_N, sd_N = self.predicted_gain(obs, step)
        total_NK = expected_compute(self.info, obs.context.budget_N)
        left_N = total_NK[np.arange(len(gain_N)), obs.topology_N] - obs.compute_NT[:, -1]
        price_N = obs.context.price_N * self.info.constants.c_f
        return np.asarray(gain_N + self.settings.optimism * sd_N < price_N * left_N)


def _fit(
    bench: Bench, contexts: Ints, settings: PredictionSettings
) -> tuple[list[TopologyRegression], list[Any]]:
    """The ensemble: models of the plan, and of the gain to come."""
    observed, finals = training_figures(bench, contexts)
    generator = np.random.default_rng(stream_seed(settings.seed, "predict then act"))
    plans, gains = [], []
    for member in range(settings.members):
        drawn_C = generator.integers(len(contexts), size=len(contexts))
        plan = TopologyRegression(bench.info, seed=settings.seed + member)
        features_CF = context_features(observed.take(drawn_C))
        plans.append(plan.fit(features_CF, finals.accuracy_CJ[drawn_C]))
        rows_RF, gain_R = _curve_rows(bench, contexts[drawn_C], settings.rows, generator)
        gains.append(boosted_trees(member).fit(rows_RF, gain_R))
    return plans, gains


# ---- the learning curve as features -----------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Curves:
    """Curves so far, `[N, T]`."""

    control: Floats
    loss: Floats
    train_loss: Floats
    compute: Floats


def _curve_features(
    info: AuditInfo, context: Observed, topology_N: Ints, curves: _Curves, step: int
) -> Doubles:
    """`[N, F]`: context, topology, and value and slopes of the curves."""
    back = min(WINDOW, step)
    loss_N, control_N = curves.loss[:, -1], curves.control[:, -1]
    train_loss_N = curves.train_loss[:, -1]
    seeds_K = [sum(map(bool, names)) for names in info.topologies]
    columns = [
        np.log2(np.array(info.params) / info.host_params)[topology_N],
        np.array(info.cost)[topology_N],
        np.array(seeds_K)[topology_N],
        np.full(len(topology_N), step / info.steps),
        curves.compute[:, -1],
        control_N,
        control_N - curves.control[:, -2],
        (control_N - curves.control[:, -1 - back]) / back,
        loss_N,
        (loss_N - curves.loss[:, -1 - back]) / back,
        train_loss_N,
        loss_N - train_loss_N,
    ]
    return np.concatenate([context_features(context), np.stack(columns, axis=1)], axis=1)


def _curve_rows(
    bench: Bench, contexts: Ints, rows: int, generator: np.random.Generator
) -> tuple[Doubles, Doubles]:
    """Random points of recorded curves `[R, F]`, and the accuracy gained after them `[R]`.

    `contexts`: to draw from; one that is named twice is drawn twice as often.
    """
    records, info = bench.audit.records, bench.info
    features, gains = [], []
    for step in range(1, info.steps):
        count = min(-(-rows // (info.steps - 1)), len(contexts) * records.test_CHK[0].size)
        context_R = generator.choice(contexts, count)
        host_R = generator.integers(bench.hosts, size=count)
        topology_R = generator.integers(len(info.topologies), size=count)
        known_R = bench.recorded_CK[context_R, topology_R]
        at = context_R[known_R], host_R[known_R], topology_R[known_R]
        observed = draw_cases(bench.audit, at[0], np.zeros_like(at[0]), bench.terms, seed=0)
        seen = [
            getattr(records, f"{name}_CHKT")[at][:, : step + 1]
            for name in ("control", "loss", "train_loss", "compute")
        ]
        features.append(_curve_features(info, observed, at[2], _Curves(*seen), step))
        gains.append(records.accuracy_CHKT[(*at, -1)] - records.accuracy_CHKT[(*at, step)])
    return np.concatenate(features), np.concatenate(gains).astype(np.float64)
