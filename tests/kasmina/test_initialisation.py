"""Initial values: counter-based, the same whatever E is, and no generator is disturbed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from esper.device import rng
from esper.kasmina import CNNHost
from esper.kasmina.layers.initialisation import Initialiser, build
from esper.kasmina.layers.layers import Conv2d
from esper.leyline.streams import GOLDEN, mix64, stream_keys
from support import DEVICES

CPU = torch.device("cpu")


def keys(count: int) -> np.ndarray:
    return stream_keys(3, "member", np.arange(count))


@pytest.mark.parametrize("device", DEVICES)
def test_bits_equal_the_numpy_hash(device):
    got = rng.random_bits(keys(4), 100, torch.device(device)).cpu().numpy().view(np.uint64)
    with np.errstate(over="ignore"):
        counters = np.arange(1, 101, dtype=np.uint64) * np.uint64(GOLDEN)
        expected = mix64(keys(4)[:, None] + counters[None, :])
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("device", DEVICES)
def test_draws_have_their_distribution(device):
    from scipy import stats

    u = rng.uniform(keys(8), 5000, torch.device(device)).cpu().numpy().ravel()
    z = rng.normal(keys(8), 5001, torch.device(device)).cpu().numpy().ravel()
    assert 0 < u.min() < u.max() < 1
    assert stats.kstest(u, "uniform").pvalue > 0.01
    assert stats.kstest(z, "norm").pvalue > 0.01
    first, second = rng.uniform(keys(2), 5000, CPU).numpy()
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.05


def test_normal_is_not_symmetric_pairs():
    """Odd counts and the two halves of a pair are independent draws."""
    z = rng.normal(keys(1), 2001, CPU).numpy()[0]
    assert len(np.unique(z)) == 2001


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = Conv2d(2, 2, 1)
        self.second = Conv2d(2, 2, 1)
        self.second.weight = self.first.weight


class Orthogonal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        nn.init.orthogonal_(self.linear.weight)
        nn.init.dirac_(nn.Parameter(torch.empty(2, 2, 1)))


class Rescaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = Conv2d(4, 4, 3)
        with torch.no_grad():
            self.conv.weight.mul_(1e-3)


@pytest.mark.parametrize("factory", [lambda: CNNHost(base_channels=4), Tied, Orthogonal, Rescaled])
def test_member_values_do_not_depend_on_the_others(factory):
    initialiser = Initialiser(factory)
    few, many = initialiser.sample(keys(2), CPU), initialiser.sample(keys(6), CPU)
    one = initialiser.sample(keys(6)[3:4], CPU)
    for name, value in many.items():
        assert torch.equal(value[:2], few[name]), name
        assert torch.equal(value[3:4], one[name]), name
    random = [n for n, v in many.items() if not torch.equal(v[0], v[1])]
    assert random, "members differ from each other"


def test_a_users_own_initialisation_is_kept():
    """Structured or rescaled values come out as the factory makes them."""
    weights = Initialiser(Orthogonal).sample(keys(5), CPU)["linear.weight"]
    eye = torch.eye(4).expand(5, 4, 4)
    torch.testing.assert_close(weights @ weights.transpose(1, 2), eye, rtol=1e-5, atol=1e-5)
    assert Initialiser(Rescaled).sample(keys(5), CPU)["conv.weight"].abs().max() < 1e-2


def test_a_tied_weight_is_one_parameter():
    sample = Initialiser(Tied).sample(keys(2), CPU)
    assert list(sample) == ["first.weight"]


def test_drawn_values_have_the_scale_the_layer_has_when_built_alone():
    factory = lambda: CNNHost(in_channels=3, base_channels=16)  # noqa: E731
    sample = Initialiser(factory).sample(keys(64), CPU)
    alone = build(factory, 5)
    for name, parameter in alone.named_parameters():
        if parameter.std() > 0 and parameter.numel() > 100:
            ratio = sample[name].std() / parameter.std()
            assert 0.8 < ratio < 1.25, name
        if parameter.std() == 0:
            assert (sample[name] == parameter).all(), name


def test_nothing_leaks_into_the_global_generators():
    torch.manual_seed(11)
    np.random.seed(11)
    expected = torch.rand(3), np.random.rand(3)
    torch.manual_seed(11)
    np.random.seed(11)
    first = Initialiser(Orthogonal).sample(keys(3), CPU)
    assert torch.equal(torch.rand(3), expected[0])
    assert np.array_equal(np.random.rand(3), expected[1])
    second = Initialiser(Orthogonal).sample(keys(3), CPU)
    assert torch.equal(first["linear.weight"], second["linear.weight"]), "and nothing leaks in"


def test_uniform_values_leave_both_ends_out():
    """At the smallest and the largest word there is."""
    ends = rng.to_unit_interval(torch.tensor([0, 2**24 - 1]))
    assert 0.0 < ends[0] < 1e-7
    assert 1.0 - 1e-7 < ends[1] < 1.0
