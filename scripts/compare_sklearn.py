"""`GrowingClassifier` and `GrowingRegressor` against tuned scikit-learn models, at equal seconds.

    python scripts/compare_sklearn.py                             5 splits of four tables, an hour
    python scripts/compare_sklearn.py --sets wine --splits 1 --seconds 10

Each split (a quarter of the samples for test, stratified) is fitted by each contender for the same
seconds: the estimator with `minutes`; MLPClassifier or MLPRegressor with standardised features (and
targets), whose layers, alpha, learning rate, batch size and stopping Optuna (TPE) tunes; and
HistGradientBoosting, tuned likewise. A trial is scored by cross-validation in three parts, on
`MANY` samples or more on a held-out fifth; the first is scikit-learn's defaults; the best is
trained again on all samples. One process a core, one thread each, side by side, so that other load
of the machine slows all of them; imports are not counted.

Rows are kept in `--out` and not run again. Settings of the estimators were chosen on splits 10 and
11; results are reported on splits from 200.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np

from esper.leyline.errors import EsperError, unknown_name
from esper.leyline.statistics import paired_difference
from esper.scripts.cli.command import run_command

SETS: Final = ("digits", "wine", "breast_cancer", "diabetes")
CONTENDERS: Final = ("grown", "mlp", "trees")
TEST_SHARE: Final = 0.25
HELD_SHARE: Final = 0.2
MANY: Final = 1000
"""Training samples from which a trial is scored on a part of them once."""
FOLDS: Final = 3


@dataclass(frozen=True, slots=True)
class CompareSklearn:
    """Compare grown networks with tuned models of scikit-learn at equal seconds."""

    sets: tuple[str, ...] = SETS
    """Tables: digits, wine, breast_cancer, diabetes."""
    contenders: tuple[str, ...] = CONTENDERS
    """Who is fitted: grown, mlp, trees."""
    splits: int = 5
    """Splits into training and test samples."""
    first_split: int = 200
    """Seed of the first of them."""
    seconds: float = 30.0
    """Time of each fit."""
    cores: int = 2
    """Fits at a time, one on each core."""
    out: Path = Path("out/compare_sklearn.jsonl")
    """Results, a line for each fit; those it holds are not run again."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One fit."""

    data: str
    split: int
    contender: str
    score: float
    """Test score: accuracy, or R2."""
    seconds: float
    params: int
    """Parameters of a network; of trees 0."""
    trials: int
    """Networks that were trained, or settings that were tried."""


def main() -> int:
    """Entry point of the command."""
    return run_command(CompareSklearn, compare)


def compare(config: CompareSklearn) -> None:
    """Run what is missing, a line for each fit, then print the table."""
    for what, names, valid in (
        ("data set", config.sets, SETS),
        ("contender", config.contenders, CONTENDERS),
    ):
        for name in names:
            if name not in valid:
                raise unknown_name(what, name, valid)
    if config.splits < 1 or config.cores < 1 or config.seconds <= 0:
        raise EsperError(
            f"--splits {config.splits} --cores {config.cores} --seconds {config.seconds}: "
            f"must be above 0"
        )
    config.out.parent.mkdir(parents=True, exist_ok=True)
    known = read_outcomes(config.out)
    splits = range(config.first_split, config.first_split + config.splits)
    wanted = list(product(splits, config.sets, config.contenders))
    missing = [
        (data, split, contender)
        for split, data, contender in wanted
        if (data, split, contender) not in known
    ]
    for outcome in fitted(missing, config.seconds, config.cores):
        known[outcome.data, outcome.split, outcome.contender] = outcome
        with config.out.open("a") as file:
            file.write(json.dumps(asdict(outcome)) + "\n")
        print(outcome, flush=True)
    rows = {
        name: {who: [known[name, split, who] for split in splits] for who in config.contenders}
        for name in config.sets
    }
    print("\n".join(table(rows)))


def read_outcomes(path: Path) -> dict[tuple[str, int, str], Outcome]:
    """Outcomes of a file, by data set, split and contender."""
    lines = path.read_text().splitlines() if path.exists() else []
    found = [Outcome(**json.loads(line)) for line in lines]
    return {(outcome.data, outcome.split, outcome.contender): outcome for outcome in found}


# ---- fits ----------------------------------------------------------------------------------------


def fitted(missing: Sequence[tuple[str, int, str]], seconds: float, cores: int) -> Any:
    """Outcomes as they come, so many at a time; with one core in this process."""
    if cores == 1 or not missing:
        yield from (fit_one(*one, seconds) for one in missing)
        return
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    context = multiprocessing.get_context("spawn")
    places = context.Queue()
    for place in range(cores):
        places.put(place)
    with ProcessPoolExecutor(cores, context, initializer=pin, initargs=(places,)) as pool:
        futures: list[Future[Outcome]] = [pool.submit(fit_one, *one, seconds) for one in missing]
        for future in as_completed(futures):
            yield future.result()


def pin(places: Any) -> None:
    """Keep this process on one core, if the system can."""
    import esper.sklearn  # noqa: F401  # so that no fit pays for it

    place = places.get()
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[place % len(cores)]})


def fit_one(data: str, split: int, contender: str, seconds: float) -> Outcome:
    """Fit and score one contender on one split."""
    from sklearn import datasets
    from sklearn.model_selection import train_test_split

    x, y = getattr(datasets, f"load_{data}")(return_X_y=True)
    numbers = y.dtype.kind == "f"
    x_train, x_test, y_train, y_test = train_test_split(
        x, y, test_size=TEST_SHARE, stratify=None if numbers else y, random_state=split
    )
    began = time.perf_counter()
    fit = grown if contender == "grown" else tuned
    model, params, trials = fit(contender, x_train, y_train, split, seconds)
    return Outcome(
        data, split, contender, float(model.score(x_test, y_test)),
        time.perf_counter() - began, params, trials,
    )  # fmt: skip


def grown(_: str, x: Any, y: Any, seed: int, seconds: float) -> tuple[Any, int, int]:
    """The estimator, its parameters and the runs of its search."""
    from esper.sklearn import GrowingClassifier, GrowingRegressor

    kind = GrowingRegressor if y.dtype.kind == "f" else GrowingClassifier
    model = kind(minutes=seconds / 60, random_state=seed, device="cpu").fit(x, y)
    record = model.result_.record
    runs = {one.number for one in (*record.networks, record.host, *record.others)}
    return model, model.result_.best.params, len(runs)


def tuned(contender: str, x: Any, y: Any, seed: int, seconds: float) -> tuple[Any, int, int]:
    """The best setting that Optuna finds in time, trained on all samples; parameters, trials."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    began = time.perf_counter()
    draw, make = (drawn_mlp, mlp) if contender == "mlp" else (drawn_trees, trees)
    numbers = y.dtype.kind == "f"
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    study.enqueue_trial(DEFAULTS[contender])
    # A fit on all samples takes as long as this share of a trial.
    once = 1.0 / (1.0 - HELD_SHARE) if is_large(x, y) else 1.0 / (FOLDS - 1)
    spans, drawn = dict[int, float](), dict[int, Any]()
    while True:
        start = time.perf_counter()
        trial = study.ask()
        drawn[trial.number] = draw(trial)
        model = make(drawn[trial.number], numbers, seed)
        study.tell(trial, trial_score(model, x, y, seed))
        spans[trial.number] = time.perf_counter() - start
        ahead = np.mean(list(spans.values())) + once * spans[study.best_trial.number]
        if time.perf_counter() - began + ahead > seconds:
            break
    model = make(drawn[study.best_trial.number], numbers, seed).fit(x, y)
    return model, params_of(model), len(study.trials)


def is_large(x: Any, y: Any) -> bool:
    """Whether a trial is scored on one part of the samples."""
    return y.dtype.kind != "f" and len(x) >= MANY


def trial_score(model: Any, x: Any, y: Any, seed: int) -> float:
    """Mean score of a model on samples that it was not trained on."""
    from sklearn.model_selection import (
        KFold,
        StratifiedKFold,
        StratifiedShuffleSplit,
        cross_val_score,
    )

    if is_large(x, y):
        parts: Any = StratifiedShuffleSplit(1, test_size=HELD_SHARE, random_state=seed)
    else:
        kind = KFold if y.dtype.kind == "f" else StratifiedKFold
        parts = kind(FOLDS, shuffle=True, random_state=seed)
    score = float(cross_val_score(model, x, y, cv=parts, error_score=-np.inf).mean())
    return score if np.isfinite(score) else -1e9


DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    "mlp": {"width": 100, "layers": 1, "alpha": 1e-4, "rate": 1e-3, "batch": 200,
            "activation": "relu", "epochs": 200, "early_stopping": False},
    "trees": {"rate": 0.1, "leaves": 31, "least": 20, "l2": 1e-6, "iterations": 100,
              "features": 1.0},
}  # fmt: skip
"""The first trial: scikit-learn's own settings."""


def drawn_mlp(trial: Any) -> dict[str, Any]:
    """Settings of an MLP."""
    return {
        "width": trial.suggest_int("width", 8, 256, log=True),
        "layers": trial.suggest_int("layers", 1, 2),
        "alpha": trial.suggest_float("alpha", 1e-5, 10.0, log=True),
        "rate": trial.suggest_float("rate", 3e-4, 3e-2, log=True),
        "batch": trial.suggest_categorical("batch", [32, 64, 200]),
        "activation": trial.suggest_categorical("activation", ["relu", "tanh"]),
        "epochs": trial.suggest_int("epochs", 30, 300, log=True),
        "early_stopping": trial.suggest_categorical("early_stopping", [False, True]),
    }


def mlp(drawn: dict[str, Any], numbers: bool, seed: int) -> Any:
    """An MLP, with standardised features and targets."""
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.neural_network import MLPClassifier, MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    kind = MLPRegressor if numbers else MLPClassifier
    network = kind(
        hidden_layer_sizes=(drawn["width"],) * drawn["layers"],
        alpha=drawn["alpha"],
        learning_rate_init=drawn["rate"],
        batch_size=drawn["batch"],
        activation=drawn["activation"],
        max_iter=drawn["epochs"],
        early_stopping=drawn["early_stopping"],
        random_state=seed,
    )
    model = make_pipeline(StandardScaler(), network)
    return TransformedTargetRegressor(model, transformer=StandardScaler()) if numbers else model


def drawn_trees(trial: Any) -> dict[str, Any]:
    """Settings of gradient boosting."""
    return {
        "rate": trial.suggest_float("rate", 0.02, 0.3, log=True),
        "leaves": trial.suggest_int("leaves", 3, 63, log=True),
        "least": trial.suggest_int("least", 2, 40, log=True),
        "l2": trial.suggest_float("l2", 1e-6, 10.0, log=True),
        "iterations": trial.suggest_int("iterations", 30, 300, log=True),
        "features": trial.suggest_float("features", 0.2, 1.0),
    }


def trees(drawn: dict[str, Any], numbers: bool, seed: int) -> Any:
    """Gradient boosting."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    kind = HistGradientBoostingRegressor if numbers else HistGradientBoostingClassifier
    return kind(
        learning_rate=drawn["rate"],
        max_leaf_nodes=drawn["leaves"],
        min_samples_leaf=drawn["least"],
        l2_regularization=drawn["l2"],
        max_iter=drawn["iterations"],
        max_features=drawn["features"],
        random_state=seed,
    )


def params_of(model: Any) -> int:
    """Parameters of an MLP; of anything else 0."""
    model = getattr(model, "regressor_", model)
    network = model[-1] if hasattr(model, "steps") else model
    return sum(
        w.size for w in (*getattr(network, "coefs_", ()), *getattr(network, "intercepts_", ()))
    )


# ---- the table -----------------------------------------------------------------------------------


def table(rows: dict[str, dict[str, list[Outcome]]]) -> list[str]:
    """The Markdown table: mean and deviation, and paired differences with Student's t interval."""
    lines = [
        "| data | " + " | ".join(CONTENDERS) + " | grown - mlp (95 %) | better / equal / worse "
        "| seconds of a fit |",
        "|---|" + "---:|" * len(CONTENDERS) + "---|---|---:|",
    ]
    for name, outcomes in rows.items():
        scores = {who: np.array([one.score for one in found]) for who, found in outcomes.items()}
        cells = [spread(scores[who]) if who in scores else "" for who in CONTENDERS]
        cells += (
            difference(scores["grown"], scores["mlp"])
            if {"grown", "mlp"} <= set(scores)
            else ["", ""]
        )
        seconds = (
            f"{np.median([one.seconds for one in outcomes[who]]):.0f}"
            for who in CONTENDERS
            if who in outcomes
        )
        lines.append("| " + " | ".join([name, *cells, ", ".join(seconds)]) + " |")
    return lines


def spread(scores: Any) -> str:
    """Mean and standard deviation."""
    return f"{scores.mean():.4f} ± {scores.std(ddof=min(1, len(scores) - 1)):.4f}"


def difference(ours: Any, theirs: Any) -> list[str]:
    """Paired difference with its interval, and how often it is above, equal and below."""
    found = paired_difference(ours, theirs)
    gap = found.student
    return [
        f"{gap.value:+.4f} ({gap.low:+.4f} to {gap.high:+.4f})",
        f"{found.above} / {found.equal} / {found.below}",
    ]


if __name__ == "__main__":
    sys.exit(main())
