"""Randomness that Esper does not control is named in one line; the rest finds an executor."""

from __future__ import annotations

import logging
import random
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from esper.kasmina import CNNHost
from esper.kasmina.layers import random_probe
from esper.kasmina.layers.random_probe import draws_nothing, find_draws
from random_support import RandomHost, blueprints_of, random_population, random_seed, train
from support import KINDS, batch, make_population, refused


class Layer(nn.Module):
    """Does something random in training."""

    def forward(self, x: Tensor) -> Tensor:
        return self.change(x) if self.training else x


class NumpyNoise(Layer):
    def change(self, x: Tensor) -> Tensor:
        return x * float(np.random.rand())


class PythonNoise(Layer):
    def change(self, x: Tensor) -> Tensor:
        return x * random.random()


class OwnGenerator(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng(0)

    def change(self, x: Tensor) -> Tensor:
        return x * float(self.generator.random())


class Multinomial(Layer):
    def change(self, x: Tensor) -> Tensor:
        return x * torch.multinomial(torch.ones(5, device=x.device), 1)


class Attention(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.qkv, self.dropout = nn.Linear(width, 3 * width), dropout

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unsqueeze(1).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v, None, self.dropout)


class MultiHead(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 2, dropout, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Dropout(0.5), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x, use_reentrant=False)


SOURCES = {
    "numpy.random": NumpyNoise,
    "Python's random": PythonNoise,
    "a source that is not known": OwnGenerator,
    "torch.multinomial": Multinomial,
    "torch.utils.checkpoint": Checkpointed,
}


def host_with(name: str, layer: type[nn.Module]) -> type[nn.Module]:
    """A host class of that name, with ordinary dropout as well."""

    def __init__(self) -> None:  # noqa: N807
        RandomHost.__init__(self)
        self.drop = layer()

    return type(name, (RandomHost,), {"__init__": __init__})


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.message for r in caplog.records if "not reproducible" in r.message]


@pytest.mark.parametrize("source", list(SOURCES))
def test_a_source_that_is_not_ours_is_named_once(source, caplog):
    host = host_with(f"Noisy{SOURCES[source].__name__}", SOURCES[source])
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            train(random_population(2, "loop", host), [0, 1])
    (line,) = lines(caplog)
    assert "this run is not reproducible" in line
    assert f"host {host.__name__} draws random numbers from {source}" in line
    assert "\n" not in line


def test_a_blueprint_is_named_too(caplog):
    with (
        caplog.at_level(logging.WARNING),
        blueprints_of(t_numpy_noise=random_seed(NumpyNoise)) as names,
    ):
        population = random_population(2, "loop", blueprints=names)
        assert not lines(caplog)
        population.germinate([0], "r0c1", "t_numpy_noise")
        population.germinate([1], "r0c2", "t_numpy_noise")
    (line,) = lines(caplog)
    assert "blueprint 't_numpy_noise' draws random numbers from numpy.random" in line


def test_checkpointed_dropout_has_the_gradient_of_its_own_mask():
    """It draws again in the backward pass: from torch's generator, which is set back for it."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.full((1,), 2.0))

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.inner, x, use_reentrant=False)

        def inner(self, x: Tensor) -> Tensor:
            return F.dropout(x * self.weight, 0.5, self.training)

    class Host(nn.Module):
        topology = "mlp"

        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList([Scaled(), nn.Flatten()])

        def segments(self):
            return self.parts

        def injection_specs(self):
            return ()

        def forward(self, x: Tensor) -> Tensor:
            return self.parts[1](self.parts[0](x))

    population = random_population(1, "loop", Host, (), ())
    out = population.forward(torch.randn(1, 50, 40), training=True)
    (slope,) = torch.autograd.grad(out.sum(), population.network.host.flat_EP)
    torch.testing.assert_close(2.0 * slope.sum(), out.sum(), rtol=1e-4, atol=1e-4)


class Shuffle(Layer):
    def change(self, x: Tensor) -> Tensor:
        return x[:, torch.randperm(x.shape[1], device=x.device)]


class Leaky(Layer):
    def change(self, x: Tensor) -> Tensor:
        return F.rrelu(x, training=True)


@pytest.mark.parametrize(("layer", "word"), [(Shuffle, "randperm"), (Leaky, "rrelu")])
def test_what_vmap_cannot_draw_runs_under_loop_and_says_why(layer, word, caplog):
    host = host_with(f"{layer.__name__}Host", layer)
    runs = []
    with caplog.at_level(logging.WARNING):
        for seed in range(2):
            torch.manual_seed(seed)
            population = random_population(2, "auto", host)
            runs.append(train(population, [0, 1]))
    assert population.choice.executor.name == "loop"
    assert word in population.choice.reason
    assert not lines(caplog), "it is repeatable"
    for a, b in zip(*runs, strict=True):
        assert torch.equal(a.nan_to_num(), b.nan_to_num())


class AlwaysOn(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.5)


def test_dropout_in_evaluation_is_refused_in_a_host_and_reported_in_a_blueprint(caplog):
    population = random_population(2, host=host_with("AlwaysOnHost", AlwaysOn))
    line = refused(lambda: population.train_batch(*batch(2)))
    assert "AlwaysOnHost draws random numbers in evaluation mode" in line
    assert "training=self.training" in line
    with (
        caplog.at_level(logging.WARNING),
        blueprints_of(t_always_on=random_seed(AlwaysOn)) as names,
    ):
        population = random_population(2, "loop", blueprints=names)
        population.germinate([0, 1], "r0c1", "t_always_on")
    (line,) = lines(caplog)
    assert "blueprint 't_always_on' draws random numbers in evaluation mode" in line


class Everything(Layer):
    def change(self, x: Tensor) -> Tensor:
        x = x * random.random() * float(np.random.rand())
        return x * torch.multinomial(torch.ones(5, device=x.device), 1)


@pytest.mark.parametrize("executor", ["auto", "loop"])
def test_finding_out_leaves_no_trace(executor):
    """Weights, running statistics and generators are as they were."""
    host = host_with("EverythingHost", Everything)
    population = random_population(2, executor, host)
    torch.manual_seed(3)
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    template = {n: v.clone() for n, v in population.network.host.template.state_dict().items()}
    fixed = {n: v.clone() for n, v in population.network.host.fixed.items()}
    population.forward(batch(2)[0])
    assert set(population.network.sites) == {2, 3}
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])
    assert random.getstate() == states[2]
    for name, value in population.network.host.template.state_dict().items():
        assert torch.equal(value, template[name]), name
    for name, value in population.network.host.fixed.items():
        assert torch.equal(value, fixed[name]), name
    assert all(p.grad is None for p in population.network.host.template.parameters())


# ---- layers that need no trial ------------------------------------------------------------


class Noisy(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.rand(())


def hooked() -> nn.Module:
    module = nn.Linear(3, 3)
    module.register_forward_hook(lambda _, __, out: out + torch.rand(()))
    return module


def replaced() -> nn.Module:
    module = nn.ReLU()
    module.forward = lambda x: x + torch.rand(())
    return module


def drawn_into_ours() -> nn.Module:
    host = CNNHost(3, 1)
    host.pools[0] = nn.Sequential(host.pools[0], nn.Dropout2d())
    return host


@pytest.mark.parametrize(
    "make", [partial(Noisy, 3, 3), hooked, replaced, drawn_into_ours, nn.Dropout]
)
def test_what_may_draw_is_tried(make):
    assert not draws_nothing(nn.Sequential(nn.Linear(3, 3), make()))


@pytest.mark.parametrize("kind", ["cnn", "transformer", "mlp"])
def test_what_is_not_tried_draws_nothing(kind, monkeypatch):
    """Segments of hosts and blueprints that are known: a trial finds nothing, and their output."""
    network = make_population(1, "loop", kind=kind).network
    known = 0
    x = batch(1, kind=kind)[0][0]
    cases = []
    for segment in network.segments:
        cases.append((segment.module, x))
        x = find_draws("a segment", segment.module, x).out
    for slot, fits in enumerate(network.fits_SK):
        banks = (network.bank(slot, int(k)).template for k in np.flatnonzero(fits))
        cases += [(template, network.sample_activation(slot)) for template in banks]
    for module, given in cases:
        if draws_nothing(module):
            known += 1
            found = find_draws("known", module, given)
            with monkeypatch.context() as patch:
                patch.setattr(random_probe, "draws_nothing", lambda _: False)
                tried = find_draws("tried", module, given)
            assert (tried.site, tried.uncontrolled) == (None, ())
            assert torch.equal(tried.out, found.out)
    assert known >= len(KINDS[kind].blueprints)


@pytest.mark.parametrize("make", [Attention, MultiHead])
@pytest.mark.parametrize("width", [2, 8])
def test_attention_with_dropout_is_computed_without_fused_kernels_at_any_width(make, width):
    """Which widths torch has fused kernels for must not matter: they draw numbers of their own."""
    x = torch.randn(3, 5, width)
    found = find_draws("drawing", make(width, 0.2), x).site
    assert found is not None
    assert found.plain_attention
    assert find_draws("quiet", make(width, 0.0), x).site is None
