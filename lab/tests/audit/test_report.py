"""The report of an audit, and `esper_lab.bench` on its folder."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from audit_synthetic import made_audit
from esper_lab import bench
from esper_lab.audit.regrets import RegretSettings
from esper_lab.audit.report import write_report
from support import refused

FEW = RegretSettings(draws=2, searches=(2,), folds=2)


def test_a_report_has_tables_and_pictures(tmp_path):
    made = write_report(tmp_path, made_audit(contexts=4, hosts=4, slots=2, steps=3), FEW)
    assert (tmp_path / "regrets.txt").read_text().strip() == made.text
    for title in ("What choosing is worth", "Gates", "Noise", "Price -> topology", "asha:2"):
        assert title in made.text
    for picture in made.files[1:]:
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_one_host_is_refused_before_anything_is_written(tmp_path):
    audit = made_audit(contexts=4, hosts=4)
    records = audit.records
    one = {n: getattr(records, n)[:, :1] for n in type(records).__dataclass_fields__}
    alone = replace(audit, info=replace(audit.info, hosts=1), records=type(records)(**one))
    assert "hosts" in refused(lambda: write_report(tmp_path, alone, FEW))
    assert list(tmp_path.iterdir()) == []


def test_the_bench_gives_the_curves_of_the_folder(small):
    found, audit = bench.load(small.path), small.audit
    curve = found.query(topology=1, context=1, host=0)
    assert np.array_equal(curve.accuracy, audit.records.accuracy_CHKT[1, 0, 1], equal_nan=True)
    assert curve.params == audit.info.params[1]


def test_every_policy_can_be_judged_on_the_bench(small):
    rows = bench.leaderboard(bench.load(small.path), episodes_per_context=4)
    names = {row.name for row in rows}
    assert {"bare", "random", "one", "table", "regression", "oracle"} <= names
    assert all(np.isfinite(row.score.value) for row in rows)
    assert "oracle" in bench.leaderboard_table(rows)
