"""The best members of a run are kept as networks, and nothing about the run changes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from esper.kasmina.export.member import MorphogeneticModel
from esper.leyline.errors import EsperError
from esper.leyline.payloads import EpisodeOutcome
from esper.scripts import export
from esper.simic.training.config import PopulationConfig, TaskConfig, TrainingConfig
from esper.simic.training.runs.folder import members_dir
from esper.simic.training.runs.kept_members import LIST, KeptMembers, load_member, read_members
from esper.simic.training.vectorized import train_ppo_vectorized
from esper.tamiyo.baselines import RandomPolicy, StaticTopology
from esper.tolaria import EngineConfig, VectorizedEngine
from support import refused

STORE = KeptMembers.store_plain  # conftest.py replaces it when the tests begin
TASK = TaskConfig("synthetic", episode_length=6, batch_size=16, batches_per_step=1)
SPEC = TASK.spec()


def engine_of(members: int = 4) -> VectorizedEngine:
    return VectorizedEngine(SPEC, EngineConfig(members=members, device="cpu"))


def run_rounds(kept: KeptMembers, rounds: int, engine: VectorizedEngine) -> list[EpisodeOutcome]:
    policy = StaticTopology({"r0c0": "norm", "r0c2": "conv_light"}, None)
    outcomes = []
    for _ in range(rounds):
        outcomes.append(engine.run_rollout(policy).outcome)
        kept.add_round(engine, outcomes[-1])
    return outcomes


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[KeptMembers, VectorizedEngine, list[EpisodeOutcome]]:
    engine = engine_of()
    kept = KeptMembers(tmp_path_factory.mktemp("run") / "members", keep=2)
    outcomes = run_rounds(kept, 3, engine)
    return kept, engine, outcomes


def test_the_kept_members_are_the_best_of_all_rounds(trained):
    kept, _, outcomes = trained
    scores = np.concatenate([outcome.score_E for outcome in outcomes])
    assert [one.score for one in kept.members] == sorted(scores, reverse=True)[:2]
    for one in kept.members:
        outcome = outcomes[one.round - 1]
        assert one.score == outcome.score_E[one.member]
        assert one.accuracy == outcome.accuracy_E[one.member]
    names = {path.name for path in kept.folder.iterdir()}
    assert names == {one.name for one in kept.members} | {LIST}
    assert read_members(kept.folder) == kept.members


def test_a_saved_member_gives_the_outputs_of_the_member(trained, tmp_path):
    _, engine, _ = trained
    here = KeptMembers(tmp_path / "members", keep=4)
    (outcome,) = run_rounds(here, 1, engine)
    inputs = torch.randn(5, *SPEC.input_shape, generator=torch.Generator().manual_seed(0))
    part = engine.validator.score
    for one in here.members:
        live = engine.env.model.member(one.member)
        saved = MorphogeneticModel.load(here.folder / one.name, SPEC.host_factory)
        torch.testing.assert_close(saved(inputs), live(inputs), rtol=0, atol=0)
        assert one.topology == ("r0c0=norm", "r0c2=conv_light")
        hits = sum(int((saved(x[0]).argmax(1) == y[0]).sum()) for x, y in part.batches())
        assert hits / len(part) == pytest.approx(one.accuracy)
        parameters = engine.episode.host_params + outcome.added_params_E[one.member]
        assert one.parameters == parameters


def test_keeping_members_changes_no_number(tmp_path):
    kept = run_rounds(KeptMembers(tmp_path / "members"), 2, engine_of())
    none = run_rounds(KeptMembers(tmp_path / "none", keep=0), 2, engine_of())
    for one, other in zip(kept, none, strict=True):
        np.testing.assert_array_equal(one.score_E, other.score_E)
    assert not (tmp_path / "none").exists()


def test_a_round_that_is_trained_again_replaces_itself_and_later_ones(tmp_path):
    engine = engine_of(2)
    kept = KeptMembers(tmp_path, keep=5)
    run_rounds(kept, 2, engine)
    engine.load_state_dict(engine.state_dict() | {"round": 1})
    again = KeptMembers(tmp_path, keep=5)
    assert len(again.members) == 4
    stored = {round_: tmp_path / f"00000{round_}-0001-plain" for round_ in (1, 2)}
    for path in stored.values():
        path.mkdir()
    run_rounds(again, 1, engine)
    assert stored[1].exists()
    assert not stored[2].exists(), "of a network that was replaced"
    assert again.members == kept.members
    assert {one.round for one in again.members} == {1, 2}
    engine.load_state_dict(engine.state_dict() | {"round": 0})
    run_rounds(again, 1, engine)
    assert {one.round for one in again.members} == {1}


def test_a_diverged_member_is_not_kept_and_ties_go_to_the_earlier(tmp_path):
    engine = engine_of(3)
    kept = KeptMembers(tmp_path, keep=2)
    outcome = engine.run_rollout(RandomPolicy(0)).outcome
    kept.add_round(engine, replace(outcome, score_E=np.array([np.nan, 0.5, -np.inf])))
    assert [(one.round, one.member) for one in kept.members] == [(1, 1)]
    outcome = engine.run_rollout(RandomPolicy(0)).outcome
    kept.add_round(engine, replace(outcome, score_E=np.array([0.5, 0.6, 0.5])))
    assert [(one.round, one.member) for one in kept.members] == [(2, 1), (1, 1)]


def test_a_member_that_cannot_be_stored_costs_only_its_folder(tmp_path, caplog, monkeypatch):
    def fails(*_: object) -> None:
        raise EsperError("no way")

    monkeypatch.setattr("esper.kasmina.plain_saves.folder.write_save", fails)
    engine, kept = engine_of(2), KeptMembers(tmp_path, keep=1)
    run_rounds(kept, 1, engine)
    STORE(kept, engine)
    assert "no way" in caplog.text
    assert not list(tmp_path.glob("*-plain"))


def test_a_kept_member_is_exported_from_its_folder_alone(tmp_path, capsys):
    """By the same command as a grown network; equal to the member, bit for bit before the file."""
    engine, run = engine_of(2), tmp_path / "run"
    kept = KeptMembers(members_dir(run), keep=2)
    run_rounds(kept, 1, engine)
    (run / "run.json").touch()
    out = tmp_path / "out.safetensors"
    assert export.main([str(run), str(out)]) == 2
    assert "resume the run" in capsys.readouterr().err
    STORE(kept, engine)
    best = kept.members[0]
    plain = MorphogeneticModel.load(kept.folder / best.name, SPEC.host_factory).to_plain()
    inputs = torch.randn(3, *SPEC.input_shape)
    model = load_member(kept.folder, best)
    assert torch.equal(model(inputs), plain(inputs))
    assert torch.equal(load_member(kept.folder, best, SPEC.host_factory)(inputs), plain(inputs))
    assert export.main([str(run), str(out)]) == 0
    assert f"score {best.score:.4f}" in capsys.readouterr().out
    weights = load_file(out)
    assert all(torch.equal(weights[name], value) for name, value in plain.state_dict().items())
    assert export.main([str(run), str(out), "--params", "3"]) == 2
    assert "no member within params=3" in capsys.readouterr().err
    (tensors,) = (kept.folder / f"{best.name}-plain").glob("*.safetensors")
    tensors.write_bytes(tensors.read_bytes()[:-1] + b"x")
    assert export.main([str(run), str(out)]) == 2
    assert "checksum" in capsys.readouterr().err


def test_a_damaged_list_is_refused_in_one_line(trained, tmp_path):
    (tmp_path / LIST).write_text(
        (trained[0].folder / LIST).read_text().replace('"round": 3', '"round": 4')
    )
    assert "delete it" in refused(lambda: KeptMembers(tmp_path))
    assert "keep_members=-1" in refused(lambda: KeptMembers(tmp_path / "x", keep=-1))


def test_a_learner_keeps_its_members_over_a_resume(tmp_path):
    """As many rounds at once keep the same ones."""
    config = TrainingConfig(TASK, PopulationConfig(envs=2, device="cpu"), rounds=2)
    run, whole = tmp_path / "run", tmp_path / "whole"
    train_ppo_vectorized(replace(config, rounds=1), run_dir=run, keep_members=2)
    train_ppo_vectorized(config, run_dir=run, resume=True)
    train_ppo_vectorized(config, run_dir=whole, keep_members=2)
    assert len(read_members(members_dir(run))) == 2
    assert read_members(members_dir(run)) == read_members(members_dir(whole))
    for one in read_members(members_dir(run)):
        MorphogeneticModel.load(members_dir(run) / one.name, SPEC.host_factory)


def test_the_list_is_read_without_torch():
    code = "import sys, esper.simic.training.runs.kept_members; assert 'torch' not in sys.modules"
    source = str(Path(__file__).parents[3] / "src")
    subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": source}, check=True)
