"""The duel: parts that contenders share, what is written down, and a real pair."""

from __future__ import annotations

import json
import math
from itertools import islice
from pathlib import Path

import pytest
import torch

import duel
from duel_contenders import count, widest
from duel_ladders import OnceLadder, RandomLadder
from duel_problems import PROBLEMS
from esper.growing.ladder import Ladder
from esper.growing.runs import Table
from search_support import RATES, RECIPE, ended, ladder, quality

NOWHERE = Path("nowhere")


@pytest.mark.parametrize("name", ["digits", "table"])
def test_a_pair_has_the_same_parts_and_another_seed_others(name):
    problem = PROBLEMS[name]
    one, again, other = (problem.parts(NOWHERE, seed) for seed in (200, 200, 201))
    assert [len(y) for _, y in one] == list(problem.samples)
    for (x, y), (x2, y2) in zip(one, again, strict=True):
        assert torch.equal(x, x2)
        assert torch.equal(y, y2)
    assert not torch.equal(one[0][0], other[0][0])


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_given_model_and_the_widest_are_within_the_cap(name):
    problem = PROBLEMS[name]
    assert count(problem.make(problem.width, problem.depths[0])) < problem.cap / 2
    for depth in problem.depths:
        width = widest(problem, depth)
        assert count(problem.make(width, depth)) <= problem.cap
        assert count(problem.make(width + 2, depth)) > problem.cap


def test_at_random_networks_of_every_kind_are_trained_in_full():
    free = {"augments": ("none", "flip"), "smoothings": (0.0, 0.1)}
    made = ladder(kind=RandomLadder, timed=True, space=free)
    first, rows = made.first(), list(islice(made._proposals(1, []), 90))
    assert {one.recipe.batches for one in (first, *rows)} == {RECIPE.batches}
    drawn = {(one.recipe.lr, one.recipe.augment, one.recipe.label_smoothing) for one in rows}
    assert len(drawn) == len(RATES) * 2 * 2
    assert len({one.variant for one in rows}) > 2
    assert any(any(one.topology) for one in rows)
    assert all(one.parent is one.start is None for one in rows)
    table = ended(Table(), [made.sized(first)], quality)
    chosen, _ = made.next_rung(table, 1.0, lambda one: 0.2 * one.cost)
    assert 0.5 < sum(0.2 * one.cost for one in chosen) <= 1.0, "all that is left, in one rung"
    assert not list(made.meanwhile(table))
    assert not made.finale(table, lambda _: 10**6, 1)


def test_once_trains_no_network_again_from_other_weights():
    for kind, expected in ((Ladder, True), (OnceLadder, False)):
        made = ladder(kind=kind, timed=True)
        table = ended(Table(), [made.sized(made.first())], quality)
        for _ in range(3):
            chosen, _ = made.next_rung(table, 1.0, lambda one: 0.01 * one.cost)
            table = ended(table, chosen, quality)
        seeds = {row.seed for row in table.rows}
        assert (len(seeds) > 1) is expected, kind


def line(contender: str, seed: int, test: float, *incumbents: tuple[float, float]) -> dict:
    rows = [{"at": at, "test": score} for at, score in incumbents]
    return {"problem": "digits", "contender": contender, "seed": seed, "seconds": 60.0,
            "device": "cpu", "test": test, "volume": test / 2, "incumbents": rows}  # fmt: skip


def test_grow_is_compared_with_the_contender_of_the_same_pair():
    rows = [
        line("grow", 1, 0.9, (10.0, 0.7), (15.0, 0.85), (50.0, 0.9)),
        line("grow", 2, 0.8, (10.0, 0.8)),
        line("optuna", 1, 0.8),
        line("grow", 3, 0.5),
    ]
    (both,) = duel.pairs(rows, "optuna").values()
    assert [(a["seed"], b["seed"]) for a, b in both] == [(1, 1)]
    assert duel.reached(rows[0], 0.8) == 15.0
    assert duel.reached(rows[1], 0.81) == math.inf
    said = list(duel.lines(rows))[2]
    assert said.startswith("| digits, 60 s, cpu | 1 | 0.9000 | 0.8000 | +0.1000 (+0.1000 to ")
    assert said.endswith(" | 0.25 | +0.0500 |")
    assert (
        "All problems: +0.1000 (+0.1000 to +0.1000); median share of time over all 1 pairs 0.25"
        in ("\n".join(duel.lines(rows)))
    )
    low, high = duel.overall([[0.1, 0.1], [0.3, 0.3]])
    assert (low, high) == pytest.approx((0.1, 0.3)), "over problems, not only over seeds"
    assert duel.interval([0.0, 1.0] * 50)[0] == pytest.approx(0.4, abs=0.02)


def test_a_pair_is_played_and_not_played_again(tmp_path, capsys):
    words = ["--problems", "digits", "--seeds", "5", "--seconds", "12", "--device", "cpu",
             "--out", str(tmp_path)]  # fmt: skip
    assert duel.main(words) == 0
    rows = [json.loads(text) for text in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    assert [row["contender"] for row in rows] == ["grow", "optuna"]
    for row in rows:
        assert row["params"] <= PROBLEMS["digits"].cap
        times = [one["at"] for one in row["incumbents"]]
        assert times == sorted(times)
    assert rows[0]["test"] > 0.2
    assert 0 < rows[0]["volume"] < 1
    assert "| digits, 12 s, cpu | 1 |" in capsys.readouterr().out
    assert duel.main(words) == 0
    assert len((tmp_path / "pairs.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("contender", "problem"),
    [("static", "digits"), ("eager", "digits"), ("random", "digits"), ("trees", "table")],
)
def test_what_one_would_do_instead_is_played_under_the_same_cap(contender, problem, tmp_path):
    words = ["--problems", problem, "--seeds", "5", "--seconds", "6", "--device", "cpu",
             "--contenders", contender, "--out", str(tmp_path)]  # fmt: skip
    assert duel.main(words) == 0
    (row,) = (json.loads(text) for text in (tmp_path / "pairs.jsonl").read_text().splitlines())
    assert row["params"] <= PROBLEMS[problem].cap
    assert row["runs"] >= 1
    assert row["volume"] >= 0
