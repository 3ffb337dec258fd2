"""Live policies beside contenders from records: same cases, gates, and the engines agree."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from audit_support import live_policies
from audit_synthetic import made_audit
from esper.leyline.codec import to_json
from esper.simic.training.runs.controllers import FoundController
from esper_lab.audit import live_controllers, report
from esper_lab.audit.bench import Bench
from esper_lab.audit.cases import TERMS, draw_cases
from esper_lab.audit.live import LiveRun, LiveSettings
from esper_lab.audit.live_report import compare_live, search_at
from esper_lab.audit.live_rows import LiveRows, live_path, write_live
from esper_lab.audit.records import Audit, identity_of
from esper_lab.audit.regrets import RegretSettings
from esper_lab.audit.search_lookup import Searches
from esper_lab.audit.tables import agreement_table, live_gates_table, live_table, live_verdicts
from esper_lab.commands.audit import main
from support import refused

FLAGS = [
    "synthetic", "--contexts", "2", "--topologies", "3", "--hosts", "2", "--envs", "8",
    "--episode-length", "2", "--batches-per-step", "1", "--batch-size", "8", "--device", "cpu",
    "--blueprints", "norm", "depthwise", "--quiet",
]  # fmt: skip


# ---- trained ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(small, tmp_path_factory) -> Path:
    """32 episodes of two policies of the bench, and of a closed loop."""
    path = tmp_path_factory.mktemp("live")
    names = ("patience", "one", "closed_loop_fill")
    settings = LiveSettings(draws=16, picture_hosts=0)
    LiveRun(path, small.audit, live_policies(names), settings).run(small.runner(envs=16))
    return path


def test_the_simulated_engine_agrees_with_the_real_one(small, folder):
    found = compare_live(folder, small.audit)
    assert found is not None
    assert [it.policy for it in found.agreements] == ["one", "patience"]
    for it in found.agreements:
        assert it.pairs == 32
        assert it.host_sd > 0
        assert it.passed
        assert it.difference.value == it.largest == 0, "the same device gives the same scores"
    assert "pass" in agreement_table(found)


def test_all_contenders_are_judged_on_the_same_cases(small, folder):
    found = compare_live(folder, small.audit)
    assert (found.cases, found.contexts) == (32, 2)
    rows = {(row.name, row.live): row for row in found.rows}
    trained, known = rows["one", True].score, rows["one", False].score
    assert trained.value == pytest.approx(known.value, abs=1e-6)
    assert rows["one", True].test == pytest.approx(rows["one", False].test, abs=1e-6)
    assert rows["regression", False].above.value == 0
    for row in found.rows:
        if row.name.startswith("asha"):
            continue
        gap = row.score.value - rows["regression", False].score.value
        assert row.above.value == pytest.approx(gap, abs=1e-6)
    assert {"asha:1", "asha:4", "best", "table"} <= {row.name for row in found.rows}
    assert [gate.policy for gate in found.gates] == ["closed_loop_fill", "patience"]
    assert "closed_loop_fill (live)" in live_table(found)


def test_a_damaged_file_leaves_the_rest_of_the_report(small, folder, monkeypatch):
    for name in ("collect_picks", "draw_frontier", "draw_scores"):  # take seconds
        monkeypatch.setattr(report, name, lambda *_, **__: None)
    path = live_path(folder, "one")
    kept = path.read_bytes()
    try:
        path.write_bytes(kept[:-9])
        made = report.write_report(folder, small.audit, RegretSettings(draws=2, searches=(2,)))
    finally:
        path.write_bytes(kept)
    assert f"no comparison: {path} is damaged" in made.text
    assert "What choosing is worth" in made.text
    assert made.live is None


# ---- made up ------------------------------------------------------------------------------------


def write_policy(folder: Path, audit: Audit, name: str, above: float, compute: float) -> None:
    """A live policy whose score is that of the best topology on this host, plus something."""
    context_N = np.repeat(Bench(audit).context_C, 4)
    draw_N = np.tile(np.arange(4), audit.info.contexts)
    observed = draw_cases(audit, context_N, draw_N, TERMS, seed=0)
    every_K = np.arange(len(audit.info.topologies))[None]
    at = context_N[:, None], draw_N[:, None], every_K
    row = np.array(audit.info.steps)
    best_N = Bench(audit).scores(at, row, observed.price_N[:, None]).max(axis=1)
    zero_N, none = np.zeros_like(draw_N), (("", "", ""),) * len(draw_N)
    rows = LiveRows(
        name, context_N, draw_N, draw_N, observed.price_N, observed.params_cap_N,
        observed.macs_cap_N, zero_N, none, none, best_N, best_N, np.full(len(draw_N), compute),
        zero_N, zero_N + 100, zero_N, best_N + above, zero_N, zero_N,
    )  # fmt: skip
    settings = {"seed": 0, "folds": 5, "terms": to_json(TERMS)}
    settings["contexts"] = Bench(audit).context_C.tolist()
    (folder / "live").mkdir(exist_ok=True)
    write_live(live_path(folder, name), rows, settings, identity_of(audit.info))


def test_gates_pass_above_everything_and_fail_below(tmp_path):
    audit = made_audit(contexts=6, noise=0.02)
    write_policy(tmp_path, audit, "high", 0.05, compute=1.0)
    write_policy(tmp_path, audit, "low", -0.5, compute=1.0)
    write_policy(tmp_path, audit, "slow", 0.05, compute=1e6)
    found = compare_live(tmp_path, audit)
    gates = {gate.policy: gate for gate in found.gates}
    assert gates["high"].passed == (True, True, True)
    assert gates["high"].times == pytest.approx(4.0)
    assert live_verdicts(gates["high"]) == ("pass", "pass", "pass")
    assert live_verdicts(gates["low"]) == ("fail", "fail", "fail")
    assert gates["high"].beats_static is None
    assert gates["slow"].times < 4
    assert live_verdicts(gates["slow"])[::2] == ("pass", "pass ?"), (
        "no search takes 4 times as much"
    )
    assert "(the largest)" in live_gates_table(found)
    assert {row.name: row.runs for row in found.rows}["high"] == np.inf


def test_a_policy_is_compared_with_its_own_final_topology(tmp_path):
    audit = made_audit(contexts=6, noise=0.02)
    for name, above in (("mine", 0.05), ("mine, static", 0.02)):
        write_policy(tmp_path, audit, name, above, compute=1.0)
    found = compare_live(tmp_path, audit)
    assert [gate.policy for gate in found.gates] == ["mine"]
    assert found.gates[0].beats_static.value == pytest.approx(0.03)
    assert "mine beats its final topology, planted" in live_gates_table(found)


def test_files_that_do_not_fit_are_one_line(tmp_path):
    audit = made_audit(contexts=6)
    assert compare_live(tmp_path, audit) is None
    write_policy(tmp_path, audit, "mine", 0.0, compute=1.0)
    accuracy_CHKT = audit.records.accuracy_CHKT.copy()
    accuracy_CHKT[5] = np.nan
    audit = replace(audit, records=replace(audit.records, accuracy_CHKT=accuracy_CHKT))
    assert "other contexts" in refused(lambda: compare_live(tmp_path, audit))
    other = replace(audit, info=replace(audit.info, seed=4))
    assert "belongs to another audit" in refused(lambda: compare_live(tmp_path, other))


def test_a_search_of_any_compute_lies_between_two_sizes():
    def search(score: float, compute: float) -> Searches:
        return Searches(np.zeros(2, dtype=np.int64), *(np.full(2, v) for v in (score, 0, compute)))

    sizes = [search(0.1, 1.0), search(0.3, 4.0)]
    for compute, score, taken in ((0.5, 0.1, 1.0), (2.0, 0.2, 2.0), (9.0, 0.3, 4.0)):
        found_N, spent = search_at(sizes, compute)
        assert found_N.tolist() == pytest.approx([score] * 2)
        assert spent == taken


# ---- the command --------------------------------------------------------------------------------


def test_the_command_trains_and_reports(tmp_path, capsys, monkeypatch):
    drawn = []
    monkeypatch.setattr(report, "draw_frontier", lambda _, __, extra: drawn.extend(extra))
    for name in ("collect_picks", "draw_scores"):  # take seconds; test_report.py runs them
        monkeypatch.setattr(report, name, lambda *_, **__: None)
    argv = [*FLAGS, "--out", str(tmp_path / "audit"), "--live-draws", "2", "--live", "one",
             "closed_loop_fill", "--live-picture-hosts", "1", "--live-static"]  # fmt: skip
    assert main(argv) == 0
    assert {pick.name for pick in drawn} == {"one", "closed_loop_fill"}
    said = capsys.readouterr().out
    for title in ("Live policies", "Gates of live policies", "Trained and from records"):
        assert title in said
    assert "4 cases in 2 contexts" in said
    assert "closed_loop_fill beats its final topology, planted" in said
    files = sorted(file.stem for file in (tmp_path / "audit" / "live").iterdir())
    assert files == ["closed_loop_fill", "closed_loop_fill_static", "one", "one_static", "picture"]
    assert main([*argv, "--contexts", "3"]) == 2
    errors = capsys.readouterr().err
    assert "contexts is [0, 1] there and [0, 1, 2] here" in errors
    assert not (tmp_path / "audit" / "records" / "context-0002.parquet").exists()


def test_mistakes_are_one_line_and_leave_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for argv, said in (
        (["--live", "closed_lop"], "closed_loop"),
        (["--live", "oracle"], "unknown live policy"),
        (["--live", "one", "--contexts", "1"], "--contexts 1"),
        (["--live", "one", "--live-draws", "0"], "--live-draws 0"),
        (["--live", "one", "--live-picture-hosts", "-1"], "--live-picture-hosts -1"),
        (["--live-static"], "--live-static without --live"),
        (["--live", "runs/RUN"], "folder 'runs/RUN' does not exist"),
    ):
        assert main([*FLAGS, *argv]) == 2
        errors = capsys.readouterr().err
        assert errors.count("\n") == 1
        assert said in errors
    assert not list(tmp_path.iterdir())


def test_a_controller_of_another_task_leaves_nothing(tmp_path, capsys, monkeypatch):
    other = FoundController(tmp_path / "agent", task="digits_baseline")
    monkeypatch.setattr(live_controllers, "find_controller", lambda _: other)
    argv = ["--out", str(tmp_path / "audit"), "--live", f"ppo={tmp_path}"]
    assert main([*FLAGS, *argv]) == 2
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert "a controller of task digits_baseline, this is an audit of synthetic" in errors
    assert not list(tmp_path.iterdir())
