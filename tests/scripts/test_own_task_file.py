"""User task files: every mistake in one is exit status 2 and one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from esper.kasmina import BlueprintRegistry
from esper.scripts import compare, train

BASE = """
import numpy as np
import torch
from torch import nn
from esper.kasmina import blueprint
from esper.leyline import InjectionSpec
from esper.tasks.spec import TaskSpec
from esper.tasks.task_data import TaskData, TaskPart


class Block(nn.Module):
    def __init__(self, c_in, c_out):
        super().__init__()
        self.conv = nn.Conv2d(c_in, c_out, 3, padding=1)

    def forward(self, x):
        return torch.relu(self.conv(x))


class Host(nn.Module):
    topology = "cnn"

    def __init__(self, outputs=2, channels=1):
        super().__init__()
        self.first, self.second = Block(channels, 4), Block(4, 6)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, outputs))

    def segments(self):
        return (self.first, self.second, self.head)

    def injection_specs(self):
        return (InjectionSpec("r0c0", 4, 0, "after"), InjectionSpec("r0c1", 6, 1, "after"))

    def forward(self, x):
        return self.head(self.second(self.first(x)))


def part(count, seed=0):
    rng = np.random.default_rng(seed)
    return TaskPart(rng.normal(size=(count, 1, 6, 6)).astype(np.float32), np.arange(count) % 2)


def load(**changes):
    parts = dict(train=part(16), val_control=part(8, 1), val_score=part(8, 2), test=part(8, 3))
    return TaskData(**parts | dict(mean=[0.0], std=[1.0]) | changes)


def spec(**changes):
    return TaskSpec(**dict(
        name="mine", description="", load_data=load, host_factory=Host, topology="cnn",
        slots=("r0c0", "r0c1"), blueprints=("norm",), num_classes=2, input_shape=(1, 6, 6),
        batch_size=4, batches_per_step=1, episode_length=2, chance=0.5,
    ) | changes)
"""

IN_FORWARD = """
class Wrong(Block):
    def forward(self, x):
        {body}

class Mine(Host):
    def __init__(self):
        super().__init__()
        self.second = Wrong(4, 6)

MINE = spec(host_factory=Mine)
"""
SUBCLASS = "class Mine(Host):\n    {body}\nMINE = spec(host_factory=Mine{settings})"


def subclass(body: str, settings: str = "") -> str:
    return SUBCLASS.format(body=body, settings=settings)


MISTAKES: dict[str, tuple[str, str]] = {
    "a model, not a factory": (
        "MINE = spec(host_factory=Host())",
        "host_factory is a Host, already made; give a function that makes the host",
    ),
    "data, not a function": ("MINE = spec(load_data=load())", "load_data is a TaskData"),
    "a factory with arguments": ("MINE = spec(host_factory=Block)", "host factory Block fails"),
    "one model for all": (
        "ONE = Host()\nMINE = spec(host_factory=lambda: ONE)",
        "host factory returns the same Host each time",
    ),
    "no host": ("MINE = spec(host_factory=lambda: nn.Linear(2, 2))", "Linear is not a host"),
    "too many outputs": (
        "MINE = spec(host_factory=lambda: Host(5))",
        "task mine: the host gives outputs (5,) for a sample, num_classes=2 means (2,)",
    ),
    "too few outputs": ("MINE = spec(host_factory=lambda: Host(1))", "gives outputs (1,)"),
    "other channels": (
        "MINE = spec(host_factory=lambda: Host(2, 3))",
        "host Host segment 0 (Block) fails on (1, 1, 6, 6), float32: RuntimeError at mine.py:",
    ),
    "float64": ("MINE = spec(host_factory=lambda: Host().double())", "is float64"),
    "a tuple": (subclass("def forward(self, x): return super().forward(x), 0"), "returns tuple"),
    "axes": (
        subclass("topology = 'mlp'", ", topology='mlp'"),
        "host Mine segment 0 gives shape (1, 4, 6, 6) at slot r0c0: topology 'mlp' means [B, C]",
    ),
    "two topologies": ("MINE = spec(topology='mlp')", "its host declares 'cnn'"),
    "a width": (
        subclass("def injection_specs(self): return [InjectionSpec('r0c1', 5, 1, '')]",
                 ", slots=['r0c1']"),
        "promises 5 channels",
    ),
    "a name in forward": (
        IN_FORWARD.format(body="return undefined"),
        "host Mine segment 1 (Wrong) fails on (1, 4, 6, 6), float32: NameError at mine.py:",
    ),
    "an error in training only": (
        IN_FORWARD.format(body="return super().forward(x) if not self.training else undefined"),
        "NameError at mine.py:",
    ),
    "an unknown slot": ("MINE = spec(slots=['r0c5'])", "unknown slot 'r0c5' of Host"),
    "data that fail": (
        "MINE = spec(load_data=lambda: np.load('/nowhere.npy'))",
        "task mine: load_data fails: FileNotFoundError at mine.py:",
    ),
    "no data": ("MINE = spec(load_data=lambda: None)", "load_data returns a NoneType"),
    "lists": (
        "MINE = spec(load_data=lambda: load(train=TaskPart([[0.0]], [0])))",
        "TaskPart inputs: got a list",
    ),
    "labels out of range": (
        "MINE = spec(load_data=lambda: load(test=TaskPart(part(8).inputs, np.full(8, 7))))",
        "task mine: labels 7 to 7 in test, valid are 0 to 1",
    ),
    "a constant image": ("MINE = spec(load_data=lambda: load(std=[0.0]))", "inputs are constant"),
    "channels last": (
        "MINE = spec(load_data=lambda: load(**{name: TaskPart(part(8).inputs.transpose(0, 2, 3, 1),"
        "part(8).labels) for name in ('train', 'val_control', 'val_score', 'test')}))",
        "task mine: samples of (6, 6, 1), expected (1, 6, 6)",
    ),
    "a blueprint": (
        "@blueprint('test_own', topologies=('cnn',))\nclass Narrow(nn.Module):\n"
        "    def __init__(self, w): super().__init__(); self.conv = nn.Conv2d(w, w, 3)\n"
        "    def forward(self, x): return self.conv(x)\n"
        "MINE = spec(blueprints=('norm', 'test_own'))",
        "blueprint 'test_own' turns (2, 4, 4, 4) into (2, 4, 2, 2)",
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    yield
    if "test_own" in BlueprintRegistry.names("cnn"):
        BlueprintRegistry.unregister("test_own")


def error_line(status: int, capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr()
    assert status == 2, said
    line, *more = said.err.splitlines()
    assert not more, said.err
    assert line.startswith("error: ")
    return line


SMALL = ("--envs", "2", "--rounds", "1", "--quiet")


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_a_task_file_is_one_line(name, capsys):
    code, words = MISTAKES[name]
    Path("mine.py").write_text(f"{BASE}\n{code}\n")
    line = error_line(train.main(["wait", "--task", "mine.py", *SMALL]), capsys)
    assert words in line


COMMANDS = {
    "dry run": [train.main, "wait", "--task", "mine.py", "--dry-run", *SMALL],
    "ppo": [train.main, "ppo", "--task", "mine.py", *SMALL],
    "compare": [compare.main, "wait", "random", "--task", "mine.py", "--seeds", "2"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_a_task_file_before_anything_trains(command, capsys):
    code, words = MISTAKES["a name in forward"]
    Path("mine.py").write_text(f"{BASE}\n{code}\n")
    main, *argv = COMMANDS[command]
    assert words in error_line(main(argv), capsys)
    if command != "compare":
        assert [path.name for path in Path().rglob("*")] == ["mine.py"], "no run folder is left"


def test_a_task_file_with_tensors_runs(capsys):
    code = """
def tensors(count):
    return TaskPart(torch.randn(count, 1, 6, 6), torch.arange(count) % 2)

MINE = spec(load_data=lambda: load(train=tensors(16), val_control=tensors(8), test=tensors(8),
    val_score=tensors(8), mean=torch.zeros(1), std=torch.ones(1)))
"""
    Path("mine.py").write_text(f"{BASE}\n{code}\n")
    assert train.main(["wait", "--task", "mine.py", *SMALL]) == 0, capsys.readouterr().err
