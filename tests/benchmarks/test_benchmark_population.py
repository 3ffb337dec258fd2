"""The population benchmark: both executors, a third of the slots in each stage."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmark_population import BenchmarkPopulation, benchmark
from esper.kasmina import CNNHost, Population
from esper.leyline.stages import SeedStage
from esper.scripts.cli.command import run_command
from esper.tolaria.stage_mix import all_slots_live, set_seed_stages
from population_timing import BLUEPRINT, SLOTS


def call(*flags: str) -> int:
    return run_command(BenchmarkPopulation, benchmark, flags)


@pytest.mark.parametrize("members", [1, 4])
def test_a_third_of_the_slots_is_in_each_stage(members: int):
    population = Population(CNNHost, SLOTS, (BLUEPRINT,), members)
    set_seed_stages(population, BLUEPRINT, all_slots_live(members, len(SLOTS)))
    stage_ES, alpha_ES = population.lifecycle.stage_ES, population.lifecycle.alpha_ES
    for stage, alpha in (("TRAINING", 0.0), ("BLENDING", 0.5), ("HOLDING", 1.0)):
        there = stage_ES == SeedStage[stage]
        assert there.sum() == members
        assert (alpha_ES[there] == alpha).all()


def test_small_benchmark_prints_and_writes_every_timing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "bench.json"
    small = "--digits-members 1 2 --image-members 1 --pairs 2 --repeats 1 --batch-size 4"
    assert call(*small.split(), "--out", str(path)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(part in lines[0] for part in ("device: cpu", "torch: ", "threads: "))
    record = json.loads(path.read_text())
    seen = [(t["members"], t["executor"]) for t in record["timings"]]
    assert seen == [(e, x) for e in (1, 2, 1) for x in ("vmap", "loop")]
    assert len(lines) == 2 + len(seen) + 1
    for timing in record["timings"]:
        assert timing["batch_ms"] > 0
        assert np.isclose(timing["member_ms"] * timing["members"], timing["batch_ms"])


@pytest.mark.parametrize(
    "flags", [["--pairs", "0"], ["--digits-members", "0"], ["--device", "abacus"]]
)
def test_bad_input_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
):
    assert call(*flags, "--out", str(tmp_path / "bench.json")) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert flags[0].removeprefix("--") in printed.err
    assert (len(printed.err.splitlines()), printed.out) == (1, "")
