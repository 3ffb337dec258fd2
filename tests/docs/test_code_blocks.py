"""Code on pages without a test of their own runs; no page has code that nothing runs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from esper.compare.config import Compare
from esper.kasmina import BlueprintRegistry
from esper.leyline import ActionMasks, LifecycleOp
from esper.scripts.cli.command import read_command_line
from esper.scripts.train.config import read_train
from esper.scripts.train.learner_config import read_train_ppo
from esper.simic.client import policy_spec
from esper.tamiyo import Observation
from esper.tamiyo.inputs import FIXED_CHOICES, FIXED_SIZES
from page_support import DOCS, ROOT, blocks, shell_lines
from view_support import ppo_run

PAGES = sorted(DOCS.rglob("*.md"))


@pytest.mark.parametrize(
    "page", [p for p in PAGES if "```python\n" in p.read_text()], ids=lambda p: p.stem
)
def test_every_page_with_code_has_a_test_that_runs_it(page):
    folders = (ROOT / "tests", ROOT / "lab" / "tests")
    tests = [file.read_text() for place in folders for file in place.rglob("test_*.py")]
    name = page.relative_to(DOCS).as_posix()
    named = (f'"{name}"', f"docs/{name}", f'"{page.name}"')
    folder = page.parent == DOCS / "tutorials" and "TUTORIALS = sorted"
    assert any(any(n in text for n in named) or (folder and folder in text) for text in tests)


def test_contexts_page():
    (block,) = blocks("docs/contexts.md")
    names: dict[str, object] = {}
    exec(block, names)
    assert names["spec"].context.capped == 0.5


def test_study_page(tmp_path, monkeypatch):
    """docs/study.md: its population, as written."""
    (block,) = blocks("docs/study.md")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(block, "study.md", "exec"), names)
    assert (tmp_path / "out" / "my_population" / "manifest.json").exists()
    seeded = names["stats"].shadow_loss_ES.isfinite().any(dim=1)
    assert seeded.nonzero().flatten().tolist() == [0, 3]


def test_records_page(tmp_path, monkeypatch, capsys):
    run = ppo_run(tmp_path / "runs" / "run", rounds=2, events=False)
    (block,) = blocks("docs/records.md")
    monkeypatch.chdir(tmp_path)
    exec(block, {})
    first, *rounds = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{run.name} train finished 2 2 rounds")
    assert len(rounds) == 2


def test_ppo_page():
    """docs/ppo.md: its round, with observations drawn at random."""
    (block,) = blocks("docs/ppo.md")
    rng, ops, spec = np.random.default_rng(0), len(LifecycleOp), policy_spec()

    def observe() -> tuple[Observation, ActionMasks]:
        obs = Observation(
            rng.normal(size=(64, spec.global_features)).astype(np.float32),
            rng.normal(size=(64, 5, spec.slot_features)).astype(np.float32),
            rng.normal(size=(64, 5, 8, spec.candidate_features)).astype(np.float32),
            rng.integers(-1, 8, size=(64, 5)),
        )
        fixed = np.split(np.ones(FIXED_CHOICES, dtype=bool), np.cumsum(FIXED_SIZES)[:-1])
        op, slot = np.ones((64, ops), dtype=bool), np.ones((64, ops, 5), dtype=bool)
        return obs, ActionMasks(op, slot, np.ones((64, 5, 8), dtype=bool), *fixed)

    names = {
        "observe": observe, "round_index": 0, "reward_E": np.ones(64), "value_E": np.zeros(64),
        "terminal_E": np.zeros(64, dtype=bool),
    }  # fmt: skip
    exec(block.replace("50", "2"), names)
    assert np.isfinite(names["metrics"].value_loss)


def test_contributing_shows_a_blueprint():
    (block,) = blocks("CONTRIBUTING.md")
    names: dict[str, type[nn.Module]] = {}
    try:
        exec(block, names)
    finally:
        BlueprintRegistry.unregister("my_seed")
    seed, x = names["MySeed"](8), torch.randn(2, 8, 5, 5)
    (step,) = seed.seed_steps({name: value[None] for name, value in seed.named_parameters()})
    by_steps = F.group_norm(x, step.groups, step.scale[0], step.shift[0])
    torch.testing.assert_close(seed(x), by_steps)


COMMANDS = {
    "compare": lambda argv: read_command_line(Compare, argv).check(),
    "train": lambda argv: (
        read_train_ppo(argv[1:]).check() if argv[0] == "ppo" else read_train(argv[0], argv[1:])
    ),
}


@pytest.mark.parametrize("name", ["results.md", "growth.md", "gallery.md", "study.md"])
def test_commands_of_pages_with_results_are_understood(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "RUN").mkdir()
    read = 0
    for argv in shell_lines(DOCS / name):
        if argv[:2] == ["python", "-m"]:
            argv = ["esper", argv[2].removeprefix("esper.scripts."), *argv[3:]]
        if argv[:1] == ["python"]:
            assert (ROOT / argv[1]).is_file(), argv[1]
            read += 1
        if argv[:1] == ["esper"] and argv[1] in COMMANDS:
            COMMANDS[argv[1]](argv[2:])
            read += 1
    assert read
