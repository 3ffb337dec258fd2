"""Predict, then act: models of the score, with uncertainty, choose the plan and STOP.

Two ensembles, each member fitted on contexts drawn again with replacement: their spread says how
much the contexts at hand leave open. One predicts the accuracy of every topology at every step it
could be stopped after; the topology of the highest predicted score (plus `optimism` standard
deviations) is planted. The other predicts from the curve so far what can still be gained by
training on until the best later step, compute paid; STOP comes where that is not above `margin`.

What can be gained is learnt from mean curves over hosts, smoothed: the highest point of a single
run is mostly luck, so a model of it would always expect more.

Shape letters: N episodes, J options, T observations so far, R rows of a training table,
F features, M members of the ensemble, C contexts, H hosts, K topologies.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from esper.leyline.arrays import Bools, Doubles, Floats, Ints
from esper.leyline.errors import EsperError
from esper.leyline.streams import stream_seed
from esper_lab.audit.bench import Bench, Observation
from esper_lab.audit.cases import Observed, Options, best_available, draw_cases
from esper_lab.audit.planners import known_rent
from esper_lab.audit.policies import training_figures
from esper_lab.audit.records import AuditInfo
from esper_lab.audit.regression import TopologyRegression, boosted_trees, context_features

WINDOW: Final = 3
"""Steps that are averaged, of curves that are read and of those that are learnt from."""


@dataclass(frozen=True, slots=True)
class PredictionSettings:
    """How a predictor learns and acts."""

    members: int = 3
    """Size of the ensembles."""
    optimism: float = 0.0
    """Standard deviations added to predicted scores, for the plan and for STOP."""
    margin: float = 0.005
    """Predicted gain below which training stops. Chosen between 0 and 0.015 on records of
    clusters_tabular and digits_tabular, where 0.003 to 0.01 were level."""
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
        self._options = Options.with_stop(self.info)
        # These change what is done, not the models.
        fit = replace(self.settings, optimism=0.0, margin=0.0)
        key = ("predict then act", tuple(contexts.tolist()), fit)
        self._plans, self._gains = bench.fit_once(key, lambda: _fit(bench, contexts, fit))

    def predicted_scores(self, context: Observed) -> tuple[Doubles, Doubles]:
        """Mean and standard deviation `[N, J]` of scores, up to a constant of the case."""
        features_NF = context_features(context)
        accuracy_MNJ = np.stack([model.predict(features_NF) for model in self._plans])
        mean_NJ = accuracy_MNJ.mean(axis=0) - known_rent(self.info, context, self._options)
        return mean_NJ, accuracy_MNJ.std(axis=0)

    def predicted_gain(self, obs: Observation, step: int) -> tuple[Doubles, Doubles]:
        """Mean and standard deviation `[N]` of what training on can still gain."""
        curves = _Curves(obs.control_NT, obs.loss_NT, obs.train_loss_NT, obs.compute_NT)
        rows_NF = _curve_features(self.info, obs.context, obs.topology_N, curves, step)
        gain_MN = np.stack([model.predict(rows_NF) for model in self._gains])
        return gain_MN.mean(axis=0), gain_MN.std(axis=0)

    def plan(self, obs: Observation) -> Ints:
        """The available topology with the highest predicted score at any step."""
        mean_NJ, sd_NJ = self.predicted_scores(obs.context)
        available_NJ = obs.available_NK[:, self._options.topology_J]
        option_N = best_available(mean_NJ + self.settings.optimism * sd_NJ, available_NJ)
        return np.asarray(self._options.topology_J[option_N])

    def stop(self, obs: Observation, step: int) -> Bools:
        """`[N]`: what can still be gained is not above the margin."""
        gain_N, sd_N = self.predicted_gain(obs, step)
        return np.asarray(gain_N + self.settings.optimism * sd_N <= self.settings.margin)


def _fit(
    bench: Bench, contexts: Ints, settings: PredictionSettings
) -> tuple[list[TopologyRegression], list[Any]]:
    """The ensembles: models of the plan, and of the gain to come."""
    options = Options.with_stop(bench.info)
    observed, finals = training_figures(bench, contexts, options)
    generator = np.random.default_rng(stream_seed(settings.seed, "predict then act"))
    plans, gains = [], []
    for member in range(settings.members):
        drawn_C = generator.integers(len(contexts), size=len(contexts))
        plan = TopologyRegression(bench.info, options, settings.seed + member)
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
    """`[N, F]`: context and price, topology, and how the curves stand against their best."""
    control_NT, loss_NT = curves.control[:, 1 : step + 1], curves.loss[:, 1 : step + 1]
    smooth_NT = _trailing_mean(control_NT)
    last_N, loss_N = control_NT[:, -1], loss_NT[:, -1]
    train_loss_N = curves.train_loss[:, step]
    columns = [
        np.log2(context.price_N),
        np.log2(np.array(info.params) / info.host_params)[topology_N],
        np.log2(np.array(info.cost))[topology_N],
        np.full(len(topology_N), step / info.steps),
        curves.compute[:, step],
        last_N,
        last_N - smooth_NT.max(axis=1),
        smooth_NT[:, -1] - smooth_NT.max(axis=1),
        (step - 1 - smooth_NT.argmax(axis=1)) / info.steps,
        smooth_NT[:, -1] - smooth_NT[:, max(0, step - 1 - WINDOW)],
        loss_N,
        loss_N - loss_NT.min(axis=1),
        loss_N - loss_NT[:, max(0, step - 1 - WINDOW)],
        train_loss_N,
        loss_N - train_loss_N,
    ]
    return np.concatenate([context_features(context), np.stack(columns, axis=1)], axis=1)


def _trailing_mean(values_NT: Floats) -> Doubles:
    """Mean of the last `WINDOW` values at each point, of fewer at the beginning."""
    sums_NT = np.cumsum(values_NT, axis=1, dtype=np.float64)
    sums_NT[:, WINDOW:] -= sums_NT[:, :-WINDOW].copy()
    return np.asarray(sums_NT / np.minimum(np.arange(values_NT.shape[1]) + 1, WINDOW))


def _curve_rows(
    bench: Bench, contexts: Ints, rows: int, generator: np.random.Generator
) -> tuple[Doubles, Doubles]:
    """Random points of recorded curves `[R, F]`, and what could be gained after them `[R]`.

    `contexts`: to draw from; one that is named twice is drawn twice as often.
    """
    records, info = bench.audit.records, bench.info
    mean_CKT, compute_CKT = _mean_curves(bench)
    features, gains = [], []
    for step in range(1, info.steps):
        count = min(-(-rows // (info.steps - 1)), len(contexts) * records.test_CHK[0].size)
        context_R = generator.choice(contexts, count)
        host_R = generator.integers(bench.hosts, size=count)
        topology_R = generator.integers(len(info.topologies), size=count)
        price_R = bench.terms.price.log_uniform(generator.random(count))
        known_R = bench.recorded_CK[context_R, topology_R]
        at, price_R = (context_R[known_R], host_R[known_R], topology_R[known_R]), price_R[known_R]
        observed = draw_cases(bench.audit, at[0], np.zeros_like(at[0]), bench.terms, seed=0)
        observed = replace(observed, price_N=price_R)
        seen = [
            getattr(records, f"{name}_CHKT")[at][:, : step + 1]
            for name in ("control", "loss", "train_loss", "compute")
        ]
        features.append(_curve_features(info, observed, at[2], _Curves(*seen), step))
        cost_RT = price_R[:, None] * info.constants.c_f * compute_CKT[at[0], at[2]]
        score_RT = mean_CKT[at[0], at[2]] - cost_RT
        gains.append(score_RT[:, step + 1 :].max(axis=1) - score_RT[:, step])
    return np.concatenate(features), np.concatenate(gains)


def _mean_curves(bench: Bench) -> tuple[Doubles, Doubles]:
    """Accuracy on `val_score`, smoothed, and compute `[C, K, T]`, means over hosts."""
    records, steps = bench.audit.records, bench.info.steps
    accuracy_CKT = records.accuracy_CHKT.astype(np.float64).mean(axis=1)
    reach = WINDOW // 2
    smooth = [
        accuracy_CKT[..., max(1, t - reach) : t + reach + 1].mean(axis=-1)
        for t in range(1, steps + 1)
    ]
    smooth_CKT = np.stack([accuracy_CKT[..., 0], *smooth], axis=-1)
    return smooth_CKT, records.compute_CHKT.astype(np.float64).mean(axis=1)
