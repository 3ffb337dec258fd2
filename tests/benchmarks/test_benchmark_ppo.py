"""The PPO benchmark runs, and rejects invalid sizes."""

import json
import shutil

import pytest
import torch

from benchmark_ppo import BenchmarkPPO, benchmark
from esper.leyline import EsperError

SMALL = {"members": 4, "slots": 2, "steps": 3, "epochs": 1, "rounds": 2, "threads": 1}


@pytest.fixture(autouse=True)
def threads():
    kept = torch.get_num_threads()
    yield
    torch.set_num_threads(kept)


def test_it_times_rounds_and_writes_the_numbers(tmp_path, capsys):
    out = tmp_path / "deep" / "numbers.json"
    benchmark(BenchmarkPPO(**SMALL, out=out))
    record = json.loads(out.read_text())
    assert len(record["act_seconds"]) == len(record["update_seconds"]) == 2
    assert all(seconds > 0 for seconds in record["act_seconds"] + record["update_seconds"])
    printed = capsys.readouterr().out
    assert set(record["first_round"]) == {"act_seconds", "update_seconds"}
    assert (record["act_graphs"], record["compiled"]) == ({"how": "eager, without graphs"}, False)
    assert "update: eager" in printed
    assert record["compile_seconds"] is None
    assert record["kernel_builds"]["built"] == 0
    assert "kernels are built for CUDA devices" in printed
    assert "torch.compile not used" in printed
    assert "both" in printed
    assert "n=2" in printed


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_a_compiled_update_is_told_apart(tmp_path, capsys):
    out = tmp_path / "numbers.json"
    benchmark(BenchmarkPPO(**SMALL, compile=True, act_graphs=False, out=out))
    record = json.loads(out.read_text())
    assert record["compiled"]
    steady = max(record["update_seconds"])
    assert record["first_round"]["update_seconds"] > 3 * steady, "compiling is not in the rounds"
    assert 0 < record["compile_seconds"] <= record["first_round"]["update_seconds"]
    printed = capsys.readouterr().out
    assert "update: compiled" in printed
    assert f"torch.compile {record['compile_seconds']:.1f} s" in printed


def test_sizes_that_cannot_be_timed_are_refused():
    with pytest.raises(EsperError, match="--slots 0: must be 1 or more"):
        benchmark(BenchmarkPPO(slots=0))
