"""docs/own-host.md: its code runs and its claims hold."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from esper.kasmina import BlueprintRegistry, Population, PopulationConfig
from esper.leyline import SeedStage

PAGE = Path(__file__).parents[2] / "docs" / "own-host.md"


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """The names the page defines, after all its blocks have run in order."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) >= 4
    names: dict[str, Any] = {"__name__": "own_host_page"}
    try:
        for block in blocks:
            exec(compile(block, str(PAGE), "exec"), names)
        yield names
    finally:
        if "wide_signal" in BlueprintRegistry.names("cnn"):
            BlueprintRegistry.unregister("wide_signal")


def test_the_resnet_learns_and_its_seeds_are_blended_in(page):
    assert (page["accuracy"] > 0.8).all(), "chance is 0.25"
    life = page["resnets"].lifecycle
    assert [SeedStage(s).name for s in life.stage_ES[:, 1]] == ["HOLDING", "HOLDING", "DORMANT"]
    assert page["resnets"].choice.executor.name == "vmap"


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_batchnorm_statistics_are_those_of_a_plain_resnet(page, executor):
    """The same batches through an ordinary module give the same running statistics."""
    population = Population(
        page["SmallResNet"], ["r0c0", "r0c1"], ["norm", "conv_light"], 2,
        config=PopulationConfig(executor=executor, host_lr=0.0),
    )  # fmt: skip
    plain = population.member(1).host
    plain = type(plain)().train()
    plain.load_state_dict(population.member(1).host.state_dict())
    population.germinate([1], "r0c0", "conv_light")
    population.begin_step()
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        x = torch.randn(2, 6, 1, 8, 8, generator=generator)
        population.train_batch(x, torch.zeros(2, 6, dtype=torch.int64))
        plain(x[1])
    for name, buffer in plain.named_buffers():
        torch.testing.assert_close(population.member(1).host.get_buffer(name), buffer, msg=name)
    before = population.network.host.fixed["block1.norm1.running_mean"].clone()
    population.evaluate(x, torch.zeros(2, 6, dtype=torch.int64))
    assert torch.equal(population.network.host.fixed["block1.norm1.running_mean"], before)


def test_a_twin_of_the_resnets_block_changes_nothing_at_birth(page):
    assert torch.equal(page["grown"].forward(page["x"]), page["before"])
    parameters = page["grown"].parameters_E()
    assert parameters[0] == parameters[1] > parameters[2]


def test_the_signal_net_takes_a_seed_of_its_own(page):
    shadow = page["stats"].shadow_loss_ES
    assert torch.isfinite(shadow).tolist() == [[False], [True]]
    names = dict(page["signals"].member(1).named_parameters())
    assert names["seeds.r0c0.delta.conv.weight"].shape == (6, 6, 1, 9)


def test_the_moody_host_runs_under_loop_and_says_why(page):
    choice = page["moody"].choice
    assert choice.executor.name == "loop"
    assert "Moody cannot be vmapped" in choice.reason


def test_dropout_is_repeatable_as_the_page_says(page):
    assert torch.equal(*page["losses"])
    assert page["dropping"].network.sites.keys() == {1}


def test_the_task_file_of_the_page_is_trained_and_compared(tmp_path, monkeypatch):
    """What the page says to save, its commands with fewer rounds and hosts."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    (task,) = (block for block in blocks if "waves_task" in block)
    model = "".join(blocks[: blocks.index(task)])
    wanted = ("Classifier", "Conv1dBlock", "SignalNet", "WideSignal")
    parts = re.split(r"\n\n\n|(?=@blueprint)", model)
    kept = [one for one in parts if re.search(rf"^class ({'|'.join(wanted)})\b", one, re.MULTILINE)]
    imports = re.findall(r"^(?:import|from) .*$", model, flags=re.MULTILINE)
    Path("waves.py").write_text("\n\n\n".join(["\n".join(imports), *kept, task]))
    commands = re.findall(r"^esper (.* --task waves\.py[^#\n]*)", PAGE.read_text(), re.MULTILINE)
    assert len(commands) == 3
    small = ["--envs", "2", "--device", "cpu", "--episode-length", "3", "--batches-per-step", "1"]
    for command in commands:
        words = command.replace("--rounds 30", "--rounds 1").split()
        words = [str(*Path("runs").glob("waves__ppo__*")) if w == "RUN" else w for w in words]
        count = ["--seeds", "2"] if words[0] == "compare" else []
        argv = [sys.executable, "-m", "esper.scripts.main", *words, *count, *small]
        ended = subprocess.run(argv, capture_output=True, text=True)
        assert ended.returncode == 0, (command, ended.stderr)
