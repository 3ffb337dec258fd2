"""docs/lab.md and the pages below it: commands work, settings are described, code runs."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest

import command_lines
from api_tables import LAB_PAGE
from api_tables import offered as offered_by
from api_tables import written as api_written
from audit_support import FinishedAudit
from command_tables import written
from esper.scripts import main as cli
from esper_lab import bench
from esper_lab.audit.closed_loop import ClosedLoop
from esper_lab.audit.presets import read_preset
from esper_lab.commands import AUDIT, BENCH, SWEEP
from esper_lab.commands import audit as audit_command
from esper_lab.commands import bench as bench_command
from esper_lab.commands.audit import RunAudit
from esper_lab.sweep.config import read_sweep
from esper_lab.sweep.space import read_space
from page_support import DOCS, ROOT, blocks, shell_lines

PAGE = DOCS / "lab.md"
COMMANDS = [argv[1:] for argv in shell_lines(PAGE) if argv[0] == "esper"]
SMALL_AUDIT = ["--contexts", "1", "--topologies", "3", "--hosts", "1", "--episode-length", "5",
               "--batches-per-step", "1", "--device", "cpu", "--quiet"]  # fmt: skip


def test_the_page_shows_every_command_with_its_summary():
    assert {argv[0] for argv in COMMANDS} == {"audit", "bench", "sweep"}
    text = " ".join(PAGE.read_text().replace("`", "").split())
    for command in (AUDIT, BENCH, SWEEP):
        first, _, rest = command.summary.partition(" ")
        assert rest in text, first


def test_the_tables_are_what_help_says():
    assert written(PAGE.read_text()) == PAGE.read_text(), "run: python tests/command_tables.py"


def test_the_table_of_the_bench_is_that_of_its_docstrings():
    page = LAB_PAGE.read_text()
    assert api_written(page) == page, "python scripts/api_tables.py writes docs/bench.md anew"
    public = {name for name in bench.__all__ if name[0] != "_"}
    assert set(offered_by("esper_lab.bench")) == public


def test_scripts_of_the_page_are_those_of_the_folder():
    folder = {path.name for path in (ROOT / "lab" / "scripts").glob("*.py")}
    shown = {line.split("`")[1] for line in PAGE.read_text().splitlines() if ".py` |" in line}
    parts = {"arms_training.py", "own_network_models.py", "own_network_timing.py"}
    assert shown == folder - parts - {"twin_training.py"}


@pytest.mark.parametrize("argv", COMMANDS, ids=" ".join)
def test_every_command_on_the_page_works(argv, tmp_path, monkeypatch):
    """Audits and the bench are run, made smaller; searches are read and checked."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ESPER_DATA_DIR", raising=False)
    (tmp_path / "space.toml").write_text('gamma = "0.9..0.999"\n')
    command, *flags = argv
    if command == "sweep":
        sweep = read_sweep(flags)
        for name, axis in read_space(sweep.settings, sweep.space).items():
            sweep.trial_training({name: axis.ends[0]}).check()
    elif command == "audit":
        assert audit_command.main([*flags, *SMALL_AUDIT]) == 0
    else:
        policies = [] if "--policies" in flags else ["--policies", "bare"]
        smaller = ["--episodes", "1", "--quiet", *policies] if flags else []
        assert bench_command.main([*flags, *smaller]) == 0


def check_audit(config: object) -> None:
    """Contexts and task of `esper audit`, which its settings leave to the run."""
    if isinstance(config, RunAudit):
        read_preset(config.preset)
        config.spec()


@pytest.mark.parametrize("page", command_lines.PAGES, ids=lambda p: p.stem)
def test_commands_of_the_lab_on_other_pages_are_understood(page, tmp_path, monkeypatch):
    command_lines.enter_checkout(tmp_path, monkeypatch)
    for argv in command_lines.commands(page):
        if argv[1] in cli.COMMANDS or argv[1].startswith("scripts/"):  # those of Esper
            continue
        command_lines.understand(argv, monkeypatch, check_audit)
        if "--" in argv:  # learn_controllers.py: what follows are settings of a controller
            argv = ["esper", "train", "ppo", *argv[argv.index("--") + 1 :]]
            command_lines.understand(argv, monkeypatch, check_audit)


def test_bench_page():
    first, entry = blocks("docs/bench.md")
    small = "{n: bench.BUILT_IN[n] for n in ('one', 'oracle')}, episodes_per_context=1"
    names: dict[str, object] = {}
    exec(first.replace("leaderboard(records)", f"leaderboard(records, {small})"), names)
    assert names["curve"].accuracy.shape[-1] > 1
    exec(entry.replace('"mine": Mine}', '"mine": Mine}, episodes_per_context=1'), names)
    assert "mine" in {row.name for row in names["rows"]}
    assert len(bench.names()) > 4


@pytest.mark.slow
def test_audit_pages(tmp_path, monkeypatch):
    """docs/audit.md and docs/audit-analysis.md on a small audit in the folder that they name."""
    small = FinishedAudit(tmp_path / "small")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tmp_path / "small", tmp_path / "out" / "audit_digits_impaired_small")
    made = small.made
    plan = lambda obs: np.zeros(obs.slots.stage_ES.shape, dtype=np.int64)  # noqa: E731
    names: dict[str, object] = {
        "folder": tmp_path / "live", "audit": small.audit, "spec": made.spec, "info": made.info,
        "settings": replace(made.settings, envs=8), "data": made.data, "policy": ClosedLoop(plan),
    }  # fmt: skip
    for block in [*blocks("docs/audit.md"), *blocks("docs/audit-analysis.md")]:
        exec(block, names)
    assert names["score"].shape == names["final"].shape
