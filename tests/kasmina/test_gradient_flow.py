"""A blended or permanent seed never cuts the host off from its gradient."""

from __future__ import annotations

import contextlib

import pytest
import torch

from esper.kasmina import Population
from esper.leyline import BlendStyle, SeedStage
from support import KINDS, batch, bring_to, make_population, poison


@pytest.mark.parametrize(
    ("executor", "style", "stage", "detach"),
    [
        ("vmap", BlendStyle.ADD, SeedStage.BLENDING, False),
        ("vmap", BlendStyle.ADD, SeedStage.BLENDING, True),
        ("vmap", BlendStyle.MULTIPLY, SeedStage.FOSSILIZED, True),
        ("loop", BlendStyle.ADD, SeedStage.HOLDING, False),
        ("loop", BlendStyle.GATE, SeedStage.HOLDING, False),
    ],
)
def test_every_segment_before_a_seed_receives_a_gradient(executor, style, stage, detach):
    population = make_population(members=2, executor=executor, detach_seed_input=detach)
    for slot, name in zip(population.slots, ("conv_light", "attention", "conv_heavy"), strict=True):
        bring_to(population, stage, [0, 1], slot, name, style=style, tempo=8)
    assert_every_host_gradient_alive(population, "cnn")


@pytest.mark.parametrize(
    ("executor", "stage"), [("vmap", SeedStage.HOLDING), ("loop", SeedStage.FOSSILIZED)]
)
@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("transformer", ("attention", "mlp", "lora")),
        ("transformer", ("lora_large", "norm", "mlp_small")),
        ("mlp", ("norm", "gate", "mlp")),
        ("batchnorm", ("depthwise", "bottleneck", "conv_small")),
    ],
)
def test_every_segment_of_any_host_receives_a_gradient(kind, names, executor, stage):
    population = make_population(members=2, executor=executor, kind=kind)
    for slot, name, style in zip(population.slots, names, BlendStyle, strict=True):
        bring_to(population, stage, [0, 1], slot, name, style=style)
    assert_every_host_gradient_alive(population, kind)


def assert_every_host_gradient_alive(population: Population, kind: str) -> None:
    x, y = batch(2, kind=kind)
    population.loss(population.forward(x, training=True), y).sum().backward()
    grads = population.network.host.named(population.network.host.flat_EP.grad)
    for name, grad in grads.items():
        norms = grad.flatten(1).norm(dim=1)
        assert (norms > 0).all(), f"{name} of every member"
        assert torch.isfinite(norms).all()


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_detached_input_keeps_the_seed_out_of_the_host_gradient(executor):
    """With the seed's input detached, the host's gradient passes the identity path alone."""
    populations = {
        detach: make_population(members=1, executor=executor, detach_seed_input=detach)
        for detach in (False, True)
    }
    grads = {}
    for detach, population in populations.items():
        bring_to(population, SeedStage.HOLDING, [0], "r0c1", "conv_light")
        x, y = batch(1)
        population.loss(population.forward(x, training=True), y).sum().backward()
        grads[detach] = population.network.host.named(population.network.host.flat_EP.grad)
    assert not torch.equal(
        grads[False]["blocks.0.conv.weight"], grads[True]["blocks.0.conv.weight"]
    )
    torch.testing.assert_close(
        grads[False]["head.linear.weight"], grads[True]["head.linear.weight"]
    )


@pytest.mark.parametrize("in_inference_mode", [False, True])
def test_a_batch_uses_no_autograd_node_of_an_earlier_graph_that_still_lives(in_inference_mode):
    """They belong to the CUDA stream of that graph, and break a capture."""
    population = make_population(members=2)
    host = population.network.host
    x, y = batch(2)
    held = torch.autograd.graph.get_gradient_edge(host.flat_EP).node
    called = []
    held.register_prehook(called.append)
    with torch.inference_mode() if in_inference_mode else contextlib.nullcontext():
        host.begin_pass()
    population.train_batch(x, y)
    assert not called
    assert host.flat_EP.requires_grad
    assert not host.flat_EP.is_inference()


@pytest.mark.parametrize("kind", KINDS)
def test_alpha_zero_means_not_computed_at_all(kind):
    """NaN in a seed that is switched off in a row does not touch the row."""
    name = KINDS[kind].seed
    population = make_population(members=2, kind=kind)
    bring_to(population, SeedStage.HOLDING, [0, 1], "r0c1", name)
    poison(population, "r0c1", name, member=0)
    x, _ = batch(2, kind=kind)
    off = population.forward(x, alpha_RS=torch.zeros(2, 3).numpy())
    assert torch.isfinite(off).all()
    assert torch.isnan(population.forward(x)[0]).all()
    assert torch.isfinite(population.forward(x)[1]).all()
