"""An audit is run, analysed, followed by a live policy, shown and judged on: commands alone."""

from __future__ import annotations

import json

from esper.karn import views
from esper.karn.views import RunKind, RunState
from esper_lab.audit import report
from esper_lab.audit.records import read_audit
from esper_lab.commands import audit, bench

FLAGS = [
    "synthetic", "--contexts", "2", "--topologies", "3", "--hosts", "2", "--envs", "8", "--quiet",
    "--episode-length", "2", "--batches-per-step", "1", "--batch-size", "8", "--device", "cpu",
    "--blueprints", "norm", "depthwise", "--live", "one", "--live-draws", "1",
]  # fmt: skip


def test_an_audit_is_run_analysed_followed_live_and_judged_on(tmp_path, capsys, monkeypatch):
    """The pictures take seconds; tests on the slow list draw them."""
    for name in ("collect_picks", "draw_scores", "draw_frontier"):
        monkeypatch.setattr(report, name, lambda *_, **__: None)
    folder = tmp_path / "audit"
    assert audit.main([*FLAGS, "--out", str(folder)]) == 0
    said = capsys.readouterr().out
    for title in ("What choosing is worth", "Gates", "Live policies", "Trained and from records"):
        assert title in said
    found = read_audit(folder)
    assert found.records.accuracy_CHKT.shape == (2, 2, 3, 3)
    assert (folder / "live" / "one.parquet").exists()
    shown = views.run_summary(folder)
    assert (shown.kind, shown.state, shown.done) == (RunKind.AUDIT, RunState.FINISHED, 2)
    assert {point.is_host for point in views.read_frontier(folder)} == {True, False}
    assert "oracle" in {one.label for one in views.read_contenders(folder)}
    argv = ("--policies", "one", "random", "--episodes", "1", "--json")
    assert bench.main([str(folder), *argv]) == 0
    rows = json.loads(capsys.readouterr().out)["audit"]["policies"]
    scores = {row["name"]: row["score"]["value"] for row in rows}
    assert scores["oracle"] == max(scores.values())
