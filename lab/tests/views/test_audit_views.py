"""Views, `esper show`, `runs` and `report` of an audit: Esper reads what the lab writes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from audit_support import audit_run
from esper.karn import views
from esper.karn.views import RunKind, RunState, to_plain
from esper.storage.sealed_json import read_document, seal
from esper_lab.audit.records import read_audit
from esper_lab.audit.regrets import RegretSettings
from esper_lab.audit.report import write_report
from folder_support import Strangers
from fuzz_support import require_none, seeds
from view_faults import MEDIA, cut, files, unnamed


@pytest.fixture(scope="module")
def audited(tmp_path_factory) -> Path:
    return audit_run(tmp_path_factory.mktemp("audited") / "audit")


def test_an_audit_tells_topologies_and_contenders(audited):
    found = views.run_summary(audited)
    assert (found.kind, found.state, found.done) == (RunKind.AUDIT, RunState.FINISHED, 2)
    points = views.read_frontier(audited)
    assert len(points) == 4
    assert sum(point.is_host for point in points) == 1
    contenders = {one.label: one for one in views.read_contenders(audited)}
    assert {"bare", "one", "regression"} <= contenders.keys()
    text = (audited / "regrets.txt").read_text()
    assert f"{contenders['bare'].score.value:.4f} (" in text
    curves = views.read_curves(audited)
    assert all(len(curve.points) == 4 for curve in curves)


def test_unpacked_records_are_finished_if_they_are_whole(audited, tmp_path):
    shutil.copytree(audited, tmp_path / "run")
    (tmp_path / "run" / "sessions.json").unlink()
    assert views.run_summary(tmp_path / "run").state is RunState.FINISHED
    os.unlink(tmp_path / "run" / "records" / "context-0001.parquet")
    found = views.run_summary(tmp_path / "run")
    assert (found.state, found.progress) == (RunState.INTERRUPTED, 0.5)


def test_every_view_reads_an_audit(audited):
    for name in (name for name in views.__all__ if name.startswith("read_")):
        json.dumps(to_plain(getattr(views, name)(audited)), allow_nan=False)
    cursor = views.RunCursor(audited)
    assert cursor.poll().changed
    assert not cursor.poll().changed


@pytest.mark.parametrize(
    ("end", "state"),
    [(None, RunState.KILLED), ("INTERRUPTED", RunState.INTERRUPTED), ("FAILED", RunState.FAILED)],
)
def test_killed_interrupted_and_failed_are_told_apart(audited, tmp_path, end, state):
    shutil.copytree(audited, tmp_path / "run")
    path, command = tmp_path / "run" / "sessions.json", "esper audit 'a b'"
    document = read_document(path)
    document["sessions"][-1] |= {"end": end, "failure": "no disk", "ended": "", "command": command}
    path.write_text(json.dumps(seal(document)))
    found = views.run_summary(tmp_path / "run")
    assert (found.state, found.problem, found.resume) == (state, "no disk", command)


@pytest.mark.parametrize("look", MEDIA)
def test_a_damaged_file_is_named_and_the_rest_is_shown(audited, look, tmp_path):
    assert len(files(audited)) > 4
    assert unnamed(audited, look, tmp_path / "damaged") == []


@pytest.mark.parametrize("look", MEDIA)
def test_a_damaged_context_leaves_the_others(audited, look, tmp_path):
    run = shutil.copytree(audited, tmp_path / "run")
    usual, said = look(run)
    assert "context-0001" not in said
    cut(run / "records" / "context-0001.parquet")
    shown, said = look(run)
    assert (shown, "context-0001.parquet" in said) == (usual, True)
    assert len(views.read_frontier(run)) == len(views.read_frontier(audited))
    (line,) = [line for line in views.read_log(run) if line.unusual]
    assert "context-0001.parquet" in line.text


def test_the_log_has_every_context_and_the_judgement(audited):
    first, one, two, last = (line.text for line in views.read_log(audited))
    assert first.endswith("4 topologies on 2 hosts in 2 contexts")
    assert (one.split(",")[0], two.split(",")[0]) == ("context 0 done", "context 1 done")
    assert last.startswith("ways to choose judged: best score")


# ---- two audits --------------------------------------------------------------------------------


def changed(run: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    path = run / "contenders.json"
    document = read_document(path)
    change(document)
    path.write_text(json.dumps(seal(document)))
    return run


def test_ways_to_choose_are_compared_in_the_same_contexts(audited, tmp_path):
    def better(document: dict[str, Any]) -> None:
        for one in document["contenders"]:
            for place, gain in enumerate((0.01, 0.03)):
                one["score_C"][place] += gain

    run = changed(shutil.copytree(audited, tmp_path / "run"), better)
    found = {one.label: one for one in views.compare_with_baseline(run, audited)}
    assert {"regression", "oracle"} <= found.keys()
    for one in found.values():
        assert (one.n, one.is_paired, one.how) == (2, True, "paired: the same 2 contexts")
        assert one.difference.value == pytest.approx(0.02)


def test_audits_of_other_contexts_are_not_paired(audited, tmp_path):
    other = shutil.copytree(audited, tmp_path / "other")
    changed(other, lambda it: it.update(contexts=["a", "b"]))
    (one, *_) = views.compare_with_baseline(other, audited)
    assert (one.is_paired, one.how) == (False, "unpaired: other contexts")
    old = shutil.copytree(audited, tmp_path / "old")
    changed(old, lambda it: it.pop("contexts"))
    (one, *_) = views.compare_with_baseline(old, audited)
    assert one.how == "unpaired: values of single contexts are not recorded"


def test_contexts_are_the_same_where_data_hosts_and_prices_are(audited, tmp_path):
    kept = read_document(audited / "contenders.json")["contexts"]
    assert len(set(kept)) == 2
    again = tmp_path / "again"
    shutil.copytree(audited, again)
    for settings, same in (
        (RegretSettings(draws=2, folds=3), True),
        (RegretSettings(draws=3), False),
    ):
        write_report(again, read_audit(again), settings)
        assert (read_document(again / "contenders.json")["contexts"] == kept) == same


@pytest.mark.slow
def test_200_changed_audits_never_give_a_traceback(tmp_path, audited):
    strangers = Strangers(tmp_path, (audited, audited))
    broken = [said for seed in seeds(0, 200) for said in strangers.complaints(seed)]
    require_none(broken, "lab/tests/views/test_audit_views.py", "200")
