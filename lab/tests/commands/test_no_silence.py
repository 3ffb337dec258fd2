"""The lab's long commands print something at least every two seconds."""

from __future__ import annotations

from silence_support import speaks

AUDIT = ["synthetic", "--contexts", "2", "--topologies", "3", "--hosts", "2", "--device", "cpu"]


def test_audit_and_bench_are_never_silent(tmp_path):
    speaks(["audit", *AUDIT, "--out", "audited"], tmp_path)
    speaks(["bench", "digits_impaired", "--policies", "table"], tmp_path)
