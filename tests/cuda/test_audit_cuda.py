"""Audits on a GPU: records do not depend on graphs, and policies trained live give them again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from audit_support import SmallAudit
from cuda_support import NEEDS_CUDA
from esper.audit.bench import Bench
from esper.audit.cases import TermsSpec
from esper.audit.live import LiveRun, LiveRunner, LiveSettings, chosen_policies
from esper.audit.live_policies import BenchLive
from esper.audit.records import Audit, read_audit

pytestmark = [*NEEDS_CUDA, pytest.mark.usefixtures("exact")]
FREE = LiveSettings(draws=4, terms=TermsSpec(capped=0.0))
ARRAYS = ("accuracy_CHKT", "loss_CHKT", "train_loss_CHKT", "compute_CHKT", "test_CHK")


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


def test_records_are_those_without_graphs(tmp_path):
    captured = run(tmp_path / "on", graphs="on")[1].records
    eager = run(tmp_path / "off", graphs="off")[1].records
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(captured, name), getattr(eager, name), err_msg=name)
    assert np.isfinite(captured.accuracy_CHKT).all()


def test_live_policies_meet_the_recorded_curves_and_the_closed_loop_runs(tmp_path):
    made, audit = run(tmp_path / "audit")
    bench = Bench(audit)
    policies = {
        "each": lambda *_: BenchLive(bench, EachInTurn()),
        **chosen_policies(["closed_loop"]),
    }
    live = LiveRun(tmp_path / "audit", audit, policies, FREE)
    live.run(LiveRunner(made.spec, made.info, made.settings, made.data))
    rows = live.rows["each"]
    at = rows.context_N, rows.host_N, rows.topology_N
    np.testing.assert_array_equal(
        rows.accuracy_N.astype(np.float32), audit.records.accuracy_CHKT[(*at, -1)]
    )
    assert np.isfinite(live.rows["closed_loop"].score_N).all()
