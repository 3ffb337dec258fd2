"""Views, `esper show`, `runs` and `report` of an audit: Esper reads what the lab writes."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from audit_support import audit_run
from esper.karn import views
from esper.karn.views import RunKind, RunState, to_plain
from esper.storage.sealed_json import read_document, seal
from folder_support import Strangers
from fuzz_support import require_none, seeds


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


@pytest.mark.slow
def test_200_changed_audits_never_give_a_traceback(tmp_path, audited):
    strangers = Strangers(tmp_path, (audited, audited))
    broken = [said for seed in seeds(0, 200) for said in strangers.complaints(seed)]
    require_none(broken, "lab/tests/views/test_audit_views.py", "200")
