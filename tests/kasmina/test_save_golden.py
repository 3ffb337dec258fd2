"""Saves that were made once and kept: they still load and give what they gave.

A test here fails when the format changes, or a built-in blueprint that a save may hold. If that is
meant: raise `saves.SCHEMA` and make new ones:

    PYTHONPATH=src:tests python tests/kasmina/test_save_golden.py
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from esper.kasmina import MorphogeneticModel, OptimConfig, Population, PopulationConfig
from esper.leyline import BlendStyle, InjectionSpec, SeedStage
from esper.storage import saves
from support import bring_to, good_signals

GOLDEN = Path(__file__).parent / "golden"


class GoldenHost(nn.Module):
    """Of plain layers, so that changes of our own hosts do not matter here."""

    topology = "cnn"

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3, padding=1)
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(27, 2))

    def segments(self) -> tuple[nn.Module, ...]:
        return (self.conv, self.head)

    def injection_specs(self) -> tuple[InjectionSpec, ...]:
        return (InjectionSpec("r0c0", 3, 0, "middle"),)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x))


def data() -> tuple[Tensor, Tensor]:
    """Inputs and targets that every machine makes alike."""
    values = torch.arange(2 * 4 * 9, dtype=torch.float32) * 0.37 % 2.0 - 1.0
    return values.view(2, 4, 1, 3, 3), torch.arange(8).view(2, 4) % 2


def story(population: Population) -> dict[str, list[float]]:
    """What a population gives, at once and after another step."""
    x, y = data()
    out = population.forward(x)
    population.begin_step()
    loss = population.train_batch(x, y).loss_E
    after = population.evaluate(x, y).loss_R
    population.end_step(good_signals(population))
    reported = {"outputs": out, "loss": loss, "after": after}
    return {name: value.flatten().tolist() for name, value in reported.items()}


def make() -> None:
    """Write the saves and what they give."""
    config = PopulationConfig(executor="loop", optim=OptimConfig(kind="adamw"))
    p = Population(GoldenHost, ("r0c0",), ("norm", "conv_light"), 2, seed=11, config=config)
    p.reset(4)
    bring_to(p, SeedStage.BLENDING, [1], "r0c0", "conv_light", style=BlendStyle.GATE, tempo=8)
    story(p)
    p.save(GOLDEN / "population")
    p.member(1).save(GOLDEN / "member")
    member = {"member": p.member(1)(data()[0][1]).flatten().tolist()}
    (GOLDEN / "expected.json").write_text(json.dumps(member | story(p), indent=1) + "\n")


@pytest.fixture
def expected() -> dict[str, list[float]]:
    return json.loads((GOLDEN / "expected.json").read_text())


def test_the_kept_population_loads_and_goes_on(expected):
    p = Population.load(GOLDEN / "population", GoldenHost)
    assert p.passes_E.tolist() == [1, 1]
    assert (p.seed, p.round, p.members) == (11, 4, 2)
    assert p.config == PopulationConfig(executor="loop", optim=OptimConfig(kind="adamw"))
    assert p.lifecycle.stage_ES.tolist() == [[SeedStage.DORMANT], [SeedStage.BLENDING]]
    assert p.lifecycle.alpha_ES.tolist() == [[0.0], [0.125]]
    for name, values in story(p).items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_the_kept_member_loads(expected):
    model = MorphogeneticModel.load(GOLDEN / "member", GoldenHost)
    assert model.stages == {"r0c0": SeedStage.BLENDING}
    out = model(data()[0][1]).flatten().tolist()
    np.testing.assert_allclose(out, expected["member"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["population", "member"])
def test_what_is_written_now_has_the_form_of_the_kept_saves(kind, tmp_path):
    """The same keys and tensor names under the same schema number: else raise it."""
    p = Population.load(GOLDEN / "population", GoldenHost)
    (p if kind == "population" else p.member(1)).save(tmp_path)
    forms = []
    for folder in (GOLDEN / kind, tmp_path):
        manifest = json.loads((folder / "manifest.json").read_text())
        tensors = saves.read_save(folder, kind).tensors
        forms.append((manifest["schema"], keys(manifest["content"]), set(tensors)))
    assert forms[0] == forms[1]


def keys(value: object) -> object:
    """The skeleton of JSON data."""
    if isinstance(value, dict):
        return {name: keys(inner) for name, inner in value.items()}
    return [keys(inner) for inner in value] if isinstance(value, list) else type(value).__name__


if __name__ == "__main__":
    make()
