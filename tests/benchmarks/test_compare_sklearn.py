"""The comparison with tuned models of scikit-learn: paired figures, kept results."""

from __future__ import annotations

import pytest

from compare_sklearn import CompareSklearn, Outcome, compare, read_outcomes, table


def outcomes(contender, scores):
    return [
        Outcome("wine", split, contender, score, 1.0, 5, 3) for split, score in enumerate(scores)
    ]


def test_the_difference_is_paired():
    scores = [0.9 + split / 100 for split in range(5)]
    found = {
        "grown": outcomes("grown", scores),
        "mlp": outcomes("mlp", [score - 0.01 for score in scores]),
    }
    (row,) = table({"wine": found})[2:]
    assert "+0.0100 (+0.0100 to +0.0100)" in row
    assert "5 / 0 / 0" in row
    assert "0.9200 ± 0.0158" in row


@pytest.mark.parametrize(("contenders", "seconds"), [(("mlp", "trees"), 0.1), (("grown",), 10.0)])
def test_results_are_kept_and_not_run_again(tmp_path, capsys, contenders, seconds):
    out = tmp_path / "out.jsonl"
    config = CompareSklearn(("wine",), contenders, splits=1, seconds=seconds, cores=1, out=out)
    compare(config)
    kept = read_outcomes(out)
    assert set(kept) == {("wine", 200, contender) for contender in contenders}
    assert min(outcome.score for outcome in kept.values()) > 0.8
    before = out.read_text()
    compare(config)
    assert out.read_text() == before
    assert capsys.readouterr().out.count("| wine |") == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sets": ("whine",)}, "data set 'whine'"),
        ({"contenders": ("svm",)}, "contender 'svm'"),
        ({"splits": 0}, "--splits 0"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        compare(CompareSklearn(out=tmp_path / "out.jsonl", **options))
