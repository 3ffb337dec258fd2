"""The comparison of twins with fresh blocks: every arm runs, at equal compute, and is written."""

import json
from pathlib import Path

import pytest
import torch

from compare_twin import CompareTwin, compare
from esper.kasmina import BlueprintRegistry, Population, ResNetHost
from esper.scripts.cli.command import run_command
from twin_training import fresh_blocks


def call(*flags: str) -> int:
    return run_command(CompareTwin, compare, flags)


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_quick_comparison_trains_every_arm_at_equal_compute(tmp_path: Path, capsys, norm: str):
    path = tmp_path / "twin.json"
    assert call("--quick", "--norm", norm, "--out", str(path)) == 0
    record = json.loads(path.read_text())
    arms = {arm["name"]: arm for arm in record["arms"]}
    assert list(arms) == ["small", "twin", "fresh", "static"]
    twin, fresh, static = (arms[name] for name in ("twin", "fresh", "static"))
    for field in ("parameters", "macs", "batches", "tflop"):
        assert twin[field] == fresh[field]
    assert twin["macs"] == static["macs"] > arms["small"]["macs"]
    assert static["tflop"] == pytest.approx(twin["tflop"], rel=0.1)
    assert all(len(arm["curve"][-1][2]) == 2 for arm in arms.values())
    assert set(record["twin minus fresh"]) == {"mean", "low", "high"}
    assert "twin minus fresh, points: " in capsys.readouterr().out


def test_fresh_blocks_change_nothing_at_birth_and_differ_from_twins_in_weights_only():
    x = torch.randn(2, 3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    with fresh_blocks("batch"):
        population = Population(
            lambda: ResNetHost(base_channels=4), ["r0c1"], ["twin", "fresh"], members=2
        )
    before = population.forward(x)
    for member, name in enumerate(("twin", "fresh")):
        population.plant([member], "r0c1", name)
    assert torch.equal(population.forward(x), before)
    twins, fresh = population.network.banks.values()
    assert sorted(twins.shapes.values()) == sorted(fresh.shapes.values())
    for costs in (population.macs_E(), population.parameters_E()):
        assert costs[0] == costs[1]
    assert "fresh" not in BlueprintRegistry.names("cnn")


@pytest.mark.parametrize("flags", [["--seeds", "0"], ["--epochs", "0"], ["--device", "abacus"]])
def test_bad_input_is_refused_in_one_line(tmp_path: Path, capsys, flags: list[str]):
    assert call(*flags, "--out", str(tmp_path / "twin.json")) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert (len(printed.err.splitlines()), printed.out) == (1, "")
