"""Seeds that users write: one that cannot be built, run or trained in its slot is one line."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from esper.kasmina import BlueprintRegistry, blueprint
from own_host import EXECUTORS, OwnHost, images, labels, own_population
from support import refused


class Pointwise(nn.Module):
    """A 1x1 convolution: a good seed."""

    def __init__(self, width: int, out: int | None = None) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width if out is None else out, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


class Wider(Pointwise):
    """One channel too many."""

    def __init__(self, width: int) -> None:
        super().__init__(width, width + 1)


class Pair(Pointwise):
    """Gives a tuple."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x), x  # type: ignore[return-value]


class NoWidth(nn.Module):
    """Is not told the width."""

    def __init__(self) -> None:
        super().__init__()


class ThreeChannels(nn.Module):
    """Does not mind the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


class DoubleWeights(Pointwise):
    """float64."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.double()


class DoubleOutput(Pointwise):
    """float64 from float32."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).double()


class LazySeed(nn.Module):
    """Finds its width by itself."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.LazyConv2d(width, 1)


class Overwrites(Pointwise):
    """Destroys what its gradient needs."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(0.0).add_(self.conv(x))


class Number(nn.Module):
    """Its factory gives a number."""

    def __new__(cls, width: int) -> object:  # type: ignore[misc]
        return width


SEEDS: dict[type[nn.Module], str] = {
    Wider: "turns (2, 4, 4, 4) into (2, 5, 4, 4): a seed must keep the shape of its slot",
    Pair: "returns tuple: a seed maps one tensor to one tensor",
    NoWidth: "cannot be built for width 4: TypeError",
    ThreeChannels: "fails on an activation (2, 4, 4, 4): RuntimeError",
    DoubleWeights: "DoubleWeights parameter 'conv.weight' is float64",
    DoubleOutput: "turns torch.float32 into torch.float64",
    LazySeed: "LazySeed parameter 'conv.weight' is lazy",
    Overwrites: "fails in the backward pass: RuntimeError",
    Number: "returns int: it must return an nn.Module",
}


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name under which the class asked for is registered, for one test."""
    blueprint("test_own", topologies=("cnn",))(request.param)
    yield "test_own"
    BlueprintRegistry.unregister("test_own")


@pytest.mark.parametrize("seed", SEEDS, indirect=True)
def test_a_seed_that_will_not_do_is_refused_when_it_is_germinated(seed, request):
    words = SEEDS[request.node.callspec.params["seed"]]
    population = own_population(executor="loop", blueprints=("norm", seed))
    assert words in refused(lambda: population.germinate([0], "r0c0", seed))
    assert not population.network.banks
    assert (population.lifecycle.blueprint_ES < 0).all()
    population.germinate([0], "r0c0", "norm")
    population.begin_step()
    population.train_batch(images(), labels())


class FourByFour(nn.Module):
    """Fits one size of images only."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.map = nn.Parameter(torch.zeros(width, 4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.map * x


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("seed", [FourByFour], indirect=True)
@pytest.mark.parametrize("seen", [False, True])
def test_a_seed_is_tried_at_the_size_of_its_slot(seed, executor, seen):
    population = own_population(executor=executor, blueprints=(seed,))

    def train() -> None:
        population.germinate([0], "r0c1", seed)
        population.begin_step()
        population.train_batch(images(), labels())

    if seen:
        population.forward(images())
    line = refused(train)
    assert "blueprint 'test_own' fails in slot r0c1 on an activation (1, 8, 8, 8)" in line
    assert (population.lifecycle.blueprint_ES.max() < 0) == seen, "known before: never germinated"
    for member in range(2):
        population.member(member)  # can still be looked at


@pytest.mark.parametrize("seed", [FourByFour], indirect=True)
def test_a_seed_is_tried_again_at_a_later_size(seed):
    population = own_population(blueprints=(seed,))
    population.germinate([0], "r0c0", seed)
    population.begin_step()
    population.train_batch(images(1, 4, 4), labels())
    line = refused(lambda: population.train_batch(images(), labels()))
    assert "fails in slot r0c0 on an activation (1, 4, 8, 8)" in line
    population.train_batch(images(1, 4, 4), labels())


class InPlace(Pointwise):
    """Writes over its input, harmlessly for its gradient."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.relu_())


@pytest.mark.parametrize("seed", [InPlace, Pointwise], indirect=True)
def test_a_seed_that_works_in_place_gives_one_result_under_both_executors(seed):
    losses = []
    for executor in EXECUTORS:
        population = own_population(OwnHost, executor, blueprints=(seed,))
        population.germinate([0, 1], "r0c0", seed)
        population.begin_step()
        for _ in range(3):
            stats = population.train_batch(images(), labels())
        losses.append(torch.cat([stats.loss_E, stats.shadow_loss_ES[:, 0]]))
    assert torch.isfinite(losses[0]).all()
    torch.testing.assert_close(*losses)


def test_blueprints_of_users_are_tried_before_a_run_and_leave_nothing():
    population = own_population(blueprints=("norm", "conv_light"))
    population.check_user_blueprints()
    assert not population.network.banks
    blueprint("test_own", topologies=("cnn",))(Wider)
    try:
        population = own_population(blueprints=("norm", "test_own"))
        assert "'test_own' turns" in refused(population.check_user_blueprints)
        assert not population.network.banks
    finally:
        BlueprintRegistry.unregister("test_own")
