"""Audits on a GPU: graphs and other populations change records by rounding at most.

Kernels are chosen by the number of rows, so a topology in another population, or with padding, is
computed in another order. On a CPU such records are equal bit for bit (tests/audit).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from audit_support import SmallAudit
from cuda_support import NEEDS_CUDA
from esper_lab.audit.bench import Bench
from esper_lab.audit.cases import TermsSpec
from esper_lab.audit.live import LiveRun, LiveRunner, LiveSettings
from esper_lab.audit.live_policies import LIVE_POLICIES, BenchLive
from esper_lab.audit.records import Audit, read_audit

pytestmark = [*NEEDS_CUDA, pytest.mark.usefixtures("exact")]
FREE = LiveSettings(draws=4, terms=TermsSpec(capped=0.0))


class EachInTurn:
    """Plants topology d in draw d and never stops."""

    def plan(self, obs):
        return np.arange(len(obs.topology_N)) % obs.available_NK.shape[1]

    def stop(self, obs, step):
        return np.zeros(len(obs.topology_N), dtype=np.bool_)


def run(path: Path, **compute: object) -> tuple[SmallAudit, Audit]:
    made = SmallAudit(device="cuda", precision="fp32", **compute)
    made.run(path)
    return made, read_audit(path)


def assert_alike(one: np.ndarray, two: np.ndarray, atol: float, what: str) -> None:
    """Rounding flips a sample now and then: nearly all values within `atol`, equal on average."""
    assert np.isfinite(one).all()
    assert np.mean(np.abs(one - two) <= atol) >= 0.95, what
    assert abs(np.mean(one - two)) <= atol / 2, what


def test_records_are_about_those_without_graphs(tmp_path):
    captured = run(tmp_path / "on", graphs="on")[1].records
    eager = run(tmp_path / "off", graphs="off")[1].records
    np.testing.assert_array_equal(captured.compute_CHKT, eager.compute_CHKT)
    np.testing.assert_allclose(captured.loss_CHKT, eager.loss_CHKT, rtol=5e-3)
    for name in ("accuracy_CHKT", "test_CHK"):
        assert_alike(getattr(captured, name), getattr(eager, name), 0.02, name)


def test_live_policies_meet_the_recorded_curves_and_the_closed_loop_runs(tmp_path):
    made, audit = run(tmp_path / "audit")
    bench = Bench(audit)
    policies = {
        "each": lambda *_: BenchLive(bench, EachInTurn()),
        "loop": LIVE_POLICIES["closed_loop"],
    }
    live = LiveRun(tmp_path / "audit", audit, policies, FREE)
    live.run(LiveRunner(made.spec, made.info, made.settings, made.data))
    rows = live.rows["each"]
    at = rows.context_N, rows.host_N, rows.topology_N
    assert_alike(rows.accuracy_N, audit.records.accuracy_CHKT[(*at, -1)], 0.02, "accuracy")
    assert np.isfinite(live.rows["loop"].score_N).all()
