"""lab/scripts/try_training_arms.py: a line for each arm, at equal seconds, and a table."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import arms_training
import try_training_arms
from arms_training import Bench, Held, Pace, Run, loss_of
from duel_contenders import count
from duel_problems import PROBLEMS
from esper.growing.runs import Recipe
from esper.growing.trainers.job import Job
from esper.growing.trainers.kind import Kind
from esper.growing.trainers.program import Program

NOWHERE = Path("nowhere")


@pytest.fixture
def no_timing(monkeypatch):
    """Runs are of the fewest batches."""
    monkeypatch.setattr(Bench, "_measure", lambda *_: Pace(Kind(), 0.0, 1.0))


def bench_of(name: str, folder: Path = NOWHERE) -> Bench:
    problem = PROBLEMS[name]
    return Bench(problem, problem.parts(folder, 10), 10, 0.0, torch.device("cpu"), {})


def call(*flags: object) -> int:
    return try_training_arms.main([str(flag) for flag in flags])


def test_every_arm_is_a_line_and_is_not_trained_again(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(arms_training, "widest", lambda *_: 3)
    flags = ("--problems", "digits", "--seconds", 0.05, "--seeds", 10, "--device", "cpu", "--out",
             tmp_path)  # fmt: skip
    assert call(*flags) == 0
    rows = [json.loads(line) for line in (tmp_path / "arms.jsonl").read_text().splitlines()]
    assert [row["arm"] for row in rows] == list(try_training_arms.ARMS)
    size = count(PROBLEMS["digits"].make(3, 1))
    for row in rows:
        assert row["params"] == size, "a wider teacher is not what is scored"
        assert 0.0 <= row["test"] <= 1.0
        assert row["batches"] >= 20
    said = capsys.readouterr().out
    assert said.endswith((tmp_path / "arms.md").read_text())
    assert "| digits, 0.05 s, cpu: plain | 1 |" in said
    assert call(*flags) == 0
    assert len((tmp_path / "arms.jsonl").read_text().splitlines()) == len(rows)


def test_differences_are_to_plain_with_the_same_seed():
    def row(arm: str, seed: int, test: float, last: float) -> dict:
        return {"problem": "digits", "arm": arm, "seed": seed, "seconds": 2.0, "device": "cpu",
                "test": test, "val": test, "last_test": last, "batches": 10,
                "took": 2.0}  # fmt: skip

    rows = [row("plain", 10, 0.5, 0.5), row("ema", 10, 0.6, 0.58), row("plain", 11, 0.7, 0.7),
            row("ema", 11, 0.8, 0.78), row("ema", 12, 0.1, 0.1)]  # fmt: skip
    ema = list(try_training_arms.lines(rows))[-1]
    assert ema.startswith("| digits, 2 s, cpu: ema | 2 | 0.7000 | +0.1000 (+0.1000 to +0.1000) |")
    assert "| +0.0200 (+0.0200 to +0.0200) | 10 | 2.0 |" in ema


def test_seeds_of_the_duel_are_refused(capsys):
    with pytest.raises(SystemExit):
        call("--seeds", 200)
    assert "--seeds 200: tuning seeds are 10 to 99" in capsys.readouterr().err


class Replays:
    """Stands in for a captured graph: runs the work again."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.replay = work


def weights(bench: Bench, captured: bool) -> list[torch.Tensor]:
    build = partial(bench.problem.make, 4, 1)
    torch.manual_seed(0)
    network = build()
    job = Job(0, lambda: network, bench.recipe(6), 3)
    program = Program(job, bench.task(None, taught=False), Kind(captured=True))
    run = Run(program, Replays if captured else None, half_life=2.0)
    while program.trained < 6:
        run.step()
    assert run.average is not None
    return [*run.average.network(run.close()).parameters(), *network.parameters()]


def test_replayed_batches_and_averages_are_those_of_a_plain_loop():
    bench = bench_of("digits")
    eager, replayed = weights(bench, False), weights(bench, True)
    assert all(map(torch.equal, eager, replayed))
    half = len(eager) // 2
    assert not any(map(torch.equal, eager[:half], eager[half:])), "the average lags behind"


def test_a_held_rate_is_the_usual_one_before():
    usual = Recipe("adamw", 1.0, 0.0, 1.0, 32, 100)
    kept = Held("adamw", 1.0, 0.0, 1.0, 32, 100, since=0.75)
    low = Held("adamw", 1.0, 0.0, 1.0, 32, 100, since=0.5, share=0.3)
    assert [kept.rate(n) for n in range(76)] == [usual.rate(n) for n in range(76)]
    assert kept.rate(99) == usual.rate(75) > usual.rate(99)
    assert [low.rate(49), low.rate(50), low.rate(99)] == [usual.rate(49), 0.3, 0.3]


def test_a_student_learns_from_labels_and_its_teacher_by_halves():
    student, targets = torch.tensor([[2.0, 0.0]]), torch.tensor([0])
    plain = loss_of(student, targets, 0.0)
    agreeing = loss_of(torch.cat([student, student], -1), targets, 4.0)
    other = loss_of(torch.cat([student, -student], -1), targets, 4.0)
    assert agreeing == pytest.approx(plain / 2)
    soft, wanted = (torch.softmax(one / 4.0, -1) for one in (student, -student))
    divergence = (wanted * (wanted / soft).log()).sum()
    assert other == pytest.approx(plain / 2 + 8.0 * divergence)


@pytest.mark.parametrize(("name", "inputs"), [("digits", 1), ("table", 2)])
def test_a_teacher_is_asked_beforehand_where_samples_do_not_change(
    name, inputs, no_timing, monkeypatch
):
    bench, teacher, seen = bench_of(name), PROBLEMS[name].make(3, 1), []
    before = copy.deepcopy(teacher.state_dict())
    task = Bench.task
    monkeypatch.setattr(Bench, "task", lambda *given: seen.append(task(*given)) or seen[-1])
    found = bench.train(2, 0, 0.0, teacher=teacher)
    assert len(seen[0].train.values) == inputs
    assert count(found.network) < count(teacher)
    assert not teacher.training
    assert all(map(torch.equal, before.values(), teacher.state_dict().values()))


def test_a_mean_of_weights_gets_statistics_of_its_own(tmp_path, no_timing):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(5000, 1, 40)).astype(np.float32), rng.integers(0, 10, 5000)
    np.savez(tmp_path / "mnist1d.npz", x=x, y=y)
    found = bench_of("mnist1d", tmp_path).train(2, 0, 0.0, swa=True, since=0.0)
    mean, last = (
        next(part for part in network.modules() if isinstance(part, nn.BatchNorm1d))
        for network in (found.network, found.last)
    )
    assert mean.num_batches_tracked == 20
    assert mean.running_mean is not None
    assert not torch.equal(mean.weight, last.weight)
    assert mean.running_var == pytest.approx(last.running_var, rel=0.5)
    assert not torch.equal(mean.running_mean, last.running_mean)
