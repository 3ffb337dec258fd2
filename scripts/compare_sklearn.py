"""`GrowingClassifier` and `GrowingRegressor` against scikit-learn's MLPs at equal parameters.

    python scripts/compare_sklearn.py                          10 splits of five data sets
    python scripts/compare_sklearn.py --sets wine --splits 2   a minute

For each split (a quarter of the samples for test, stratified) the estimator is fitted with its
default settings. MLPClassifier (diabetes: MLPRegressor, targets standardised) gets standardised
features and one hidden layer whose size comes closest to the parameters of the grown network. Its
alpha and learning rate are chosen among nine pairs on a fifth of the training part, as much as the
estimator holds out, and it is trained again on the whole of it, for up to `--iterations` epochs.
Both are scored on the same test samples. Results so far are kept in `--out` and not run again.
Defaults of the estimators were chosen on splits 100 to 109; results are reported on splits from 0.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
from sklearn import datasets
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from esper.leyline.errors import EsperError, unknown_name
from esper.leyline.statistics import paired_difference
from esper.scripts.cli.command import run_command
from esper.sklearn import GrowingClassifier, GrowingRegressor

ALPHAS: Final = (1e-4, 1e-2, 1.0)
RATES: Final = (1e-3, 3e-3, 1e-2)
TEST_SHARE: Final = 0.25
HELD_SHARE: Final = 0.2
SETS: Final[dict[str, Callable[..., Any]]] = {
    "digits": datasets.load_digits,
    "wine": datasets.load_wine,
    "iris": datasets.load_iris,
    "breast_cancer": datasets.load_breast_cancer,
    "diabetes": datasets.load_diabetes,
}


@dataclass(frozen=True, slots=True)
class CompareSklearn:
    """Compare grown networks with scikit-learn's MLPs of the same number of parameters."""

    sets: tuple[str, ...] = tuple(SETS)
    """Data sets: digits, wine, iris, breast_cancer, diabetes."""
    splits: int = 10
    """Splits into training and test samples."""
    first_split: int = 0
    """Seed of the first of them."""
    iterations: int = 200
    """Most epochs of an MLP."""
    out: Path = Path("out/compare_sklearn.jsonl")
    """Results, a line for each split; those it holds are not run again."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One split."""

    data: str
    split: int
    grown: float
    """Test score: accuracy, or R2."""
    mlp: float
    grown_params: int
    mlp_params: int
    grown_seconds: float
    mlp_seconds: float


def main() -> int:
    """Entry point of the command."""
    return run_command(CompareSklearn, compare)


def compare(config: CompareSklearn) -> None:
    """Run what is missing, a line for each split, then print the table."""
    for name in config.sets:
        if name not in SETS:
            raise unknown_name("data set", name, tuple(SETS))
    if config.splits < 1:
        raise EsperError(f"--splits {config.splits}: must be 1 or more")
    config.out.parent.mkdir(parents=True, exist_ok=True)
    known = read_outcomes(config.out)
    splits = range(config.first_split, config.first_split + config.splits)
    for split, name in product(splits, config.sets):
        if (name, split) in known:
            continue
        known[name, split] = outcome = run_split(name, split, config.iterations)
        with config.out.open("a") as file:
            file.write(json.dumps(asdict(outcome)) + "\n")
        print(outcome, flush=True)
    rows = {name: [known[name, split] for split in splits] for name in config.sets}
    print("\n".join(table(rows)))


def read_outcomes(path: Path) -> dict[tuple[str, int], Outcome]:
    """Outcomes of a file, by data set and split."""
    lines = path.read_text().splitlines() if path.exists() else []
    found = [Outcome(**json.loads(line)) for line in lines]
    return {(outcome.data, outcome.split): outcome for outcome in found}


def run_split(name: str, split: int, iterations: int) -> Outcome:
    """Fit and score both on one split."""
    x, y = SETS[name](return_X_y=True)
    numbers = y.dtype.kind == "f"
    x_train, x_test, y_train, y_test = train_test_split(
        x, y, test_size=TEST_SHARE, stratify=None if numbers else y, random_state=split
    )
    began = time.perf_counter()
    kind = GrowingRegressor if numbers else GrowingClassifier
    grown = kind(random_state=split, device="cpu").fit(x_train, y_train)
    middle = time.perf_counter()
    params = grown.result_.best.params
    outputs = 1 if numbers else len(grown.classes_)
    hidden = hidden_units(params, x.shape[1], outputs, binary=not numbers and outputs == 2)
    mlp = tuned_mlp(x_train, y_train, hidden, split, iterations)
    ended = time.perf_counter()
    network = (mlp.regressor_ if numbers else mlp)[-1]
    return Outcome(
        data=name,
        split=split,
        grown=float(grown.score(x_test, y_test)),
        mlp=float(mlp.score(x_test, y_test)),
        grown_params=params,
        mlp_params=sum(w.size for w in (*network.coefs_, *network.intercepts_)),
        grown_seconds=middle - began,
        mlp_seconds=ended - middle,
    )


def hidden_units(params: int, features: int, outputs: int, binary: bool) -> int:
    """Units of one hidden layer with about that many parameters in all.

    `binary`: scikit-learn has one output for two classes.

    >>> hidden_units(1_000, 8, 2, binary=True)
    100
    """
    outputs = 1 if binary else outputs
    return max(1, round((params - outputs) / (features + 1 + outputs)))


def tuned_mlp(x: Any, y: Any, hidden: int, seed: int, iterations: int) -> Any:
    """An MLP with the best of nine settings on held-out samples, trained on all of them."""
    numbers = y.dtype.kind == "f"
    x_fit, x_held, y_fit, y_held = train_test_split(
        x, y, test_size=HELD_SHARE, stratify=None if numbers else y, random_state=seed
    )

    def fitted(alpha: float, rate: float, x: Any, y: Any) -> Any:
        kind = MLPRegressor if numbers else MLPClassifier
        mlp = kind(
            hidden_layer_sizes=(hidden,),
            alpha=alpha,
            learning_rate_init=rate,
            max_iter=iterations,
            random_state=seed,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            made = make_pipeline(StandardScaler(), mlp)
            if numbers:
                made = TransformedTargetRegressor(made, transformer=StandardScaler())
            return made.fit(x, y)

    scores = {
        pair: fitted(*pair, x_fit, y_fit).score(x_held, y_held) for pair in product(ALPHAS, RATES)
    }
    best = max(scores, key=lambda pair: scores[pair])
    return fitted(*best, x, y)


def table(rows: dict[str, list[Outcome]]) -> list[str]:
    """The Markdown table: means, and the paired difference with its Student's t interval."""
    lines = [
        "| data | grown | MLP | grown - MLP (95 %) | better / equal / worse "
        "| parameters, median (range) | seconds of a fit: grown, MLP with its grid |",
        "|---|---:|---:|---|---|---:|---:|",
    ]
    for name, outcomes in rows.items():
        grown = np.array([outcome.grown for outcome in outcomes])
        mlp = np.array([outcome.mlp for outcome in outcomes])
        found = paired_difference(grown, mlp)
        gap, params = found.student, [outcome.grown_params for outcome in outcomes]
        seconds = [
            np.median([getattr(outcome, f"{what}_seconds") for outcome in outcomes])
            for what in ("grown", "mlp")
        ]
        lines.append(
            f"| {name} | {grown.mean():.4f} | {mlp.mean():.4f} | {gap.value:+.4f} "
            f"({gap.low:+.4f} to {gap.high:+.4f}) | {found.above} / {found.equal} / {found.below} "
            f"| {np.median(params):,.0f} ({min(params):,} to {max(params):,}) "
            f"| {seconds[0]:.0f}, {seconds[1]:.0f} |"
        )
    return lines


if __name__ == "__main__":
    sys.exit(main())
