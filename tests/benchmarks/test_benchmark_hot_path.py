"""The hot-path benchmark: the stated mix, counted rows and bytes, paired ratios."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import memory_floor
from benchmark_hot_path import BenchmarkHotPath, benchmark
from esper.leyline.payloads import StepPhase
from esper.leyline.stages import SeedStage
from esper.scripts.cli.command import run_command
from hot_path_config import HotPath, first_samples
from hot_path_engine import build_engine
from hot_path_timing import Case, ratios, summarise
from memory_floor import copy_bandwidth, host_links, train_batch_bytes
from plain_loop import PlainLoop
from stage_mix import half_of_slots_live
from timed_engine import StepTimings

SMALL = HotPath(
    task="synthetic", device="cpu", batch_size=8, batches_per_step=2, val_images=12, profile="exact"
)
FLAGS = [
    "--task",
    "synthetic",
    "--device",
    "cpu",
    "--batch-size",
    "4",
    "--batches-per-step",
    "2",
    "--val-images",
    "10",
    "--steps",
    "1",
    "--pairs",
    "2",
    "--warmup",
    "1",
]


@pytest.fixture(autouse=True)
def small_copy(monkeypatch: pytest.MonkeyPatch):
    """Bandwidth is not the point here, nor may a test leave a profile behind."""
    monkeypatch.setitem(memory_floor.COPY_BYTES, "cpu", 1 << 16)
    yield
    torch.use_deterministic_algorithms(False)


def call(*flags: str) -> int:
    return run_command(BenchmarkHotPath, benchmark, flags)


def small_engine(members: int, **changes: Any):
    config = replace(SMALL, **changes)
    return build_engine(config, members, "vmap", config.spec().load(), 10)


# ---- the mix ------------------------------------------------------------------------------


@pytest.mark.parametrize(("members", "slots"), [(2, 3), (6, 3), (16, 3), (4, 6)])
def test_half_of_the_slots_is_live_and_a_third_of_those_in_each_stage(members: int, slots: int):
    stage_ES = half_of_slots_live(members, slots)
    live = members * slots // 2
    assert (stage_ES != SeedStage.DORMANT).sum() == live
    for stage in (SeedStage.TRAINING, SeedStage.BLENDING, SeedStage.HOLDING):
        assert (stage_ES == stage).sum() == live // 3


def test_the_mix_of_a_member_depends_on_no_other():
    assert np.array_equal(half_of_slots_live(16, 3)[:5], half_of_slots_live(5, 3))


def test_every_slot_sees_every_stage():
    stage_ES = half_of_slots_live(6, 3)
    assert all(len(set(stage_ES[:, slot])) == 4 for slot in range(3))


def test_seeds_stand_as_stated_and_stay_there():
    timed = small_engine(4)
    life = timed.engine.env.model.lifecycle
    for _ in range(2):
        assert np.array_equal(life.stage_ES, half_of_slots_live(4, 3))
        for stage, alpha in (("TRAINING", 0.0), ("BLENDING", 0.5), ("HOLDING", 1.0)):
            assert (life.alpha_ES[life.stage_ES == SeedStage[stage]] == alpha).all()
        timed.time_steps(2)
    assert timed.stages_unchanged


def test_any_policy_of_the_grammar_can_be_timed():
    timed = small_engine(2, policy="fixed:norm@0:r0c1")
    timed.time_steps(3)
    stage_ES = timed.engine.env.seed_stage
    assert (stage_ES[:, 1] != SeedStage.DORMANT).all()
    planted = small_engine(2, policy="static-full:norm:r0c1")
    planted.time_steps(3)
    assert planted.stages_unchanged
    assert small_engine(2, policy="wait:2").engine.spec.episode_length >= 20


def test_dormant_slots_stay_empty():
    timed = small_engine(2, policy="wait")
    turn = timed.time_steps(3)
    assert (timed.engine.env.seed_stage == SeedStage.DORMANT).all()
    assert (turn.train_rows, turn.validation_rows) == (3 * 2, 3 * 2)
    assert timed.stages_unchanged


# ---- what is counted ----------------------------------------------------------------------


def test_rows_are_counted_in_closed_form():
    """Member 0 incubates a seed and holds one, member 1 blends one."""
    turn = small_engine(2).time_steps(3)
    assert turn.steps == 3
    assert turn.train_rows == 3 * (2 + 1)
    assert turn.validation_rows == 3 * (2 + 2)


def test_bytes_are_counted_in_closed_form():
    """`digits_impaired`: 1x1 kernels, 2-4-8 channels at 8, 4 and 2 pixels a side."""
    timed = small_engine(2, task="digits_impaired", batch_size=16)
    engine, population = timed.engine, timed.engine.env.model
    links = host_links(population, engine.validator.control.sample)
    sizes = [(64, 128), (128, 32), (32, 64), (64, 16), (16, 32), (32, 8), (8, 10)]
    weights = [2 + 4, 0, 8 + 8, 0, 32 + 16, 0, 80 + 10]
    assert [(link.inputs, link.outputs) for link in links] == sizes
    assert [link.weights for link in links] == weights
    host = sum(weights)
    seed = {c: 9 * c * c + 3 * c for c in (2, 4, 8)}  # convolution, norm, scale

    chain = sum(3 * i + 2 * o for i, o in sizes)
    main_0 = chain - 64 + 5 * 32  # the holding seed behind block 3
    main_1 = chain - 64 + 5 * 64  # the blending seed behind block 2
    behind = chain - (3 * 64 + 2 * 128)
    shadow = 5 * 128 + behind + 5 * 32 - 128  # begins at the seed behind block 1
    rows = 3 * (host + seed[8]) + 3 * (host + seed[4])
    rows += 3 * seed[2] + 2 * (host - weights[0] + seed[8])
    update = 5 * (2 * host + sum(seed.values()))  # SGD: 3 reads, 2 writes
    expected = 16 * (main_0 + main_1 + shadow) * 4 + (rows + update) * 4
    found = train_batch_bytes(population, engine.validator.control.sample, 16, "fp32")
    assert found == expected
    half = train_batch_bytes(population, engine.validator.control.sample, 16, "bf16")
    assert found - half == 16 * (main_0 + main_1 + shadow) * 2


def test_a_copy_has_a_bandwidth():
    assert copy_bandwidth(torch.device("cpu"), 1 << 12) > 0


def test_validation_parts_are_cut():
    data = first_samples(SMALL.spec().load(), 7)
    assert (len(data.val_control), len(data.val_score), len(data.test)) == (7, 7, 200)


# ---- figures ------------------------------------------------------------------------------


def made_turn(seconds: float) -> StepTimings:
    phases = dict.fromkeys(StepPhase, 0.0) | {StepPhase.TRAIN: 0.5 * seconds}
    device = {"train": 0.5 * seconds, "validation": 0.25 * seconds}
    each = (seconds / 2,) * 2
    return StepTimings(seconds, seconds / 4, each, phases, device, train_rows=6, validation_rows=8)


def test_figures_follow_from_the_turns():
    timed, case = small_engine(2), Case(2, "vmap")
    turns = [made_turn(1.0), made_turn(2.0), made_turn(4.0)]
    empty = [made_turn(0.5), made_turn(0.5), made_turn(0.5)]
    found = summarise(case, timed, turns, empty, 20, bytes_per_second=1e6)
    assert found.member_steps_per_second == 2.0
    assert found.member_steps_per_second_quartiles == (1.5, 3.0)
    assert found.cpu_ms_per_member_step == 1000 * 2.0 / 4 / 4
    assert found.cpu_ms_quartiles == (1000 * 1.5 / 16, 1000 * 3.0 / 16)
    assert found.episodes_per_second == 2.0 / 20
    assert found.images_per_second == 2.0 * 2 * 8
    assert found.step_ms_p50 == 1000.0
    assert found.phase_share == pytest.approx({"TRAIN": 0.5, "OTHER": 0.5})
    assert (found.overhead_share, found.empty_step_share) == pytest.approx((0.25, 0.25))
    assert (found.train_rows_per_member, found.validation_rows_per_member) == (1.5, 2.0)
    assert found.rows_per_member == 2.5
    assert found.row_batch_us == pytest.approx(1e6 * 3.5 / (18 * 2))
    floor_seconds = found.train_batch_bytes / 1e6 * 6 * 2
    assert found.floor_ratio == pytest.approx(3.5 / floor_seconds)


def test_ratios_are_taken_within_rounds_of_turns():
    """A busy moment that hits both of a pair does not show."""
    busy = (1.0, 9.0, 1.0)
    turns = {
        Case(1, "vmap"): [made_turn(2 * b) for b in busy],
        Case(1, "loop"): [made_turn(4 * b) for b in busy],
        Case(4, "vmap"): [made_turn(2 * b) for b in busy],
        Case(4, "vmap", "normal"): [made_turn(2.5 * b) for b in busy],
        Case(4, "vmap", empty=True): [made_turn(b) for b in busy],
    }
    found = {r.name: (r.lower, r.median, r.upper, r.pairs) for r in ratios(turns)}
    assert found == {
        "vmap / loop, E=1": (2.0, 2.0, 2.0, 3),
        "telemetry normal / off, E=4, vmap": pytest.approx((0.8, 0.8, 0.8, 3)),
        "E=4 / E=1, vmap": (4.0, 4.0, 4.0, 3),
    }


def test_on_a_cpu_ratios_are_taken_by_cpu_time_too():
    """Waiting for a busy machine is wall time, not CPU time."""
    quiet, waiting = made_turn(1.0), replace(made_turn(8.0), cpu_seconds=0.5)
    turns = {Case(1, "vmap"): [quiet], Case(1, "loop"): [waiting]}
    found = {r.name: r.median for r in ratios(turns, on_cpu=True)}
    assert found == {"vmap / loop, E=1": 8.0, "vmap / loop, E=1, by CPU time": 2.0}


def test_every_size_is_compared_with_every_smaller_one():
    sizes = (1, 4, 16, 32)
    names = [r.name for r in ratios({Case(e, "vmap"): [made_turn(1.0)] for e in sizes})]
    pairs = [(4, 1), (16, 1), (32, 1), (16, 4), (32, 4), (32, 16)]
    assert names == [f"E={large} / E={small}, vmap" for large, small in pairs]


# ---- the command --------------------------------------------------------------------------


def test_small_benchmark_prints_and_writes_all_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "bench.json"
    assert call(*FLAGS, "--envs", "1", "2", "--telemetry", "off", "normal", "--out", str(path)) == 0
    lines = capsys.readouterr().out.splitlines()
    for part in ("device: cpu", "torch: ", "E: 1 2", "T: 20", "compile: no", "GB/s"):
        assert part in lines[0]
    record = json.loads(path.read_text())
    seen = [(r["members"], r["executor"], r["telemetry"]) for r in record["results"]]
    assert seen == [(e, x, t) for e in (1, 2) for x in ("vmap", "loop") for t in ("off", "normal")]
    for result in record["results"]:
        assert sum(result["phase_share"].values()) == pytest.approx(1.0)
        assert result["stages_unchanged"]
        assert (result["batch_size"], result["val_images"], result["steps"]) == (4, 10, 2)
        speeds = ("member_steps_per_second", "cpu_ms_per_member_step", "row_batch_us")
        for name in (*speeds, "floor_ratio", "empty_step_share"):
            assert result[name] > 0
    assert record["kernel_builds"]["built"] == 0
    assert any(line.startswith("kernels of all configurations: not counted") for line in lines)
    assert {ratio["pairs"] for ratio in record["ratios"]} == {2}
    assert len(record["ratios"]) == 2 * (2 * 2 + 2 * 2 + 2)  # by wall and by CPU time
    for ratio in record["ratios"]:
        assert ratio["lower"] <= ratio["median"] <= ratio["upper"]
        assert sum(line.startswith(f"{ratio['name']}: ") for line in lines) == 1


def test_the_plain_loop_trains_the_same_hosts_and_takes_turns():
    timed = small_engine(2, policy="wait")
    population, data = timed.engine.env.model, SMALL.spec().load()
    plain = PlainLoop(population, timed.engine.spec, first_samples(data, 12))
    x = torch.randn(3, *timed.engine.spec.input_shape)
    for member, host in enumerate(plain.hosts):
        torch.testing.assert_close(host(x), population.member(member)(x))
    before = [[p.clone() for p in host.parameters()] for host in plain.hosts]
    updates: list[object] = []
    for optimizer in plain.optimizers:
        optimizer.register_step_post_hook(lambda done, *_: updates.append(done))
    turn = plain.time_steps(3)
    assert (turn.steps, turn.train_rows) == (3, 6)
    assert [updates.count(optimizer) for optimizer in plain.optimizers] == [6, 6]
    for host, old in zip(plain.hosts, before, strict=True):
        assert not any(torch.equal(p, q) for p, q in zip(host.parameters(), old, strict=True))


def test_a_plain_loop_stands_beside_every_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "bench.json"
    flags = ["--plain", "--policy", "wait", "--envs", "1", "2", "--no-empty-steps"]
    assert call(*FLAGS, *flags, "--out", str(out)) == 0
    record, printed = json.loads(out.read_text()), capsys.readouterr().out
    assert {members: len(turns) for members, turns in record["plain_turns"].items()} == {
        "1": 2,
        "2": 2,
    }
    names = {ratio["name"] for ratio in record["ratios"]}
    assert {f"{x} / plain loop, E={e}" for x in ("vmap", "loop") for e in (1, 2)} <= names
    assert printed.count("member-steps/s of ordinary modules in fp32") == 2


def test_random_policy_goes_through_whole_episodes(tmp_path: Path):
    timed = small_engine(2, policy="random", batch_size=2, batches_per_step=1, val_images=4)
    timed.engine.step = timed.engine.spec.episode_length - 1
    assert timed.time_steps(3).steps == 3
    assert (timed.engine.round, timed.engine.step) == (1, 2)


@pytest.mark.parametrize(
    "flags",
    [
        ["--pairs", "0"],
        ["--envs", "0"],
        ["--envs", "2", "2"],
        ["--device", "abacus"],
        ["--task", "digits_impared"],
        ["--val-images", "100000"],
        ["--policy", "mixed"],
        ["--policy", "fixed:nrom"],
        ["--policy", "static-final:random"],
        ["--plain", "--policy", "mix"],
    ],
)
def test_bad_input_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
):
    assert call(*flags, "--out", str(tmp_path / "bench.json")) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert flags[0].removeprefix("--") in printed.err
    assert (len(printed.err.splitlines()), printed.out) == (1, "")
