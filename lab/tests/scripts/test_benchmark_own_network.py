"""The own-network benchmark: every contender trains, targets are ratios within a round."""

import json
from pathlib import Path

import pytest
import torch

from benchmark_own_network import BenchmarkOwnNetwork, _Bench, benchmark
from esper.scripts.cli.command import run_command
from own_network_models import ResNet, ResNetShape
from own_network_timing import Case, Grown, Plain, flops_ratio

CPU = torch.device("cpu")
TINY = ResNetShape((4,), 1)


def tiny_case() -> Case:
    x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    return Case("tiny", lambda: ResNet(TINY), "conv_light", x, torch.tensor([0, 1, 2, 3]))


def call(*flags: str) -> int:
    return run_command(BenchmarkOwnNetwork, benchmark, flags)


def test_a_member_without_seeds_does_the_work_of_the_plain_network():
    """From the same weights: the same weights after two batches."""
    case = tiny_case()
    grown, plain = Grown(case, CPU, "loop"), Plain(case, CPU, "eager")
    plain.models[0].load_state_dict(grown.population.member(0).host.state_dict())
    for contender in (grown, plain):
        contender.train(2)
    ours = grown.population.member(0).host.state_dict()
    for name, theirs in plain.models[0].state_dict().items():
        torch.testing.assert_close(ours[name], theirs, rtol=1e-4, atol=1e-5, msg=name)


def test_a_seed_costs_flops_and_less_than_a_second_network():
    assert 1.0 < flops_ratio(tiny_case()) < 2.5


def test_ratios_are_taken_within_a_round(capsys: pytest.CaptureFixture[str]):
    bench = _Bench(BenchmarkOwnNetwork(), CPU)
    bench.times["case"] = {
        "a": [(2.0, 0), (30.0, 0), (8.0, 0)],
        "b": [(1.0, 0), (10.0, 0), (4.0, 0)],
    }
    bench._target("a over b", "case", "a", "b", 2.0)
    (target,) = bench.targets
    assert (target.ratio.median, target.met) == (2.0, True)
    assert "a over b: 2.00 (2.00 to 2.50), target at most 2.0: met" in capsys.readouterr().out
    bench._target("b over a", "case", "b", "a", 0.6, at_least=True)
    assert not bench.targets[-1].met


@pytest.mark.slow
def test_quick_run_prints_and_writes_every_contender(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "bench.json"
    assert call("--quick", "--out", str(path)) == 0
    record = json.loads(path.read_text())
    assert list(record["times_ms"]) == ["ResNet-20", "ResNet-18", "GPT", "ResNet-20, E=2"]
    assert len(record["targets"]) == 6
    assert "left out" not in capsys.readouterr().out


@pytest.mark.parametrize("flags", [["--rounds", "0"], ["--members", "0"], ["--device", "abacus"]])
def test_bad_input_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
):
    assert call(*flags, "--out", str(tmp_path / "bench.json")) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert flags[0].removeprefix("--") in printed.err
    assert (len(printed.err.splitlines()), printed.out) == (1, "")
