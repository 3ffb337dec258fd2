"""The benchmark of the trainers runs to its end, and rejects rows that it does not have."""

import json

import pytest

import benchmark_grow


def test_a_row_is_timed_on_all_sides_and_written(tmp_path, capsys, monkeypatch):
    for name in ("SECONDS", "LOOP_SECONDS", "WARM_SECONDS"):
        monkeypatch.setattr(benchmark_grow, name, 0.2)
    out = tmp_path / "numbers.json"
    arguments = ["--rows", "cpu-mlp", "--repeats", "1", "--out", str(out)]
    assert benchmark_grow.main(arguments) == 0
    (row,) = json.loads(out.read_text())
    assert (row["row"], row["captured"]) == ("cpu-mlp", []), "graphs are for GPUs"
    ((ours,), (eager,)) = row["ours"], row["eager"]
    assert 0 < eager < 5
    printed = capsys.readouterr().out
    assert f"{1e3 * ours:.2f} ms" in printed
    assert f"{eager / ours:.2f}x" in printed


def test_a_row_that_it_does_not_have_is_named(capsys):
    with pytest.raises(SystemExit):
        benchmark_grow.main(["--rows", "gnu"])
    assert "--rows 'gnu': give residual, signal," in capsys.readouterr().err
