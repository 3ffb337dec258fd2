"""Code on pages without a test of their own runs; no page has code that nothing runs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import command_lines
from esper.compare.config import Compare
from esper.kasmina import BlueprintRegistry
from esper.leyline import ActionMasks, LifecycleOp
from esper.scripts import main as cli
from esper.simic.client import policy_spec
from esper.tamiyo import Observation
from esper.tamiyo.grammar import parse_all
from esper.tamiyo.inputs import FIXED_CHOICES, FIXED_SIZES
from page_support import DOCS, ROOT, blocks
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


def check_comparison(config: object) -> None:
    """Policies and hosts of `esper compare`, which its settings leave to the task."""
    if isinstance(config, Compare):
        parse_all(config.policies)
        config.populations(config.task.spec())


@pytest.mark.parametrize("page", command_lines.PAGES, ids=lambda p: p.stem)
def test_commands_of_a_page_are_understood(page, tmp_path, monkeypatch):
    command_lines.enter_checkout(tmp_path, monkeypatch)
    assert not command_lines.stray_commands(page), "a block for the shell begins with ```sh"
    for argv in command_lines.commands(page):
        if argv[1] in cli.COMMANDS or argv[1].startswith("scripts/"):  # others are of the lab
            command_lines.understand(argv, monkeypatch, check_comparison)


def test_commands_in_blocks_and_in_sentences_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "Try `esper tasks`, `--json` or `esper train ppo\n--rounds 3`.\n\n"
        "```sh\nX=1 esper show \\\n  RUN   # a run\ntorchrun -m esper.scripts.train wait\n```\n"
        "```\npython scripts/duel.py\n```\n"
    )
    shown, trained, spoken = command_lines.commands(page)
    assert (shown, trained) == (["esper", "show", "RUN"], ["esper", "train", "wait"])
    assert spoken == ["esper", "train", "ppo", "--rounds", "3"]
    assert command_lines.stray_commands(page) == ["python scripts/duel.py"]


def test_a_command_with_a_wrong_flag_a_missing_file_or_an_unknown_policy_is_refused(
    tmp_path, monkeypatch
):
    command_lines.enter_checkout(tmp_path, monkeypatch)
    for line in (
        "esper train wait --tsak digits_impaired",
        "esper compare wait --task digits_impaired --contexts lab/contexts/none.json",
        "esper compare wiat --task digits_impaired",
        "python scripts/duel.py --lanes 4",
    ):
        with pytest.raises((AssertionError, SystemExit)):
            command_lines.understand(line.split(), monkeypatch, check_comparison)
