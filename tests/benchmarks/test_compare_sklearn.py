"""The comparison with scikit-learn's MLPs: equal sizes, paired figures, kept results."""

from __future__ import annotations

import pytest

import esper.sklearn
from compare_sklearn import CompareSklearn, Outcome, compare, hidden_units, read_outcomes, table


def test_both_have_the_same_number_of_parameters_but_for_one_unit():
    for params in (50, 547, 4_810):
        hidden = hidden_units(params, 13, 3, binary=False)
        assert abs((13 + 1) * hidden + (hidden + 1) * 3 - params) <= 14 + 3


def test_the_difference_is_paired():
    outcomes = [Outcome("wine", split, 0.9 + split / 100, 0.89 + split / 100, 5, 5, 1, 1)
                for split in range(5)]  # fmt: skip
    (row,) = table({"wine": outcomes})[2:]
    assert "+0.0100 (+0.0100 to +0.0100)" in row
    assert "5 / 0 / 0" in row


def test_results_are_kept_and_not_run_again(tmp_path, monkeypatch, capsys):
    quick = {"TINY": 10**6, "TINY_RUNS": 1.0, "EPOCHS": (1, 1)}
    for name, value in quick.items():
        monkeypatch.setattr(esper.sklearn, name, value)
    config = CompareSklearn(sets=("wine",), splits=1, iterations=2, out=tmp_path / "out.jsonl")
    compare(config)
    kept = read_outcomes(config.out)
    assert set(kept) == {("wine", 0)}
    assert abs(kept["wine", 0].mlp_params - kept["wine", 0].grown_params) <= 17
    before = config.out.read_text()
    compare(config)
    assert config.out.read_text() == before
    assert capsys.readouterr().out.count("| wine |") == 2


def test_an_unknown_data_set_is_one_line(tmp_path):
    with pytest.raises(ValueError, match="data set 'whine'"):
        compare(CompareSklearn(sets=("whine",), out=tmp_path / "out.jsonl"))
