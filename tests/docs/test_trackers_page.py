"""docs/trackers.md: its code runs as written, its commands are read, and it names all trackers."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from esper.compare import Compare
from esper.nissa.trackers.names import LIBRARIES
from esper.scripts.cli.command import read_command_line
from esper.scripts.grow import Grow
from esper.scripts.train.learner_config import read_train_ppo

PAGE = Path(__file__).parents[2] / "docs" / "trackers.md"
TEXT = PAGE.read_text()


@pytest.mark.slow
def test_the_code_runs_as_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL):
        exec(compile(block, str(PAGE), "exec"), names)
    said = capsys.readouterr().out
    assert "static-full:norm" in said


def test_commands_are_read():
    (block,) = re.findall(r"```sh\n(.*?)```", TEXT, flags=re.DOTALL)
    read = {
        "train": lambda argv: read_train_ppo(argv[1:]).recording.track,
        "grow": lambda argv: read_command_line(Grow, argv).track,
        "compare": lambda argv: read_command_line(Compare, argv).track,
    }
    found = [shlex.split(line)[1:] for line in block.splitlines() if line.startswith("esper")]
    tracked = [read[verb](argv) for verb, *argv in found]
    assert tracked == [("tensorboard", "wandb", "mlflow"), ("tensorboard",), ("mlflow",)]


def test_every_tracker_is_on_the_page():
    for name in LIBRARIES:
        assert re.search(rf"^\| `{name}` \|", TEXT, re.MULTILINE)
