"""A resume continues the same search: whatever would change results is refused in one line."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import esper
from esper.growing.folder import GrowFolder, read_table
from esper.growing.run import GrowRun
from esper.growing.trainers.program import Program
from grow_support import every_batch, runs_of, same_weights
from support import refused

X = torch.randn(90, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(90) % 3


def mlp(hidden: int = 5, seed: int = 0, kind: type[nn.Module] = nn.ReLU) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(4, hidden), kind(), nn.Linear(hidden, hidden), nn.ReLU(),
            nn.Linear(hidden, 3),
        )  # fmt: skip


GIVEN: dict[str, Any] = {
    "model": mlp(),
    "train": (X, Y),
    "budget": esper.Budget(host_runs=1),
    "epochs": 2,
    "widths": (0.5,),
    "class_weights": (1.0, 2.0, 1.0),
    "label_smoothing": 0.1,
    "sample_weights": torch.ones(90),
}


def grow(folder: Path, **changes: Any) -> esper.GrowResult:
    given = GIVEN | {"folder": folder, "verbose": False, "device": "cpu"} | changes
    return esper.grow(given.pop("model"), given.pop("train"), **given)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> esper.GrowResult:
    return grow(tmp_path_factory.mktemp("whole"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != "lock"}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"train": (X + 1, Y)}, "data"),
        ({"train": (X, (Y + 1) % 3)}, "data"),
        ({"sample_weights": torch.arange(90) + 1.0}, "data"),
        ({"model": mlp(6)}, "model"),
        ({"model": mlp(kind=nn.GELU)}, "model"),
        ({"model": mlp(seed=1)}, "starting weights"),
        ({"model": mlp}, "starting weights"),
        ({"class_weights": None}, "class_weights"),
        ({"class_weights": (1.0, 2.0, 1.5)}, "class_weights"),
        ({"label_smoothing": 0.0}, "label_smoothing"),
        ({"batch_size": 10}, "batch_size"),
        ({"epochs": 3}, "epochs"),
        ({"lr": 0.02}, "lr"),
        ({"optimizer": "sgd"}, "optimizer"),
        ({"weight_decay": 0.3}, "weight_decay"),
        ({"clip": None}, "clip"),
        ({"blueprints": ("norm",)}, "blueprints"),
        ({"slots": 1}, "slots"),
        ({"widths": ()}, "widths"),
        ({"widths": "auto"}, "widths"),
        ({"widths": (0.5, 2.0)}, "widths"),
        ({"seed": 1}, "seed"),
        ({"metric": "balanced_accuracy"}, "metric"),
        ({"amp": True}, "amp"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_what_would_change_results_is_refused_in_one_line(whole, tmp_path, changes, named):
    before = contents(whole.folder)
    text = refused(lambda: grow(tmp_path, resume=whole.folder, **changes))
    assert text.startswith(f"resume {whole.folder}: it was started with other ")
    assert f"with other {named} (" in text
    assert text.endswith("give the same, or start a new run")
    after = contents(whole.folder)
    after = {n: after[n] for n in after if not n.endswith("sessions.json")}
    assert all(before[name] == content for name, content in after.items())
    assert not list(tmp_path.iterdir()), "no folder is left behind"


def test_another_loss_is_refused(tmp_path):
    numbers = {"train": (X, X[:, :3]), "class_weights": None, "label_smoothing": 0.0, "widths": ()}
    first = grow(tmp_path, **numbers, loss="mse")
    text = refused(lambda: grow(tmp_path, **numbers, loss="mae", resume=first.folder))
    assert "with other loss (mse, now mae)" in text


def absolute(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).abs().mean()


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().mean()


def stepped(model: nn.Module, batch: Any) -> Tensor:
    return absolute(model(batch[0]), batch[1])


def slower(optimizer: Any, batches: int, factor: float = 0.5) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, 5, factor)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"loss": absolute}, {"loss": squared}),
        ({"metric": lambda o, t: float((o - t).abs().mean())},
         {"metric": lambda o, t: float((o - t).abs().max())}),
        ({"train_step": stepped}, {"train_step": lambda m, b: 2 * absolute(m(b[0]), b[1])}),
        ({"optimizer": partial(torch.optim.SGD, lr=0.01)},
         {"optimizer": partial(torch.optim.SGD, lr=0.02)}),
        ({"scheduler": slower}, {"scheduler": partial(slower, factor=0.1)}),
    ],
    ids=lambda given: next(iter(given)),
)  # fmt: skip
def test_another_function_under_the_same_name_is_refused(tmp_path, one, other):
    (name,), (function,) = one, other.values()
    function.__name__ = getattr(one[name], "__name__", "partial")
    numbers = {"train": (X, X[:, :3]), "class_weights": None, "label_smoothing": "auto",
               "widths": (), "sample_weights": None}  # fmt: skip
    first = grow(tmp_path, **numbers, **one)
    text = refused(lambda: grow(tmp_path, **numbers, **other, resume=first.folder))
    assert f"with other {name} (code " in text
    assert str(grow(tmp_path, **numbers, **one, resume=first.folder)) == str(first)


class Counting:
    """A metric that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, outputs: Tensor, targets: Tensor) -> float:
        self.calls += 1
        return float((outputs - targets).abs().mean())


def test_what_functions_count_while_speed_is_measured_is_no_other_code(tmp_path, monkeypatch):
    numbers = {"train": (X, X[:, :3]), "class_weights": None, "label_smoothing": "auto",
               "widths": (), "sample_weights": None,
               "budget": esper.Budget(host_runs=1, minutes=1)}  # fmt: skip
    first = grow(tmp_path, **numbers, metric=Counting())
    probe = GrowRun._probe

    def slower(run: GrowRun) -> float:
        run.settings.metric.calls += 5
        return probe(run)

    monkeypatch.setattr(GrowRun, "_probe", slower)
    again = grow(tmp_path, **numbers, metric=Counting(), resume=first.folder)
    assert again.best.val_score == first.best.val_score


def test_another_python_is_named_where_code_differs(whole, monkeypatch):
    given = dict(esper.GrowResult.load(whole.folder).info.versions)
    monkeypatch.setattr("esper.growing.run.versions", lambda: ((*given.items(),
                                                                ("python", "3.99.1"))))  # fmt: skip
    text = refused(lambda: grow(whole.folder.parent, resume=whole.folder, seed=1))
    assert text.endswith(f"give the same under Python {given['python']}, or start a new run")


def test_the_same_settings_train_nothing_again(whole, monkeypatch):
    monkeypatch.setattr(Program, "run_eager", lambda self: pytest.fail("trained"))
    again = grow(whole.folder.parent, resume=whole.folder, widths=[0.5])
    assert same_weights(again, whole)
    assert str(again) == str(whole)


def test_a_larger_budget_is_another_session_of_the_same_search(whole, tmp_path):
    small = grow(tmp_path, model=mlp(), widths=(), budget=esper.Budget(host_runs=1))
    more = grow(tmp_path, resume=small.folder, widths=(), budget=esper.Budget(host_runs=4))
    at_once = grow(tmp_path, widths=(), budget=esper.Budget(host_runs=4))
    assert len(runs_of(more.folder)) > 1
    assert runs_of(more.folder)[0].score == runs_of(at_once.folder)[0].score


def test_two_processes_cannot_share_a_run(whole):
    held = GrowFolder.open(whole.folder)
    try:
        assert "is in use" in refused(lambda: grow(whole.folder.parent, resume=whole.folder))
    finally:
        held.close()


def test_ctrl_c_returns_the_best_so_far_and_the_run_resumes_bit_for_bit(tmp_path, monkeypatch):
    settings = {"budget": esper.Budget(host_runs=4), "epochs": 4, "widths": ()}
    whole = grow(tmp_path / "whole", **settings)
    every_batch(monkeypatch)
    train, batches = Program.run_eager, list[tuple[int, int]]()

    def interrupted(self: Program) -> None:
        train(self)
        batches.append((self.job.number, self.trained))
        if batches[-1] == (1, 3):
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Program, "run_eager", interrupted)
    early = grow(tmp_path / "early", **settings)
    assert not early.record.complete
    assert early.model(X).shape == (90, 3)
    assert [row.status for row in read_table(early.folder).rows][:2] == ["finished", "cut"]
    again = grow(tmp_path, resume=early.folder, **settings)
    assert again.record.complete
    assert len(set(batches)) == len(batches), "no batch twice"
    assert runs_of(again.folder) == runs_of(whole.folder)
    assert same_weights(again, whole)


def test_a_damaged_checkpoint_is_one_line(tmp_path, monkeypatch):
    every_batch(monkeypatch)
    train = Program.run_eager

    def interrupted(self: Program) -> None:
        train(self)
        if self.trained == 1:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Program, "run_eager", interrupted)
        early = grow(tmp_path)
    (state,) = (early.folder / "checkpoints").iterdir()
    state.write_bytes(state.read_bytes()[:-7])
    text = refused(lambda: grow(tmp_path, resume=early.folder))
    assert str(state) in text
    assert "remove the file" in text
    state.unlink()
    assert grow(tmp_path, resume=early.folder).record.complete


def test_smaller_batches_on_a_slow_machine_are_those_of_a_resume_on_a_fast_one(
    tmp_path, monkeypatch
):
    given = {"budget": esper.Budget(host_runs=1, minutes=1), "sample_weights": None,
             "class_weights": None}  # fmt: skip
    monkeypatch.setattr("esper.growing.run.fewer_samples", lambda size, batches: size // 2)
    slow = grow(tmp_path, **given)
    before = slow.table().rows
    assert before[0].recipe.batch_size == 8
    monkeypatch.setattr("esper.growing.run.fewer_samples", lambda size, batches: size)
    more = grow(tmp_path, **given | {"budget": esper.Budget(host_runs=9, minutes=1),
                                     "resume": slow.folder})  # fmt: skip
    assert more.table().rows[: len(before)] != more.table().rows
    assert more.info.batch_size == 8
