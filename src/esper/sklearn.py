"""`esper.grow` as scikit-learn estimators: a classifier and a regressor for tables.

    from esper.sklearn import GrowingClassifier

    classifier = GrowingClassifier(params=5_000, random_state=0).fit(X, y)
    classifier.predict_proba(X_new), classifier.model_, classifier.result_

Parts of the samples are held out to choose the network, which is then trained again on all of
them. `model_` takes the features as they are, or as `encoding_` encodes them: standardising them is
part of its graph.

Shape letters: N samples, D features, K outputs.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor, nn

from esper.growing.api import prepare_run, write_report
from esper.growing.budget import Budget
from esper.growing.data.arrays import check_columns
from esper.growing.data.encoding import Categorical, Encoding, learn_encoding
from esper.growing.data.parts import GrowPart, sample_keys
from esper.growing.data.tables import read_table
from esper.growing.folder import GrowFolder
from esper.growing.problem import Model
from esper.growing.progress import ProgressPrinter
from esper.growing.recipes import RATES, SMOOTHING
from esper.growing.result import GrowResult, NetworkRecord
from esper.growing.run import GrowRun
from esper.growing.runs import Table
from esper.growing.scaling import Scaling, calibrated, with_scaling
from esper.growing.settings import GrowSettings
from esper.growing.stored import read_script
from esper.leyline.arrays import Doubles, Ints
from esper.leyline.errors import EsperError, shown
from esper.tasks.splits import cut_samples

__all__ = ["GrowingClassifier", "GrowingRegressor"]

WIDTH: Final = 128
"""Units of the hidden layer of the default model, without a cap on parameters."""
WIDEST: Final = 512
"""Most units under a cap, which half of the widest network that fits decides."""
WIDTHS: Final = (0.25, 0.5, 2.0)
"""Other widths of the default model that are tried."""
TINY: Final = 64
"""Samples below which a search is as short as it can be: scores are mostly chance."""
TINY_RUNS: Final = 3.0
SEARCH_RUNS: Final = 2.0
"""Compute below which the model is trained alone, at one learning rate."""
HOST_RUNS: Final = 8.0
"""Compute of a search in training runs of the model."""
MAX_READY: Final = 0.75
"""Share of `minutes` that data and model may take before the first training run, at most."""
MAX_KEPT: Final = 0.15
"""Share of `minutes` that is kept for the training on all samples, at most."""
BATCHES: Final = 250
"""Batches of a training run, as far as the limits on epochs allow."""
EPOCHS: Final = (20, 80)
BATCH_SIZES: Final = (32, 256)
METRIC: Final = "explained"
"""Validation score: a share of the loss, because few samples give few different accuracies."""
LEAST_SAMPLES: Final = 3
"""Two to train on, and one that is held out."""
ROWS: Final = 256
"""Rows of a block that is predicted at once."""
GONE: Final = (
    "result_: the run folder was temporary and is gone; give folder= to the estimator to keep"
)

ModelFactory = Callable[[int, int], nn.Module]
Widths = tuple[float, ...] | Literal["auto"]


class KeptResult(GrowResult):
    """The result of a fit; it holds its networks and can be pickled."""

    temporary = False
    """Whether its run folder is gone."""

    def table(self) -> Table:
        """All runs of the search."""
        self._require_folder()
        return super().table()

    def report(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write a self-contained HTML page; returns its path."""
        self._require_folder()
        return super().report(path)

    def _require_folder(self) -> None:
        if self.temporary:
            raise EsperError(f"{GONE} curves and report")

    def __str__(self) -> str:
        text = super().__str__()
        return text.rpartition("\n\n")[0] if self.temporary else text

    __repr__ = __str__


@dataclass(frozen=True, slots=True)
class _Training:
    """How the default model is trained, as in `esper.grow`."""

    rates: tuple[float, ...] | Literal["auto"] = "auto"
    weight_decay: float | Literal["auto"] = "auto"
    label_smoothing: float | Literal["auto"] = "auto"

    @property
    def rate(self) -> float:
        """The learning rate if there is time for one only."""
        return RATES["adamw"] if self.rates == "auto" else self.rates[len(self.rates) // 2]


# ---- models --------------------------------------------------------------------------------------


def _mlp(features: int, outputs: int, width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, outputs))


def _mlp_params(features: int, outputs: int, width: int) -> int:
    return (features + 1) * width + (width + 1) * outputs


def _widest(features: int, outputs: int, cap: int | None) -> int:
    """Width of the widest default model under a cap; without one, twice the usual."""
    if cap is None:
        return 2 * WIDTH
    least = _mlp_params(features, outputs, 1)
    if least > cap:
        raise EsperError(
            f"params={cap}: the smallest network for {features} features and {outputs} outputs "
            f"has {least} parameters; give {least} or more, or a model of your own"
        )
    fits = range(1, 2 * WIDEST + 1)
    return max(width for width in fits if _mlp_params(features, outputs, width) <= cap)


def _batch_size(samples: int) -> int:
    """About an eighth of the samples, a power of 2: on small tables batches cost more than rows.

    An epoch has three batches or more.

    >>> _batch_size(100), _batch_size(1_000), _batch_size(40), _batch_size(100_000), _batch_size(2)
    (32, 128, 13, 256, 2)
    """
    least, most = BATCH_SIZES
    wanted = max(least, min(most, 1 << max(0, round(math.log2(samples / 8)))))
    return min(wanted, max(2, samples // 3))


def _epochs(batches: int) -> int:
    """Epochs of a training run; `batches`: of an epoch.

    >>> _epochs(10), _epochs(1), _epochs(1_000)
    (25, 80, 20)
    """
    least, most = EPOCHS
    return max(least, min(most, round(BATCHES / batches)))


def _network_of(networks: Mapping[int, nn.Module], record: NetworkRecord) -> nn.Module:
    return networks[record.number]


def _example(features: int, _: NetworkRecord) -> Tensor:
    return torch.zeros(2, features)


def _script_of(folder: Path | None, record: NetworkRecord) -> str:
    if folder is None:
        raise EsperError(f"{GONE} the script of the pick")
    return read_script(folder, record.number)


# ---- estimators ----------------------------------------------------------------------------------


class _Growing(BaseEstimator):  # type: ignore[misc]  # scikit-learn ships no types
    """What both estimators share."""

    model_: nn.Module
    result_: KeptResult
    n_features_in_: int
    encoding_: Encoding | None

    _training: ClassVar = _Training()

    def __init__(
        self,
        model: nn.Module | ModelFactory | None = None,
        *,
        params: int | None = None,
        host_runs: float | None = None,
        minutes: float | None = None,
        epochs: float | Literal["auto"] = "auto",
        weight_decay: float | Literal["auto"] = "auto",
        metric: str | Callable[..., Any] = "auto",
        validation_fraction: float = 0.2,
        refit: bool = True,
        standardize: bool = True,
        categorical: Categorical | None = None,
        random_state: Any = None,
        device: str = "auto",
        folder: str | os.PathLike[str] | None = None,
        verbose: bool = False,
    ) -> None:
        self.model = model
        self.params = params
        self.host_runs = host_runs
        self.minutes = minutes
        self.epochs = epochs
        self.weight_decay = weight_decay
        self.metric = metric
        self.validation_fraction = validation_fraction
        self.refit = refit
        self.standardize = standardize
        self.categorical = categorical
        self.random_state = random_state
        self.device = device
        self.folder = folder
        self.verbose = verbose

    # ---- fit ------------------------------------------------------------------------------

    def _validated(self, X: Any, y: Any, **options: Any) -> tuple[Any, Any]:
        """Return arrays; a column of a data frame that holds no numbers is named."""
        self.encoding_ = None
        if self.categorical is not None:
            table = read_table(X, "X")
            self.encoding_ = learn_encoding(table, self.categorical, "X")
            encoded = self.encoding_.inputs(table, "X")
            found = self._checked(encoded.numpy(), y, **options)  # type: ignore[union-attr]
            self.n_features_in_ = len(table)
            if hasattr(X, "columns"):
                self.feature_names_in_ = np.array(list(table), dtype=object)
            return found
        return self._checked(X, y, **options)

    def _checked(self, X: Any, y: Any, **options: Any) -> tuple[Any, Any]:
        try:
            return validate_data(  # type: ignore[no-any-return]
                self, X, y, dtype=[np.float64, np.float32], ensure_min_samples=LEAST_SAMPLES,
                **options,
            )  # fmt: skip
        except (TypeError, ValueError):
            if hasattr(X, "columns") and hasattr(X, "to_numpy"):
                check_columns(X, X.to_numpy(), "X")
            raise

    def _fit(
        self,
        x_ND: Doubles,
        targets: Tensor,
        outputs: int,
        weights: Tensor | None,
        rescale: Callable[[nn.Module, GrowPart], Scaling],
    ) -> None:
        """Search, train the pick on all samples, and set the fitted attributes.

        `rescale`: how outputs of a network become those of the model, from held-out samples.
        """
        began = time.monotonic()
        scaling = Scaling.of(x_ND) if self.standardize else None
        scaled_ND = x_ND if scaling is None else scaling.apply(x_ND)
        part = GrowPart(torch.from_numpy(scaled_ND.astype(np.float32)), targets, weights)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        held, train = map(part.take, self._cut(part, seed))
        printer = ProgressPrinter(self.verbose)
        with printer.shown():
            with self._run_folder(seed) as folder:
                run = self._prepare(train, held, outputs, seed, printer, began)
                self._require_time(began)
                result = run.search(folder, resumed=False, files=self.folder is not None)
                networks = {n.record.number: n.model for n in (*result.frontier, result.host)}
                pick = networks[result.record.pick]
                end = math.inf if self.minutes is None else began + 60.0 * self.minutes
                if result.record.complete and self._refits(result, end):
                    printer.phase("training the pick on all samples")
                    pick = run.refit(result.best.record, part, end) or pick
            if self.folder is not None:
                write_report(result, printer)
        if not result.record.complete:
            warnings.warn(
                "fit was interrupted: the best network so far is used",
                ConvergenceWarning,
                stacklevel=3,
            )
        rescaled = {number: rescale(network, held) for number, network in networks.items()}
        models = {
            number: with_scaling(network, scaling, rescaled[number])
            for number, network in networks.items()
        }
        self.result_ = self._kept(result, models, x_ND.shape[1])
        self.model_ = with_scaling(pick, scaling, rescaled[result.record.pick])

    def _kept(
        self, result: GrowResult, models: Mapping[int, nn.Module], features: int
    ) -> KeptResult:
        """The result, with networks that take features as they are."""
        kept = KeptResult(
            result.record,
            replace(result.info, encoding=self.encoding_),
            result.folder,
            partial(_network_of, models),
            partial(_example, features),
            partial(_script_of, None if self.folder is None else result.folder),
        )
        kept.temporary = self.folder is None
        return kept

    def _require_time(self, began: float) -> None:
        spent = time.monotonic() - began
        if self.minutes is not None and spent > MAX_READY * 60.0 * self.minutes:
            raise EsperError(
                f"minutes={self.minutes:g}: it took {spent:.2g} seconds to get ready, so there is "
                f"no time to train; give more"
            )

    def _refits(self, result: GrowResult, end: float) -> bool:
        """Whether the pick is trained again: if that is wanted, and can end in time."""
        if not self.refit or math.isinf(end):
            return self.refit
        row = result.table().rows[result.best.record.number]
        needed = row.seconds / (1.0 - self.validation_fraction)
        return time.monotonic() + needed <= end

    def _prepare(
        self,
        train: GrowPart,
        held: GrowPart,
        outputs: int,
        seed: int,
        printer: ProgressPrinter,
        began: float,
    ) -> GrowRun:
        assert isinstance(train.inputs, Tensor)
        val = (held.inputs, held.targets)
        tiny = len(train) + len(held) < TINY
        runs = self.host_runs
        if runs is None and self.minutes is None:
            runs = TINY_RUNS if tiny else HOST_RUNS
        budget = Budget(params=self.params, host_runs=runs, minutes=self.minutes)
        alone = runs is not None and runs < SEARCH_RUNS
        # A model of one's own may be larger than params.
        capped = self.model is not None and self.params is not None
        model, widths = self._model(train.inputs.shape[1], outputs)
        size = _batch_size(len(train))
        training = self._training if self.model is None else _Training()
        settings = GrowSettings(
            seed=seed,
            epochs=_epochs(len(train) // size) if self.epochs == "auto" else self.epochs,
            batch_size=size,
            device=self.device,
            widths=() if (tiny or alone) and not capped else widths,
            depths=() if (tiny or alone) and not capped else "auto",
            lr=training.rate if alone else training.rates,
            weight_decay=training.weight_decay
            if self.weight_decay == "auto"
            else self.weight_decay,
            label_smoothing=training.label_smoothing,
            metric=METRIC if self.metric == "auto" else self.metric,
        )
        run = prepare_run(
            model,
            # Nothing is left for a test: that is what cross_val_score is for.
            ((train.inputs, train.targets), val, val),
            budget,
            settings,
            printer,
            sample_weights=train.weights,
            began=began,
        )
        if budget.minutes is not None and self.refit:
            # The widest of the other widths costs about twice as much.
            needed = 2 * run.each * run.length.batches / (1.0 - self.validation_fraction)
            kept = min(needed / 60.0, MAX_KEPT * budget.minutes)
            run.budget = replace(budget, minutes=budget.minutes - kept)
        return run

    def _model(self, features: int, outputs: int) -> tuple[Model, Widths]:
        """The model to grow, and its other widths to try."""
        if self.model is None:
            widest = _widest(features, outputs, self.params)
            width = max(1, widest // 2)
            sizes = ((share, share * width) for share in WIDTHS)
            widths = tuple(share for share, units in sizes if 1 <= units <= widest)
            return partial(_mlp, features, outputs, width), widths
        if isinstance(self.model, nn.Module):
            return self.model, "auto"
        if not callable(self.model):
            raise EsperError(
                f"model={shown(self.model)}: give None, an nn.Module, or a function of "
                f"(n_features, n_outputs) that builds one"
            )
        return partial(self.model, features, outputs), "auto"

    def _cut(self, part: GrowPart, seed: int) -> list[Ints]:
        """Samples that are held out to choose the network, and the others."""
        share: Any = self.validation_fraction
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1:
            raise EsperError(f"validation_fraction={shown(share)}: give a number between 0 and 1")
        by_class = not part.targets.dtype.is_floating_point
        return cut_samples(part.targets.numpy(), sample_keys(part), [share], seed, by_class)[0]

    @contextlib.contextmanager
    def _run_folder(self, seed: int) -> Iterator[GrowFolder]:
        with contextlib.ExitStack() as stack:
            if self.folder is None:
                root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="esper-")))
            else:
                root = Path(self.folder)
            yield stack.enter_context(
                contextlib.closing(GrowFolder.create(root, type(self).__name__, seed))
            )

    # ---- predict --------------------------------------------------------------------------

    def _outputs(self, X: Any) -> Doubles:
        """Outputs of the network `[N, K]`."""
        check_is_fitted(self)
        if self.encoding_ is None:
            x_ND = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        else:
            x_ND = self.encoding_.encode(X, "X").numpy()  # type: ignore[union-attr]
        blocks = []
        with torch.no_grad():
            for first in range(0, len(x_ND), ROWS):
                rows = torch.from_numpy(np.array(x_ND[first : first + ROWS]))
                # Blocks of one size: what is predicted for a sample does not depend on the others.
                block = torch.zeros(ROWS, x_ND.shape[1], dtype=rows.dtype)
                block[: len(rows)] = rows
                blocks.append(self.model_(block)[: len(rows)].double().numpy())
        return np.concatenate(blocks)


class GrowingClassifier(ClassifierMixin, _Growing):  # type: ignore[misc]
    """A classifier whose network is grown on the training data within a budget.

    Parameters
    ----------
    model : None (a network with one hidden layer), an `nn.Module`, or a function of
        `(n_features, n_outputs)` that builds one. It returns logits, one for each class.
    params : most parameters of the network, or None.
    host_runs : compute of the search in training runs of the model; None: 8, on tiny data 3, with
        `minutes` no limit.
    minutes : longest time of a fit; None: no limit.
    epochs : length of a training run, or "auto".
    weight_decay : of AdamW; "auto": 0.3; with a model of your own, and in the regressor,
        as in `esper.grow`.
    metric : of the held-out samples, by which the network is chosen, as in `esper.grow`: a name
        ("f1", "roc_auc", "r2", ...) or a function; "auto": the explained share of the loss. A
        function gets logits and class indices, in the regressor standardised numbers. `score`
        stays accuracy, in the regressor R2.
    validation_fraction : share of the samples that chooses between networks.
    refit : whether the chosen network is trained again on all samples.
    standardize : whether features are standardised; the network that comes back does it itself.
    categorical : columns of X to encode as one-hot columns, by name or place, or "auto": those of
        text, categories or booleans; None: none. Values that fit has not seen are 0 in all of them.
    random_state : seed of the split, the batches, the weights and the search.
    device : "auto", "cpu" or "cuda".
    folder : where the run folder is made; None: nothing is kept on disk.
    verbose : whether progress is printed on stderr.

    Attributes
    ----------
    classes_ : labels, in the order of the columns of `predict_proba`.
    model_ : the network, a plain `nn.Module` that takes features and returns logits, calibrated on
        the held-out samples.
    result_ : the search, an `esper.GrowResult`: frontier, verdict, `pick(params=...)`.
    encoding_ : how rows are encoded, or None; `model_` takes `encoding_.encode(X)`.
    n_features_in_, feature_names_in_ : as in scikit-learn.
    """

    # Short runs of a small network gain from high rates, a strong decay and smoothed labels.
    _training: ClassVar = _Training((1e-2, 3e-2, 1e-1), 0.3, SMOOTHING)

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Grow a network; `sample_weight`: of each sample in the training loss."""
        X, y = self._validated(X, y)
        check_classification_targets(y)
        self.classes_, index_N = np.unique(column_or_1d(y, warn=True), return_inverse=True)
        classes = len(self.classes_)
        if classes < 2:
            raise EsperError(
                f"y has 1 class, {self.classes_[0]}: a classifier needs samples of two"
            )
        X, index_N, weights = _weighted(X, index_N, sample_weight)
        left = len(np.unique(index_N))
        if left < 2:
            raise EsperError(
                "sample_weight leaves samples of less than two classes: give weights above 0 to "
                "samples of another class"
            )
        if len(index_N) < left + 2:
            raise EsperError(
                f"y has {left} classes in {len(index_N)} samples: too few to hold some out; "
                f"give {left + 2} or more"
            )
        targets = torch.from_numpy(index_N.astype(np.int64))
        self._fit(X, targets, classes, weights, partial(calibrated, classes=classes))
        return self

    def predict_proba(self, X: Any) -> Doubles:
        """Probabilities of the classes `[N, K]`."""
        logits = torch.from_numpy(self._outputs(X))
        return np.asarray(logits.softmax(dim=1).numpy())

    def predict_log_proba(self, X: Any) -> Doubles:
        """Logarithms of the probabilities of the classes `[N, K]`."""
        logits = torch.from_numpy(self._outputs(X))
        return np.asarray(logits.log_softmax(dim=1).numpy())

    def predict(self, X: Any) -> Any:
        """The most likely class of each sample."""
        best_N = self._outputs(X).argmax(axis=1)
        return self.classes_[best_N]


class GrowingRegressor(RegressorMixin, _Growing):  # type: ignore[misc]
    """A regressor whose network is grown on the training data within a budget.

    Parameters and attributes are those of `GrowingClassifier`, without classes. Targets `[N]` or
    `[N, K]` are standardised for training; `model_` returns them in their own units, `[N, K]`.
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Grow a network; `sample_weight`: of each sample in the training loss."""
        X, y = self._validated(X, y, multi_output=True, y_numeric=True)
        self._one_target = y.ndim == 1
        X, y, weights = _weighted(X, y, sample_weight)
        y_NK = y.reshape(len(y), -1).astype(np.float64)
        if (y_NK == y_NK[0]).all():
            raise EsperError(f"y is constant, {y.flat[0]:g} in all samples: nothing to learn")
        scaling = Scaling.of(y_NK)
        targets = torch.from_numpy(scaling.apply(y_NK).astype(np.float32))
        self._fit(X, targets, y_NK.shape[1], weights, lambda *_: scaling)
        return self

    def predict(self, X: Any) -> Doubles:
        """Predicted targets, of the shape that `fit` was given."""
        outputs_NK = self._outputs(X)
        return outputs_NK[:, 0] if self._one_target else outputs_NK

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _weighted(X: Any, y: Any, given: Any) -> tuple[Any, Any, Tensor | None]:
    """Features, targets and weights of the samples that have a weight above 0."""
    if given is None:
        return X, y, None
    weight_N = _check_sample_weight(given, X, dtype=np.float64, ensure_non_negative=True)
    used_N = weight_N > 0
    if used_N.sum() < LEAST_SAMPLES:
        raise EsperError(
            f"sample_weight is above 0 for {used_N.sum()} samples: give {LEAST_SAMPLES} or more"
        )
    return X[used_N], y[used_N], torch.from_numpy(weight_N[used_N].astype(np.float32))
