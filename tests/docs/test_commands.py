"""docs/commands.md and README: every command works, every setting is described."""

from __future__ import annotations

import asyncio
import importlib
import re
import shlex
import shutil
from functools import partialmethod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_tables import written
from esper.karn.tui.app import EsperTUI
from esper.scripts import grow, train
from esper.scripts import main as cli
from esper.scripts.evaluate import _read_evaluate
from esper.scripts.train.learner_config import read_train_ppo
from esper.simic.training.runs.kept_members import KeptMembers

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "commands.md").read_text()
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE + README, flags=re.DOTALL)


def commands() -> list[list[str]]:
    """Every `esper` command as its arguments, once; `python -m` is spelled the same way."""
    lines = [shlex.split(line, comments=True) for block in BLOCKS for line in block.splitlines()]
    found = []
    for argv in lines:
        if argv[:2] == ["python", "-m"] and argv[2].startswith("esper.scripts."):
            argv = ["esper", argv[2].removeprefix("esper.scripts."), *argv[3:]]
        if argv and Path(argv[0]).name == "esper":
            found.append(argv[1:])
    return [list(argv) for argv in dict.fromkeys(map(tuple, found))]


COMMANDS = commands()
SMALL = ["--envs", "1", "--episode-length", "5", "--batches-per-step", "1", "--device", "cpu"]
GROW = ["--epochs", "1", "--host-runs", "1", "--widths", "2", "--device", "cpu", "--quiet"]
TINY = ["--task", "synthetic", *SMALL, "--batch-size", "8", "--blueprints", "norm", "depthwise"]


STORE = KeptMembers.store_plain  # conftest.py replaces it when the tests begin


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A folder with the run that the pages call RUN, and the files they name."""
    root = tmp_path_factory.mktemp("docs")
    flags = [*TINY, "--rounds", "1", "--quiet", "--runs", str(root / "runs")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KeptMembers, "store_plain", STORE)
        assert train.main(["ppo", *flags]) == 0
    (run,) = (root / "runs").iterdir()
    run.rename(run.with_name("RUN"))
    (shown,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)
    (root / "mine.toml").write_text(shown)
    (root / "rules.toml").write_text("take_turns = true\nprobation_steps = 2\n")
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    (root / "mine.py").write_text(code)
    names: dict[str, Any] = {}
    exec(code, names)
    x, y = names["train"]()
    np.savez(root / "data.npz", x=x, y=y)
    argv = [f"{root}/mine.py:model", "--train", f"{root}/data.npz", "--folder", str(root / "runs")]
    assert grow.main([*argv, *GROW]) == 0
    (run,) = (root / "runs").glob("*__grow__*")
    run.rename(run.with_name("GROWN"))
    return root


def test_the_pages_show_every_command():
    assert {argv[0] for argv in COMMANDS} == set(cli.COMMANDS)
    assert len(COMMANDS) > 20


def smaller(command: str, flags: list[str]) -> list[str]:
    """Flags that make a command of the pages cheap."""
    if command == "eval":
        _read_evaluate(flags)[1].check()
    return {
        "eval": ["--envs", "1", "--device", "cpu", "--episode-length", "3"],
        "grow": list(GROW),
        "serve": ["--port", "0"],
        "train": [*SMALL, "--quiet"],
        "compare": ["--seeds", "2", *SMALL[2:], "--quiet"],
    }.get(command, [])


@pytest.mark.parametrize("argv", COMMANDS, ids=" ".join)
def test_every_command_on_the_pages_works(argv, trained, tmp_path, monkeypatch):
    """Cheap ones are run, made smaller; what trains a controller is read and checked."""
    place = tmp_path / "here"
    shutil.copytree(trained, place)
    monkeypatch.chdir(place)
    monkeypatch.delenv("ESPER_DATA_DIR", raising=False)
    command, *flags = argv
    if argv[:2] == ["train", "ppo"]:
        read_train_ppo(flags[1:]).check()
        return
    if command == "query" and len(flags) > 1:
        pytest.importorskip("duckdb")
    flags += smaller(command, flags)
    module = importlib.import_module(cli.COMMANDS[command].module)
    if command == "tui":
        monkeypatch.setattr("esper.scripts.tui._is_terminal", lambda: True)
        monkeypatch.setattr(EsperTUI, "run", partialmethod(EsperTUI.run, headless=True))
        monkeypatch.setattr(EsperTUI, "on_ready", lambda app: app.exit(), raising=False)
    if command == "serve":
        monkeypatch.setattr("uvicorn.Server.serve", lambda server, sockets: asyncio.sleep(0))
    assert module.main(flags) == 0


def test_the_file_on_the_page_says_what_it_seems_to(trained):
    config = read_train_ppo(["--config", str(trained / "mine.toml")]).training
    assert (config.rounds, config.task.rent, config.population.envs) == (50, 2.0, 32)
    assert config.ppo.target_kl is None
    assert config.check().name == "digits_impaired"


def test_the_tables_are_what_help_says():
    assert written(PAGE) == PAGE, "run: python tests/command_tables.py"


def test_missing_data_are_told_as_the_founding_command_is_written(tmp_path, monkeypatch, capsys):
    (argv,) = [w for w in COMMANDS if "--telemetry-dir" in w and "ppo" in w]
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ESPER_DATA_DIR", raising=False)
    assert train.main(argv[1:]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    for word in ("$ESPER_DATA_DIR", "./data", "--data synthetic"):
        assert word in said
    assert not list(tmp_path.iterdir()), "nothing was written"


def test_a_config_of_the_run_is_a_file_of_the_same_run(trained):
    path = trained / "runs" / "RUN" / "config.json"
    again = read_train_ppo(["--config", str(path)]).training
    assert again.population.envs == 1
    assert again.task.name == "synthetic"
