"""What a run of `esper.grow` prints: its own lines, or nothing at all."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import esper
from esper.storage import atomic


class Wavering(nn.Module):
    """Depends on the values of its input: kept whole, not exported."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        return h if h.sum() > 0 else 2 * h


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), Wavering(), nn.ReLU(), nn.Linear(8, 2))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))


def grow(folder, verbose: bool, model=model, **settings) -> esper.GrowResult:
    x = np.random.default_rng(0).standard_normal((60, 4)).astype(np.float32)
    return esper.grow(
        model, (x, (x[:, 0] > 0).astype(np.int64)), budget=esper.Budget(host_runs=2), epochs=1,
        folder=folder, verbose=verbose, device="cpu", widths=(), **settings,
    )  # fmt: skip


def test_a_quiet_run_prints_nothing_even_if_parts_of_it_fail(tmp_path, capfd, caplog, recwarn):
    """torch prints what it could not export."""
    result = grow(tmp_path, verbose=False)
    assert not list(result.folder.rglob("*.pt2"))
    assert result.model(torch.zeros(2, 4)).shape == (2, 2)
    assert capfd.readouterr() == ("", "")
    assert not [r for r in caplog.records if r.levelname != "DEBUG"]
    assert not recwarn.list


def test_what_cannot_be_traced_or_exported_takes_a_line_and_why_goes_to_the_log(
    tmp_path, capfd, caplog
):
    caplog.set_level("INFO", "esper")
    grow(tmp_path, verbose=True)
    said = capfd.readouterr().err
    assert said.count("kept whole") == 1
    assert "kept whole: 2 (no seeds inside" in said
    assert "torch.fx" not in said
    assert [r for r in caplog.records if "2: torch.fx cannot trace it: " in r.getMessage()]
    lines = said.splitlines()
    assert sum("needs your code to be loaded again: 2 is" in line for line in lines) == 1
    assert all(line and not line.startswith(" ") for line in lines)


@pytest.mark.parametrize("lost", ["report.html", "result.json"])
def test_a_full_disk_at_the_end_costs_a_line_and_no_result(lost, tmp_path, monkeypatch, capfd):
    write = atomic._write_and_rename

    def full(path: Path, content: bytes, **how: bool) -> None:
        if str(path).endswith(lost):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, content, **how)

    monkeypatch.setattr(atomic, "_write_and_rename", full)
    result = grow(tmp_path, verbose=False, model=mlp)
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "No space left on device; free some space" in lines[0]
    assert result.model(torch.zeros(2, 4)).shape == (2, 2)
    if lost != "result.json":
        assert str(esper.GrowResult.load(result.folder)) == str(result)
    monkeypatch.undo()
    again = grow(tmp_path, verbose=False, model=mlp, resume=result.folder)
    assert (again.folder / "report.html").is_file()
    assert str(esper.GrowResult.load(result.folder)) == str(again) == str(result)
