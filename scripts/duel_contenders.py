"""The contenders of the duel: `esper.grow`, and what one would do instead.

Each gets train and validation, a cap on parameters and so many seconds, and returns its incumbents
(the networks that were best on validation when they ended) and its frontier (those that no smaller
one beats on validation). They are scored on test afterwards.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from duel_problems import CARDINALITIES, PROBLEMS, Part, Problem
from esper.growing.ladder import Ladder
from esper.growing.runs import Recipe
from esper.growing.trainers.augment import Augmentation
from esper.plotting.pareto import pareto

TRIALS = 3
"""Trials of the longest kind with the widest network for which there is to be time."""
SHORTEST = 0.1
"""Share of the longest trial that the shortest lasts."""
BATCH_SIZES = (16, 32, 64, 128, 256)
SMOOTHINGS = (0.0, 0.1)
MAX_TREES = 200


@dataclass(frozen=True)
class Incumbent:
    """A network that was the best on validation when it ended."""

    seconds: float
    """Since the contender began."""
    val: float
    params: int
    network: nn.Module


@dataclass(frozen=True)
class Played:
    """What a contender did."""

    incumbents: list[Incumbent]
    front: list[Incumbent]
    seconds: float
    runs: int
    batches: int


# ---- a plain loop ----------------------------------------------------------------------------


class PlainLoop:
    """Trains one network after the other, with the data on the device."""

    def __init__(self, problem: Problem, train: Part, val: Part, device: str) -> None:
        self.problem, self.device = problem, torch.device(device)
        self.x, self.y = (part.to(device) for part in train)
        self.val = tuple(part.to(device) for part in val)
        self.batches = 0

    def run(
        self,
        config: dict[str, Any],
        report: Callable[[int, float], None] | None,
        end: float,
    ) -> tuple[nn.Module, float] | None:
        """Train to the end and judge on validation; None: the time was over before.

        `report`: told of the scores after a ninth and a third of the run; None: nothing is judged.
        """
        network = self.problem.make(config["width"], config["depth"]).to(self.device)
        fused = torch.optim.AdamW(
            network.parameters(), config["lr"], weight_decay=config["decay"], fused=True
        )
        length, size = config["batches"], min(config["batch_size"], len(self.x))
        recipe = Recipe("adamw", config["lr"], 0.0, 0.0, size, length)
        augment, smoothing = None, config["smoothing"]
        if config["augment"] != "none":
            augment = Augmentation(config["augment"], config["seed"], self.device)
        order, place = torch.empty(0, dtype=torch.int64), 0
        for batch in range(length):
            if batch % 20 == 0 and time.monotonic() > end:
                return None
            if place + size > len(order):
                order, place = torch.randperm(len(self.x), device=self.device), 0
            chosen, place = order[place : place + size], place + size
            x, y = self.x[chosen], self.y[chosen]
            x = x if augment is None else augment(x, batch)
            for group in fused.param_groups:
                group["lr"] = recipe.rate(batch)
            with torch.autocast(self.device.type, torch.bfloat16, self.device.type == "cuda"):
                outputs = network(x)
            outputs = outputs.float().flatten(0, -2)
            loss = F.cross_entropy(outputs, y.flatten(), label_smoothing=smoothing)
            if augment is not None and augment.mixes:
                kept, other = augment.kept(batch).to(loss.device), y.flatten().flip(0)
                mixed = F.cross_entropy(outputs, other, label_smoothing=smoothing)
                loss = (kept * loss + (1 - kept) * mixed).squeeze(0)
            fused.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            fused.step()
            self.batches += 1
            if report is not None and batch in (length // 9, length // 3):
                report(batch, self.score(network))
        return network, math.nan if report is None else self.score(network)

    def longest(self, config: dict[str, Any], seconds: float) -> int:
        """Batches for which there is time in some seconds, by a short trial."""
        began = time.monotonic()
        self.run(config | {"batches": 4}, None, math.inf)  # the first ones are slow
        middle = time.monotonic()
        self.run(config | {"batches": 12}, None, math.inf)
        each = (time.monotonic() - middle) / 12
        return max(20, int((seconds - (middle - began)) / each))

    def score(self, network: nn.Module) -> float:
        """Score on validation."""
        x, y = self.val
        return score_of(self.problem, network, (x, y))


@torch.no_grad()
def score_of(problem: Problem, network: nn.Module, part: Part) -> float:
    """Score of a network in eval mode."""
    network.eval()
    device = next(network.parameters()).device
    outputs = [network(part[0][i : i + 1024].to(device)).float() for i in
               range(0, len(part[0]), 1024)]  # fmt: skip
    network.train()
    return problem.score(torch.cat(outputs), part[1].to(device))


# ---- Optuna ----------------------------------------------------------------------------------


def widest(problem: Problem, depth: int) -> int:
    """The largest width within the cap."""
    width = 2
    step = 2 if problem.tokens else 1
    while count(problem.make(width + step, depth)) <= problem.cap:
        width += step
    return width


def count(network: nn.Module) -> int:
    """Parameters."""
    return sum(param.numel() for param in network.parameters())


def first_trial(problem: Problem, device: str) -> dict[str, Any]:
    """Where a practitioner starts: the widest network, usual settings."""
    return {
        "depth": problem.depths[0], "width": 1.0, "lr": 3e-3 if problem.tokens else 0.01,
        "decay": 0.01, "batch_size": 64 if device.startswith("cuda") else 32, "share": 1.0,
        "augment": problem.augments[len(problem.augments) // 2], "smoothing": 0.0,
    }  # fmt: skip


def suggest(trial: Any, problem: Problem, most: dict[int, int], longest: int) -> dict[str, Any]:
    """A point of the search space."""
    depth = trial.suggest_categorical("depth", list(problem.depths))
    share = trial.suggest_float("width", 0.0, 1.0)  # of the logarithm, up to the cap of the depth
    width = round(4 * (most[depth] / 4) ** share) if most[depth] > 4 else most[depth]
    return {
        "depth": depth,
        "width": min(most[depth], width - width % 2 if problem.tokens else width),
        "lr": trial.suggest_float("lr", 3e-4, 0.1, log=True),
        "decay": trial.suggest_float("decay", 1e-5, 0.1, log=True),
        "batch_size": trial.suggest_categorical("batch_size", list(BATCH_SIZES)),
        "batches": max(1, round(longest * SHORTEST ** (1 - trial.suggest_float("share", 0, 1)))),
        "augment": trial.suggest_categorical("augment", list(problem.augments)),
        "smoothing": trial.suggest_categorical(
            "smoothing", list((0.0,) if problem.tokens else SMOOTHINGS)
        ),
        "seed": trial.number,
    }


def optuna_worker(problem: Problem, train: Part, val: Part, device: str, seed: int,
                  folder: Path, began: float, seconds: float, first: bool = True
                  ) -> None:  # fmt: skip
    """Trials until the time is over; every finished one is written down."""
    import optuna
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(folder / "journal.log")))
    loop = PlainLoop(problem, train, val, device)
    most = {depth: widest(problem, depth) for depth in problem.depths}
    torch.manual_seed(seed)
    start = first_trial(problem, device)
    wide = start | {"width": most[problem.depths[0]], "seed": 0}
    longest = loop.longest(wide, (began + seconds - time.monotonic()) / TRIALS)
    study = optuna.create_study(
        study_name="duel", storage=storage, load_if_exists=True, direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True),
        pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=max(1, longest // 60)),
    )  # fmt: skip
    if first:
        study.enqueue_trial(start)

    def objective(trial: Any) -> float:
        def report(step: int, value: float) -> None:
            trial.report(value, step)
            if trial.should_prune():
                raise optuna.TrialPruned

        found = loop.run(suggest(trial, problem, most, longest), report, began + seconds)
        if found is None or not math.isfinite(found[1]):
            raise optuna.TrialPruned
        network, score = found
        ended = {"seconds": time.monotonic() - began, "val": score}
        torch.save((ended, network.cpu()), folder / f"{os.getpid()}-{trial.number}.pt")
        return score

    study.optimize(objective, timeout=max(0.0, began + seconds - time.monotonic()))
    (folder / f"batches-{os.getpid()}").write_text(str(loop.batches))


def play_optuna(problem: Problem, train: Part, val: Part, device: str, seed: int, seconds: float,
                processes: int) -> Played:  # fmt: skip
    """Optuna with a number of processes."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder, context = Path(name), multiprocessing.get_context("spawn")
        given = (problem.name, train, val, device)
        others = [
            context.Process(target=_worker, args=(*given, seed + 1000 * n, folder, began, seconds))
            for n in range(1, processes)
        ]
        for other in others:
            other.start()
        threads = torch.get_num_threads()
        torch.set_num_threads(1 if processes > 1 else threads)
        optuna_worker(problem, train, val, device, seed, folder, began, seconds)
        took = time.monotonic() - began
        torch.set_num_threads(threads)
        for other in others:
            other.join()
        found = [torch.load(path, weights_only=False) for path in folder.glob("*.pt")]
        batches = sum(int(path.read_text()) for path in folder.glob("batches-*"))
    ended = [Incumbent(one["seconds"], one["val"], count(net), net) for one, net in found]
    return Played(_incumbents(ended), _front(ended), took, len(found), batches)


def _worker(name: str, train: Part, val: Part, device: str, seed: int, folder: Path,
            began: float, seconds: float) -> None:  # fmt: skip
    torch.set_num_threads(1)
    optuna_worker(PROBLEMS[name], train, val, device, seed, folder, began, seconds, first=False)


def _incumbents(ended: list[Incumbent]) -> list[Incumbent]:
    out: list[Incumbent] = []
    for one in sorted(ended, key=lambda one: one.seconds):
        if not out or one.val > out[-1].val:
            out.append(one)
    return out


def _front(ended: list[Incumbent]) -> list[Incumbent]:
    score_N, size_N = (np.array([getattr(one, name) for one in ended], dtype=np.float64)
                       for name in ("val", "params"))  # fmt: skip
    return [ended[index] for index in pareto(score_N, size_N)] if ended else []


# ---- six widths ------------------------------------------------------------------------------


def play_static(problem: Problem, train: Part, val: Part, device: str, seed: int,
                seconds: float) -> Played:  # fmt: skip
    """Six widths up to the cap in turn, each with its rate and length drawn anew every time."""
    began, rng = time.monotonic(), np.random.default_rng(seed)
    loop, most = PlainLoop(problem, train, val, device), widest(problem, problem.depths[0])
    widths = sorted({max(2, round(most * 0.62**place / 2) * 2) for place in range(6)})
    usual = first_trial(problem, device) | {"width": most, "seed": seed, "augment": "none"}
    torch.manual_seed(seed)
    longest = loop.longest(usual, seconds / len(widths) / 2)
    ended: list[Incumbent] = []
    while time.monotonic() < began + seconds:
        width = widths[len(ended) % len(widths)]
        lr, share = 10.0 ** rng.uniform(-3.0, -1.0), rng.uniform()
        config = usual | {"width": min(width, most), "lr": lr * (0.3 if problem.tokens else 1.0),
                          "batches": max(1, round(longest * 0.1 ** (1 - share)))}  # fmt: skip
        found = loop.run(config, lambda *_: None, began + seconds)
        if found is None:
            break
        network, score = found
        at = time.monotonic() - began
        ended.append(Incumbent(at, score if math.isfinite(score) else -math.inf, count(network),
                               network.cpu()))  # fmt: skip
    took = time.monotonic() - began
    return Played(_incumbents(ended), _front(ended), took, len(ended), loop.batches)


# ---- one network -----------------------------------------------------------------------------


def play_one(problem: Problem, train: Part, val: Part, device: str, seed: int,
             seconds: float) -> Played:  # fmt: skip
    """One run of the widest network within the cap, as long as there is time."""
    began = time.monotonic()
    loop, most = PlainLoop(problem, train, val, device), widest(problem, problem.depths[0])
    torch.manual_seed(seed)
    config = first_trial(problem, device) | {"width": most, "seed": seed}
    config["batches"] = loop.longest(config, 0.97 * (began + seconds - time.monotonic()))
    found = loop.run(config, lambda *_: None, math.inf)
    assert found is not None, "without an end it is trained in full"
    network, score = found
    took = time.monotonic() - began
    ended = [Incumbent(took, score, count(network), network.cpu())]
    return Played(ended, ended, took, 1, loop.batches)


# ---- trees -----------------------------------------------------------------------------------


class Trees(nn.Module):
    """A gradient-boosted tree as a network without parameters."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.none = model, nn.Parameter(torch.zeros(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.model.predict_proba(x.cpu().numpy())
        return torch.from_numpy(found).to(x.device)


def play_trees(problem: Problem, train: Part, val: Part, device: str, seed: int,
               seconds: float) -> Played:  # fmt: skip
    """HistGradientBoosting on a table, its settings drawn at random while there is time."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    assert problem.name == "table", f"{problem.name}: trees are for tables"
    began, rng, ended = time.monotonic(), np.random.default_rng(seed), list[Incumbent]()
    kinds = [column < len(CARDINALITIES) for column in range(train[0].shape[1])]
    while time.monotonic() < began + seconds and len(ended) < MAX_TREES:
        first = not ended
        model = HistGradientBoostingClassifier(
            learning_rate=0.1 if first else 10.0 ** rng.uniform(-2, -0.3),
            max_leaf_nodes=31 if first else int(2 ** rng.uniform(2, 6)),
            l2_regularization=0.0 if first else 10.0 ** rng.uniform(-3, 1),
            max_iter=100 if first else int(10.0 ** rng.uniform(1.5, 2.8)),
            categorical_features=kinds, early_stopping=False, random_state=seed,
        )  # fmt: skip
        trees = Trees(model.fit(train[0].numpy(), train[1].numpy()))
        ended.append(Incumbent(time.monotonic() - began, score_of(problem, trees, val), 0, trees))
    took = time.monotonic() - began
    return Played(_incumbents(ended), _front(ended), took, len(ended), 0)


# ---- grow ------------------------------------------------------------------------------------


def play_grow(problem: Problem, train: Part, val: Part, device: str, seed: int, seconds: float,
              eager: bool = False, ladder: type[Ladder] | None = None, **settings: Any
              ) -> Played:  # fmt: skip
    """`esper.grow` with the model as given, and nothing else said.

    `eager`: by a plain loop; `ladder`: proposes the runs.
    """
    import esper
    import esper.growing.run as room
    from esper.growing.search import Search
    from esper.growing.trainers.eager import EagerTrainer
    from esper.kasmina.tracing import carry_weights, finished_model

    began, kept, record = time.monotonic(), list[tuple[float, Any, Any]](), Search._record

    def noting(search: Search, outcome: Any) -> None:
        record(search, outcome)
        row = search.table.rows[outcome.number]
        best = max((one.merit for _, one, _ in kept), default=-math.inf)
        if not row.diverged and row.merit > best:  # what Ctrl-C would return now
            network = search.networks.variants[row.variant].build(row.topology, row.seed)
            carry_weights(network, outcome.weights)
            kept.append((time.monotonic() - began, row, finished_model(network)))

    given = {name: vars(room)[name] for name in ("trainer_for", "Ladder")}
    if eager:
        setattr(room, "trainer_for", lambda task, *_: EagerTrainer(task))  # noqa: B010
    if ladder is not None:
        setattr(room, "Ladder", ladder)  # noqa: B010
    setattr(Search, "_record", noting)  # noqa: B010 (mypy takes no assignment to a method)
    torch.manual_seed(seed)
    try:
        with tempfile.TemporaryDirectory() as folder:
            result = esper.grow(
                # Test is scored afterwards; none given would be cut from train.
                lambda: problem.make(problem.width, problem.depths[0]), train, val, val,
                budget=esper.Budget(minutes=seconds / 60, params=problem.cap), device=device,
                seed=seed, folder=folder, verbose=False, metric="log_loss" if problem.tokens else
                "accuracy", **settings,
            )  # fmt: skip
            took, rows = time.monotonic() - began, result.table().rows
            sign = -1.0 if problem.tokens else 1.0
            front = [Incumbent(took, sign * one.val_score, one.params, one.model) for one in
                     result.frontier]  # fmt: skip
            best = result.best
            pick = Incumbent(took, sign * best.val_score, best.params, best.model)
    finally:
        setattr(Search, "_record", record)  # noqa: B010
        vars(room).update(given)
    found = [Incumbent(at, row.merit, row.params, network) for at, row, network in kept]
    found.append(
        pick
    )  # what the user gets: trained again on train and validation, if there is time
    return Played(found, front, took, len(rows), sum(row.trained for row in rows))


def warm_up(device: str) -> None:
    """Load what both contenders load, so that neither pays for the other."""
    import esper.growing.run  # noqa: F401

    if device.startswith("cuda"):
        torch.zeros(8, 8, device=device) @ torch.zeros(8, 8, device=device)
    subprocess.run([sys.executable, "-c", "import torch, optuna"], check=True)
