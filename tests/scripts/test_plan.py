"""Plans are fast for any task: small probes first, scaled to a whole step."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine_support import small_task
from esper.scripts.train import main
from esper.scripts.train.plan import _small_trainer, _update_seconds
from esper.scripts.train.plan_probe import (
    MIN_GROWTH,
    Sizes,
    StepTime,
    full_sizes,
    larger_sizes,
    mean_step,
    probe_steps,
    smallest_sizes,
)
from esper.simic.training.config import PopulationConfig, preset
from esper.tolaria.engine_config import EngineConfig
from esper.tolaria.timed_engine import StepTimings

CPU, GPU = torch.device("cpu"), torch.device("cuda")
WHOLE = st.builds(
    Sizes,
    members=st.integers(1, 500),
    batch_size=st.integers(1, 600),
    batches=st.integers(1, 50),
    control=st.integers(1, 4000),
    score=st.integers(1, 4000),
)
NAMES = ("members", "batch_size", "batches", "control", "score")


@given(WHOLE, st.lists(st.floats(0, 1e4), max_size=6))
def test_probes_grow_by_no_more_than_there_is_time_for_and_never_beyond_the_run(whole, factors):
    sizes = smallest_sizes(whole, CPU)
    for factor in factors:
        larger = larger_sizes(sizes, whole, factor)
        assert all(getattr(sizes, n) <= getattr(larger, n) <= getattr(whole, n) for n in NAMES)
        assert larger.trained <= max(1.0, factor) * sizes.trained * (1 + 1e-9)
        if factor < MIN_GROWTH:
            assert larger == sizes
        sizes = larger


@given(WHOLE)
def test_with_time_enough_the_whole_run_is_measured(whole):
    sizes = smallest_sizes(whole, CPU)
    enough = whole.trained / sizes.trained
    assert larger_sizes(sizes, whole, 1.01 * max(MIN_GROWTH, enough)).trained == whole.trained


def test_on_a_gpu_batches_and_members_are_whole_from_the_start():
    whole = Sizes(64, 512, 24, 2048, 2048)
    assert smallest_sizes(whole, GPU) == Sizes(64, 512, 1, 2048, 2048)


def test_a_part_is_scaled_by_the_samples_that_were_computed():
    measured, whole = Sizes(2, 8, 1, 10, 30), Sizes(6, 16, 5, 100, 60)
    step = StepTime(train=1.0, validation=0.5, rest=0.25)
    assert step.scaled(measured, measured) == step
    scaled = step.scaled(measured, whole)
    assert scaled == StepTime(train=3 * 2 * 5, validation=0.5 * 3 * 4, rest=0.25)
    assert scaled.total == 30 + 6 + 0.25


def test_the_parts_of_a_step_add_up_to_its_time():
    device = {"train": 2.0, "validation": 0.5}
    turn = StepTimings(3.0, 3.0, (1.5, 1.5), {}, device, train_rows=4, validation_rows=4)
    assert mean_step(turn) == StepTime(1.0, 0.25, 0.25)


def test_the_plan_says_from_what_it_was_estimated():
    spec = small_task(batch_size=32, batches_per_step=4)
    data, config = spec.load(), EngineConfig(members=6, device="cpu")
    soon = probe_steps(spec, data, config, CPU, budget=0.0)
    assert soon.line() == (
        "estimated from 2 of 6 members, 1 of 4 batches, 8 of 32 samples per batch, "
        "16 of 120 validation samples, scaled to a whole step"
    )
    patient = probe_steps(spec, data, config, CPU, budget=1000.0)
    assert patient.measured == patient.whole == full_sizes(spec, data, 6)
    assert patient.line() == "measured on 2 whole steps of each kind"
    for found in (soon, patient):
        assert found.bare.total > 0
        assert found.grown.total > 0
        assert (found.facts.slots, found.facts.executor) == (3, "vmap")


def test_the_trainer_whose_updates_are_timed_has_all_members_and_little_else():
    """Orders of the whole training data for every member would take most of the time."""
    spec = small_task(batch_size=32, batches_per_step=4)
    data, population = spec.load(), PopulationConfig(envs=6, device="cpu")
    training = replace(preset("digits_quick", 1), population=population)
    trainer = _small_trainer(training, spec, data, CPU)
    engine = trainer.engine
    assert (engine.env.members, engine.spec.batch_size, engine.spec.batches_per_step) == (6, 2, 1)
    assert len(engine.batches.targets) == 2
    assert _update_seconds(trainer, steps=spec.episode_length) > 0  # its schedules span the run


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["ppo", "heuristic"])
def test_many_large_hosts_are_planned_from_a_part_of_them(policy, tmp_path, monkeypatch, capsys):
    """A whole step of them takes minutes on a CPU."""
    monkeypatch.chdir(tmp_path)
    flags = ["--task", "synthetic_cifar", "--envs", "32", "--device", "cpu", "--dry-run"]
    assert main([policy, *flags]) == 0
    said = capsys.readouterr().out
    assert "estimated from" in said
    assert "of 32 members" in said
    assert not list(tmp_path.iterdir())
