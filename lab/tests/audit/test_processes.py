"""Audits in several processes: the records of one process, bit for bit."""

from __future__ import annotations

import pytest

from esper_lab.commands.audit import main

FLAGS = (
    "synthetic", "--contexts", "3", "--topologies", "3", "--hosts", "2", "--envs", "4",
    "--episode-length", "3", "--batches-per-step", "1", "--batch-size", "8", "--device", "cpu",
    "--grown", "1", "--live", "bare", "closed_loop", "--live-draws", "2", "--quiet",
)  # fmt: skip


@pytest.mark.slow
def test_records_and_live_policies_are_those_of_one_process_bit_for_bit(tmp_path):
    for processes in (1, 2):
        out = str(tmp_path / str(processes))
        assert main([*FLAGS, "--processes", str(processes), "--out", out]) == 0
    files = sorted(path.relative_to(tmp_path / "1") for path in tmp_path.glob("1/**/*.parquet"))
    assert len(files) == 3 + 3 + 2 + 2
    for file in files:
        assert (tmp_path / "1" / file).read_bytes() == (tmp_path / "2" / file).read_bytes(), file


def test_no_process_is_one_line(capsys):
    assert main([*FLAGS, "--processes", "0"]) == 2
    assert "--processes 0" in capsys.readouterr().err
