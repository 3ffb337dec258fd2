"""`esper audit`: rows are what the engine gives, however they are computed."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from audit_support import SETTINGS, SmallAudit
from esper.leyline.context import ONE, VARIED, ContextSpec
from esper.leyline.errors import EsperError
from esper.tamiyo.planning import PlannedTopology
from esper.tasks.context_files import read_context
from esper.tolaria.engine import VectorizedEngine
from esper.tolaria.engine_config import EngineConfig
from esper_lab.audit.grown import GrownTopologies
from esper_lab.audit.presets import PRESETS, context_spec, suit_audit
from esper_lab.audit.records import INFO, Audit, read_audit, read_grown, rows_path, scores
from esper_lab.audit.run import grown_topologies, make_chunks
from esper_lab.audit.summary import planted_minus_grown, spread, summary_rows
from esper_lab.commands.audit import main

CONTEXTS = Path(__file__).parents[2] / "contexts"
FLAGS = [
    "--contexts", "1", "--topologies", "3", "--hosts", "1", "--envs", "8", "--episode-length", "2",
    "--batches-per-step", "1", "--batch-size", "8", "--device", "cpu",
]  # fmt: skip


@pytest.fixture(scope="module")
def small() -> SmallAudit:
    return SmallAudit()


@pytest.fixture(scope="module")
def whole(small, tmp_path_factory) -> Path:
    """An audit that nothing interrupted."""
    path = tmp_path_factory.mktemp("audit") / "whole"
    assert small.run(path) == [0, 0, 1, 1], "one chunk planted, one grown"
    return path


def assert_same(found: Audit, expected: Audit) -> None:
    assert found.info == expected.info
    assert found.contexts == expected.contexts
    for field in fields(expected.records):
        np.testing.assert_allclose(
            getattr(found.records, field.name),
            getattr(expected.records, field.name),
            atol=1e-6,
            err_msg=field.name,
        )


def first_context(audit: Audit) -> Audit:
    records, contexts = (
        type(part)(**{f.name: getattr(part, f.name)[:1] for f in fields(part)})
        for part in (audit.records, audit.contexts)
    )
    return Audit(replace(audit.info, contexts=1), contexts, records)


# ---- rows --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("context", "host", "topology"), [(0, 1, 3), (1, 0, 0)])
def test_a_row_is_what_the_engine_gives_by_hand(small, whole, context, host, topology):
    audit = read_audit(whole)
    config = EngineConfig(
        members=1, seed=SETTINGS.seed, member_ids=(host,), context_ids=(0,), device="cpu"
    )
    engine = VectorizedEngine(small.spec, config, data=small.data)
    engine.round = context
    planted = dict(zip(audit.info.slots, audit.info.topologies[topology], strict=True))
    policy = PlannedTopology({slot: name for slot, name in planted.items() if name})
    rollout = engine.run_rollout(policy)
    episode, at = engine.episode, (context, host, topology)
    records = audit.records
    for name, history_TE in (
        ("accuracy_CHKT", episode.score_accuracy_TE),
        ("control_CHKT", episode.accuracy_TE),
        ("loss_CHKT", episode.loss_TE),
        ("train_loss_CHKT", episode.train_loss_TE),
    ):
        np.testing.assert_allclose(getattr(records, name)[at], history_TE[:, 0], atol=1e-6)
    assert np.isnan(records.train_loss_CHKT[at][0])
    assert np.isfinite(records.train_loss_CHKT[at][1:]).all()
    assert records.test_CHK[at] == pytest.approx(engine.test()[0], abs=1e-6)
    contribution_S = rollout.final_signals.slots.contribution_ES[0]
    np.testing.assert_allclose(records.contribution_CHKS[at], contribution_S, atol=1e-6)
    assert np.isfinite(contribution_S).tolist() == [bool(name) for name in planted.values()]
    compute = records.compute_CHKT[at]
    assert compute[-1] == pytest.approx(rollout.outcome.flops_ratio_E[0], abs=1e-6)
    assert compute[0] == 0
    assert rollout.round_context.budget == audit.contexts.budget_C[context]
    made = scores(audit.info, records.accuracy_CHKT[context, host, :, -1],
                  records.compute_CHKT[context, host, :, -1], 1.0)  # fmt: skip
    assert made[topology] == pytest.approx(rollout.outcome.score_E[0], abs=1e-6)


def test_chunks_of_another_size_give_the_same_rows(small, whole, tmp_path):
    assert small.run(tmp_path, envs=3, contexts=1) == [0] * 5, "a topology at a time"
    for read in (read_audit, read_grown):
        assert_same(first_context(read(tmp_path)), first_context(read(whole)))


class StopAt:
    """A listener that interrupts a piece at its second step."""

    def __init__(self, piece: int) -> None:
        self.pieces_left = piece + 1

    def on_piece(self, piece: object) -> None:
        self.pieces_left -= 1

    def on_step(self, record: object) -> None:
        if not self.pieces_left and record.signals.step == 1:
            raise KeyboardInterrupt

    def on_round_start(self, round_index: int, members: int) -> None: ...

    def on_slot_events(self, round_index: int, step: int, payload: object) -> None: ...

    def on_round_end(self, rollout: object) -> None: ...


def test_resumed_equals_uninterrupted(small, whole, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        small.run(tmp_path, StopAt(2))
    first = rows_path(tmp_path, 0)
    before = first.stat().st_mtime_ns
    assert small.run(tmp_path) == [1, 1]
    assert first.stat().st_mtime_ns == before
    assert_same(read_audit(tmp_path), read_audit(whole))
    assert_same(read_grown(tmp_path), read_grown(whole))


def test_members_share_the_context_and_hosts_differ(small, whole):
    audit = read_audit(whole)
    first_CHK = audit.records.loss_CHKT[..., 0]
    assert (first_CHK[:, 0, 0] != first_CHK[:, 1, 0]).all(), "hosts have their own weights"
    assert len(np.unique(audit.contexts.learning_rate_C)) == 2
    cost_K = np.array(audit.info.cost)
    budget_C11 = audit.contexts.budget_C[:, None, None]
    left_CHK = budget_C11 - audit.records.compute_CHKT[..., -1]
    assert (left_CHK > -1e-5).all()
    batch = 1 / (small.spec.batches_per_step * small.spec.episode_length)
    assert (left_CHK <= cost_K * batch).all(), "what is left does not pay for another batch"


def test_grown_topologies_end_with_what_they_were_to_grow(small, whole):
    planted, grown = read_audit(whole), read_grown(whole)
    (k,) = planted.info.grown
    assert grown.info.topologies == (planted.info.topologies[k],)
    assert (grown.records.compute_CHKT[..., -1] <= grown.contexts.budget_C[:, None, None]).all()
    assert len(planted_minus_grown(planted, grown)) == 2, "one for each context"
    policy = GrownTopologies([("norm", ""), ("", "norm"), ("", "")], ("a", "b"))
    assert policy.initial_state(3).tolist() == [[False, True], [True, False], [True, True]]
    state = policy.reset_state(np.ones((3, 2), dtype=bool), np.array([True, False, False]))
    assert state.tolist() == [[False, True], [True, True], [True, True]]


def test_the_summary_ranks_topologies(whole):
    audit = read_audit(whole)
    host, median, best, per_context = summary_rows(audit)
    assert host.topology == "empty"
    final_CHK = audit.records.accuracy_CHKT[..., -1]
    assert host.accuracy == pytest.approx(final_CHK[..., 0].mean())
    assert median.topology != best.topology
    halves = [(final_CHK[:, a], final_CHK[:, 1 - a]) for a in (0, 1)]
    judged = [b[:, a.mean(axis=0).argmax()].mean() for a, b in halves]
    assert best.accuracy == pytest.approx(np.mean(judged)), "judged on hosts it was not chosen on"
    judged = [b[[0, 1], a.argmax(axis=1)].mean() for a, b in halves]
    assert per_context.accuracy == pytest.approx(np.mean(judged))
    assert spread(audit).hosts > 0


def test_chunks_hold_every_host_and_topology_once():
    for hosts, envs in ((2, 1), (2, 7), (5, 3), (3, 100)):
        chunks = make_chunks(range(7), [1.0] * 7, hosts, envs)
        members = [(h, k) for chunk in chunks for h in chunk.hosts for k in chunk.topologies]
        assert sorted(members) == [(h, k) for h in range(hosts) for k in range(7)]
        assert max(len(chunk.member_ids) for chunk in chunks) <= envs
    assert grown_topologies(9, 0) == ()
    assert grown_topologies(3, 2) == (1, 2)


# ---- presets -----------------------------------------------------------------------------------


def test_presets_have_no_price_and_no_caps():
    for preset in PRESETS.values():
        assert (preset.spec.price, preset.spec.capped) == (ONE, 0.0)
        assert (preset.spec.actions, preset.spec.clock) == ("full", "compute")
    suited = suit_audit(VARIED)
    assert (suited.spec.price, suited.spec.capped) == (ONE, 0.0)
    assert "price 0.1 to 4" in suited.notes[0]
    assert "50%" in suited.notes[1]
    with pytest.raises(EsperError, match='set "actions": "full"'):
        suit_audit(ContextSpec())


def test_fixed_takes_budgets_in_turn():
    preset = PRESETS["fixed"]
    budgets = [context_spec(preset.spec, preset.budgets, context).budget for context in range(5)]
    assert [found.low for found in budgets] == [1, 2, 4, 8, 1]
    assert not preset.spec.changes_data


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("harder", PRESETS["harder"].spec),
        ("budget1", context_spec(PRESETS["small"].spec, (1.0, 2.0), 0)),
        ("budget2", context_spec(PRESETS["small"].spec, (1.0, 2.0), 1)),
    ],
)
def test_files_of_contexts_hold_what_presets_draw(name, spec):
    assert read_context(str(CONTEXTS / f"{name}.json")) == spec


# ---- the command -------------------------------------------------------------------------------


def test_the_command_runs_resumes_and_prints_the_folder(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = json.dumps({"actions": "full", "clock": "compute", "price": {"low": 0.1, "high": 4}})
    argv = ["synthetic", *FLAGS, "--preset", text, "--grown", "1"]
    assert main(argv) == 0
    said = capsys.readouterr().out
    assert "price 0.1 to 4 is taken as 1" in said
    assert "best overall" in said
    assert "planted minus grown" in said
    path = Path("out/audit_synthetic_own")
    assert f"records: {path}" in said
    info = read_audit(path).info
    assert (info.spec.price, len(info.topologies), info.steps) == (ONE, 3, 2)
    assert main([*argv, "--quiet", "--contexts", "2", "--envs", "2"]) == 0
    assert np.isfinite(read_audit(path).contexts.budget_C).all()


def test_mistakes_are_one_line_and_leave_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for argv, said in (
        (["digits_impaird"], "digits_impaired"),
        (["synthetic", "--topologies", "9999"], "has 343 topologies"),
        (["synthetic", "--preset", "smal"], "small"),
        (["synthetic", "--grown", "3"], "2 topologies besides the host"),
        (["synthetic", "--hosts", "0"], "--hosts 0"),
        (["synthetic", "--blueprints", "nrm"], "norm"),
        (["synthetic", "--seed", "10000019"], "reserved"),
    ):
        assert main([argv[0], *FLAGS, *argv[1:]]) == 2
        errors = capsys.readouterr().err
        assert errors.count("\n") == 1
        assert said in errors
    assert not list(tmp_path.iterdir())


def test_what_is_in_the_folder_must_match(tmp_path, capsys):
    argv = ["synthetic", *FLAGS, "--out", str(tmp_path / "audit"), "--quiet"]
    assert main(argv) == 0
    capsys.readouterr()
    assert main([*argv, "--seed", "1"]) == 2
    assert "seed is 0 there and 1 here" in capsys.readouterr().err
    path = rows_path(tmp_path / "audit", 0)
    path.write_bytes(path.read_bytes()[:-9])
    assert main(argv) == 2
    errors = capsys.readouterr().err
    assert str(path) in errors
    assert errors.count("\n") == 1
    (tmp_path / "audit" / INFO).unlink()
    assert main(argv) == 2
    assert "records without audit.json" in capsys.readouterr().err
