"""Every host kind and every blueprint of ours becomes a plain model and can be exported."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch
from torch import Tensor

from esper.kasmina import Population
from esper.kasmina.export.export import export_onnx, export_pt2
from esper.leyline import BlendStyle
from plain_support import assert_same_output, classes_of, stir
from support import KINDS, batch, make_population

EVERY_SEED = [
    (kind, tuple(made.blueprints[(first + slot) % len(made.blueprints)] for slot in range(3)))
    for kind, made in KINDS.items()
    for first in range(0, len(made.blueprints), 3)
]
"""Three blueprints at a time."""
NO_ONNX = importlib.util.find_spec("onnxruntime") is None


def with_seeds(kind: str, names: tuple[str, ...]) -> Population:
    """One of the seeds in each slot, each with another style and alpha; parameters stirred."""
    population = make_population(members=2, kind=kind)
    # running statistics that are not those of birth
    population.train_batch(*batch(2, kind=kind))
    for slot, name, style, alpha in zip(
        population.slots, names, BlendStyle, (0.37, 0.6, 1.0), strict=True
    ):
        population.plant([0, 1], slot, name, style)
        population.lifecycle.alpha_ES[:, population.slots.index(slot)] = alpha
    population.lifecycle.version += 1
    stir(population)
    return population


def inputs(kind: str, size: int) -> Tensor:
    return batch(1, seed=7, size=size, kind=kind)[0][0]


@pytest.mark.parametrize(("kind", "names"), EVERY_SEED)
def test_plain_model_has_the_members_output(kind, names):
    population = with_seeds(kind, names)
    plain = assert_same_output(population, 1, inputs(kind, 4))
    assert "esper" not in classes_of(plain)
    assert not plain.meta.get("untraced")


def test_plain_transformer_keeps_its_tied_head_and_trains():
    population = with_seeds("transformer", ("lora", "attention", "mlp"))
    plain = population.member(0).to_plain().train()
    shapes = [tuple(p.shape) for p in plain.parameters()]
    vocab = population.network.host.shapes["embedding.tokens.weight"]
    assert shapes.count(vocab) == 1, "one parameter at both ends"
    kept = population.network.host.flat_EP.detach().clone()
    x, y = (t[0] for t in batch(1, seed=3, size=8, kind="transformer"))
    optimiser = torch.optim.SGD(plain.parameters(), lr=0.05)
    losses = []
    for _ in range(15):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(plain(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert torch.equal(population.network.host.flat_EP.detach(), kept), "the population stays"


@pytest.mark.parametrize("kind", KINDS)
def test_exported_forms_have_the_members_output_at_any_batch_size(kind, tmp_path):
    names = KINDS[kind].blueprints
    population = with_seeds(kind, (names[-1], names[0], names[-2]))
    model = population.member(1)
    export_pt2(model, tmp_path / "member.pt2", inputs(kind, 3))
    loaded = torch.export.load(tmp_path / "member.pt2").module()
    for size in (1, 5):
        with torch.no_grad():
            expected = model(inputs(kind, size))
        torch.testing.assert_close(loaded(inputs(kind, size)), expected, rtol=0, atol=1e-5)


@pytest.mark.skipif(NO_ONNX, reason="needs the extra: pip install '.[export]'")
@pytest.mark.parametrize("kind", KINDS)
def test_onnx_has_the_members_output_at_any_batch_size(kind, tmp_path):
    import onnxruntime

    names = KINDS[kind].blueprints
    population = with_seeds(kind, (names[-1], names[0], names[-2]))
    model = population.member(1)
    export_onnx(model, tmp_path / "member.onnx", inputs(kind, 3))
    session = onnxruntime.InferenceSession(tmp_path / "member.onnx")
    for size in (1, 5):
        with torch.no_grad():
            expected = model(inputs(kind, size)).numpy()
        (found,) = session.run(["y"], {"x": inputs(kind, size).numpy()})
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
