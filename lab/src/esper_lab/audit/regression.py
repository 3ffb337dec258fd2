"""Regression of a topology's accuracy on everything that is observed before training.

The target is the accuracy above the context's mean over topologies: how hard a context is decides
nothing. Price and caps are left out because they do not change accuracy: the rent is known, so it
is subtracted afterwards, and caps are a mask. Two models are averaged: linear with products of
topology and context, which extrapolates from few contexts, and boosted trees.

Shape letters: N cases, C contexts, K topologies, J options (a topology, and when training stops),
F features of a context, G of a topology or an option, S slots, B blueprints.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from esper.leyline.arrays import Doubles, Ints
from esper.leyline.errors import EsperError
from esper.leyline.streams import stream_seed
from esper_lab.audit.cases import Observed, Options
from esper_lab.audit.records import AuditInfo

ALPHAS: Final = (1.0, 10.0, 100.0, 1000.0)
"""Ridge penalties to choose from, by cross-validation over contexts."""
INNER_FOLDS: Final = 4


def context_features(observed: Observed) -> Doubles:
    """`[N, F]`: budget, groups, samples and learning rate, on the scales they act on."""
    return np.stack(
        [
            np.log2(observed.budget_N),
            np.log2(observed.groups_N),
            np.log2(observed.samples_N),
            np.log2(observed.learning_rate_N),
        ],
        axis=1,
    ).astype(np.float64)


def topology_features(info: AuditInfo) -> Doubles:
    """`[K, G]`: sizes, cost, seeds of each blueprint, and which blueprint is in which slot."""
    params_K = np.log2(np.array(info.params) / info.host_params)
    macs_K = np.log2(np.array(info.macs) / max(1, info.host_macs))
    names_KS = np.array(info.topologies, dtype=object).reshape(len(info.topologies), -1)
    planted_KSB = np.stack([names_KS == name for name in info.blueprints], axis=2).astype(float)
    sizes = [params_K, macs_K, params_K**2, np.array(info.cost), planted_KSB.sum(axis=(1, 2))]
    slots_KG = planted_KSB.reshape(len(params_K), -1)
    return np.concatenate([np.stack(sizes, axis=1), planted_KSB.sum(axis=1), slots_KG], axis=1)


def option_features(info: AuditInfo, options: Options) -> Doubles:
    """`[J, G]`: those of the topology; with STOP also the share of the episode that is trained, on
    several scales, and times the topology's cost."""
    features_JG = topology_features(info)[options.topology_J]
    if (options.steps_J == info.steps).all():
        return features_JG
    share_J = options.steps_J / info.steps
    cost_J = np.array(info.cost)[options.topology_J]
    times = [share_J, share_J**2, np.log2(share_J), share_J * np.log2(cost_J)]
    return np.concatenate([features_JG, np.stack(times, axis=1)], axis=1)


class TopologyRegression:
    """Predicts accuracy of every option, up to a constant of the context."""

    def __init__(self, info: AuditInfo, options: Options | None = None, seed: int = 0) -> None:
        """`options`: None: topologies that are trained to the end."""
        self._option_JG = option_features(info, options or Options.trained_to_the_end(info))
        self._seed = stream_seed(seed, "topology regression") & 0x7FFFFFFF

    def fit(self, context_CF: Doubles, accuracy_CJ: Doubles) -> TopologyRegression:
        """Fit on contexts; accuracies that are NaN are left out."""
        if len(context_CF) < 1:
            raise EsperError("topology regression on no contexts: give one or more to train on")
        target_CJ = accuracy_CJ - np.nanmean(accuracy_CJ, axis=1, keepdims=True)
        known_R = np.isfinite(target_CJ).ravel()
        group_R = np.repeat(np.arange(len(context_CF)), target_CJ.shape[1])[known_R]
        target_R = target_CJ.ravel()[known_R]
        self._linear = _fit_linear(self._products(context_CF)[known_R], target_R, group_R)
        self._trees = boosted_trees(self._seed).fit(self._joined(context_CF)[known_R], target_R)
        return self

    def predict(self, context_NF: Doubles) -> Doubles:
        """`[N, J]`: accuracy relative to the mean over options."""
        # Cases share contexts, so each context is predicted once.
        unique_CF, inverse_N = np.unique(context_NF, axis=0, return_inverse=True)
        linear_R = self._linear.predict(self._products(unique_CF))
        trees_R = self._trees.predict(self._joined(unique_CF))
        found_CJ = ((linear_R + trees_R) / 2).reshape(len(unique_CF), -1)
        return np.asarray(found_CJ[inverse_N.ravel()])

    def _joined(self, context_CF: Doubles) -> Doubles:
        """Rows (context, option) with the features of both."""
        contexts, options = len(context_CF), len(self._option_JG)
        return np.concatenate(
            [
                np.repeat(context_CF, options, axis=0),
                np.tile(self._option_JG, (contexts, 1)),
            ],
            axis=1,
        )

    def _products(self, context_CF: Doubles) -> Doubles:
        """Rows (context, option) with each feature of the option alone and times each of the
        context's."""
        factor_CF = np.concatenate([np.ones((len(context_CF), 1)), context_CF], axis=1)
        rows = np.einsum("cf,jg->cjfg", factor_CF, self._option_JG)
        return np.asarray(rows.reshape(-1, rows.shape[2] * rows.shape[3]))


def boosted_trees(seed: int) -> Any:
    """Small trees: a leaf must not learn one context by heart."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    return HistGradientBoostingRegressor(
        learning_rate=0.08,
        max_iter=120,
        max_leaf_nodes=15,
        max_features=0.5,
        early_stopping=False,
        random_state=seed,
    )


def _fit_linear(rows_RG: Doubles, target_R: Doubles, group_R: Ints) -> Any:
    """Ridge regression whose penalty is chosen by cross-validation over groups of rows."""
    from sklearn.linear_model import Ridge, RidgeCV
    from sklearn.model_selection import GroupKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    folds = min(INNER_FOLDS, len(np.unique(group_R)))
    if folds < 2:
        return make_pipeline(StandardScaler(), Ridge(ALPHAS[-1])).fit(rows_RG, target_R)
    splits = list(GroupKFold(folds).split(rows_RG, target_R, group_R))
    return make_pipeline(StandardScaler(), RidgeCV(ALPHAS, cv=splits)).fit(rows_RG, target_R)
