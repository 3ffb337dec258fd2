"""Rules of restarting with a threshold for each context, as policies for `esper compare`.

    esper audit digits_tiny8 --topologies 1 --hosts 8 --contexts 48 --seed 45 \\
        --preset lab/contexts/curves.json --out out/curves
    ESPER_CURVES=out/curves esper compare wait "rule=lab/scripts/threshold_rule.py:Below50At8" \\
        --task digits_tiny8 --contexts lab/contexts/restarts_long.json

A member whose accuracy on `val_control` after some steps is below a quantile of what hosts reach by
then in such a context begins anew, at most three times. The quantile is a linear function of what
is seen of a context before training, fitted to the curves of an audit: an own seed, and contexts
(curves.json) drawn as those of the comparison are, with the actions that an audit has.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

import esper
from esper.leyline.actions import ActionSpec
from esper.leyline.arrays import Doubles
from esper.leyline.errors import EsperError
from esper.leyline.masks import ActionMasks
from esper.leyline.signals import TrainingSignals
from esper_lab.audit.records import read_audit

CURVES: Final = "ESPER_CURVES"
RESTARTS: Final = 3


@lru_cache
def fitted(folder: Path, step: int, quantile: float) -> Any:
    """A model of the quantile of accuracies after `step` steps, by `features` of contexts."""
    from sklearn.linear_model import QuantileRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    audit = read_audit(folder)
    drawn, curves_CHKT = audit.contexts, audit.records.control_CHKT
    accuracy_CN = curves_CHKT[..., step].reshape(len(curves_CHKT), -1)
    known_C = np.isfinite(accuracy_CN).all(axis=1)
    seen_CF = features(drawn.budget_C, drawn.groups_C, drawn.samples_C, drawn.learning_rate_C)
    rows_NF = seen_CF[known_C].repeat(accuracy_CN.shape[1], axis=0)
    model = make_pipeline(StandardScaler(), QuantileRegressor(quantile=quantile, alpha=0.0))
    return model.fit(rows_NF, accuracy_CN[known_C].ravel())


def features(*seen: npt.ArrayLike) -> Doubles:
    """`[N, F]`: budget, classes, samples and learning rate, on the scales they act on."""
    return np.log2(np.stack(np.broadcast_arrays(*seen), axis=1).astype(np.float64))


class _Below(esper.Policy):
    """The rule; subclasses say when it looks, and at which quantile."""

    step: ClassVar[int]
    quantile: ClassVar[float]

    def act(self, signals: TrainingSignals, masks: ActionMasks) -> ActionSpec:
        """RESTART for members that are due and below the threshold of their context."""
        if CURVES not in os.environ:
            raise EsperError(f"{CURVES} is not set: give the folder of an audit with curves")
        context = signals.context
        rate_E = context.learning_rate_E
        seen_EF = features(context.budget, context.groups, context.train_samples, rate_E)
        threshold_E = fitted(Path(os.environ[CURVES]), self.step, self.quantile).predict(seen_EF)
        due_E = signals.step + 1 - context.began_E == self.step
        bad_E = ~(signals.val_accuracy_E >= threshold_E)  # NaN is bad
        return self.first(self.restart(due_E & bad_E & (context.restarts_E < RESTARTS)))


class Below25At4(_Below):
    step, quantile = 4, 0.25


class Below50At4(_Below):
    step, quantile = 4, 0.5


class Below25At8(_Below):
    step, quantile = 8, 0.25


class Below50At8(_Below):
    step, quantile = 8, 0.5
