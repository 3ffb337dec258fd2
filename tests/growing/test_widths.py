"""Widths of a search: up to the widest that fits, and the same ones after a resume."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

import esper
from esper.growing.budget import Budget
from esper.growing.networks import Networks, Size
from esper.growing.widths import (
    COUNT,
    SMALL,
    SMALLEST,
    WIDEST,
    named_variants,
    remade_variants,
    require_smaller,
    spread_variants,
)
from esper.leyline.errors import EsperError
from esper.leyline.variants import read_variant, variant_name
from support import refused

WIDTH = 10


def params(width: int) -> int:
    """Parameters of a network with two layers of a width."""
    return 3 * width + width * width


class Fake:
    """The network at a multiple of its width; a network has ten MACs per parameter."""

    bare = ("",)

    def __init__(self, factor: float, depth: float, stiff: Sequence[str] = ()) -> None:
        self.name, self.stiff = variant_name(factor, depth), stiff
        self.traced = 0
        number = round(depth * params(max(1, round(factor * WIDTH))))
        self.bare_size = Size(number, 10 * number, 30 * number)

    def size(self, topology: tuple[str, ...]) -> Size:
        return self.bare_size

    @property
    def trace(self) -> str:
        self.traced += 1
        if self.name in self.stiff:
            raise EsperError("it has no place for a seed")
        return self.name


class FakeNetworks:
    """Networks that can be scaled to any width."""

    def __init__(self, budget: Budget, stiff: Sequence[str] = ()) -> None:
        self.base, self.budget, self.stiff = Fake(1.0, 1.0), budget, stiff
        self.made: list[Fake] = []

    def scaled(self, width: float, depth: float = 1.0) -> Fake:
        self.made.append(Fake(width, depth, self.stiff))
        return self.made[-1]

    def latency(self, variant: Any, topology: Any) -> float:
        return 0.0

    @property
    def base_fits(self) -> bool:
        size = self.base.bare_size
        return self.budget.allows(size.params, size.macs)

    def cost_of(self, size: Size, batch_size: int | None = None) -> float:
        return size.train_macs / self.base.size(()).train_macs


class Stiff(FakeNetworks):
    """Networks of a model that cannot be scaled."""

    def scaled(self, width: float, depth: float = 1.0) -> Fake:
        raise EsperError("sizes are written out in forward")


def spread(cap: float = math.inf, most_cost: float = math.inf, macs_cap: float = math.inf):
    budget = Budget(
        params=None if math.isinf(cap) else int(cap),
        macs=None if math.isinf(macs_cap) else macs_cap,
    )
    found = spread_variants(cast(Networks, FakeNetworks(budget)), most_cost)
    return [one.size(()).params for one in found]


@pytest.mark.parametrize("cap", [4, 11, 30, 60, 129, 140, 200, 400, 1000, 2000, 9000])
def test_the_widest_network_under_a_cap_is_among_them(cap):
    sizes = spread(cap)
    largest = max(params(width) for width in range(1, 200) if params(width) <= cap)
    own = [params(WIDTH)] if params(WIDTH) <= cap else []
    assert max(own + sizes) == largest


def test_below_the_model_widths_run_from_the_widest_that_fits_downwards():
    sizes = spread(60)
    assert sizes == [params(width) for width in (1, 2, 3, 5, 6)]


@pytest.mark.parametrize("cap", [1000, math.inf])
def test_small_networks_are_among_them_also_where_the_widest_is_wide(cap):
    """A frontier is to have small networks; they cost little."""
    assert {params(round(share * WIDTH)) for share in SMALL} <= set(spread(cap))


def test_a_cap_below_all_widths_names_the_smallest_network():
    tiny, stiff = FakeNetworks(Budget(params=3)), Stiff(Budget(macs=50))
    assert refused(lambda: require_smaller(cast(Networks, tiny), "auto", ())) == (
        "budget params=3: your model has 130, and the smallest network that can be made of it 4; "
        "give params=4 or more, or start from a smaller model"
    )
    assert refused(lambda: require_smaller(cast(Networks, stiff), "auto", ())) == (
        "budget macs=50: your model has 1,300, and no smaller network can be made of it (sizes are "
        "written out in forward); give macs=1300 or more, or start from a smaller model"
    )


def test_the_cap_may_be_on_macs():
    assert max(spread(macs_cap=4000.0)) == max(spread(400))


def test_sizes_spread_at_least_by_half_and_without_the_model_itself():
    sizes = spread()
    assert max(sizes) == params(round(WIDEST * WIDTH))
    assert params(WIDTH) not in sizes
    assert len(sizes) <= COUNT + 1 + len(SMALL)
    assert all(b / a > 1.4 for a, b in pairwise(sizes))
    assert min(sizes) < params(WIDTH)


def test_networks_that_cost_too_much_to_train_are_left_out():
    sizes = spread(most_cost=3.0)
    assert max(sizes) <= 3.0 * params(WIDTH)
    assert max(sizes) > 2.5 * params(WIDTH)


def test_networks_as_dear_as_the_model_are_tried_however_little_time_there_is():
    assert spread(most_cost=0.3) == spread(most_cost=1.0) != []


def test_a_deeper_network_is_as_wide_as_there_is_time_for():
    networks = cast(Networks, FakeNetworks(Budget()))
    found = spread_variants(networks, 1.2, (2.0,))
    deep = [one.size(()).params for one in found if read_variant(one.name)[1] == 2.0]
    assert max(deep) == 2 * params(7), "1.2 times 130 parameters, at twice the depth"


@pytest.mark.parametrize(("cap", "found"), [(None, False), (60, True)])
def test_a_model_without_places_has_other_widths_only_if_it_has_to(cap, found):
    networks = FakeNetworks(Budget(params=cap))
    networks.base.bare = ()
    assert bool(spread_variants(cast(Networks, networks), 10.0)) == found


class Stepped(FakeNetworks):
    """Networks of a model that can be made at a few widths alone."""

    def scaled(self, width: float, depth: float = 1.0) -> Fake:
        if width not in (1.0, *SMALLEST):
            raise EsperError("not divisible by its groups")
        return super().scaled(width, depth)


def test_where_few_widths_can_be_made_the_first_that_fits_is_taken():
    found = spread_variants(cast(Networks, Stepped(Budget(params=60))), 10.0)
    assert [one.name for one in found] == ["x0.001"]


def test_only_networks_that_are_used_are_traced_and_those_without_a_trace_left_out():
    networks = FakeNetworks(Budget(params=1000))
    every = [one.name for one in spread_variants(cast(Networks, networks), 10.0)]
    assert sorted(one.name for one in networks.made if one.traced) == sorted(every)
    assert len(networks.made) > len(every)
    stiff = cast(Networks, FakeNetworks(Budget(params=1000), stiff=every[1:3]))
    assert [one.name for one in spread_variants(stiff, 10.0)] == [every[0], *every[3:]]


def test_a_model_that_cannot_be_scaled_has_no_other_width():
    stiff = cast(Networks, Stiff(Budget()))
    assert spread_variants(stiff, 10.0) == []
    said = refused(lambda: named_variants(stiff, (2.0,)))
    assert said == "width 2: sizes are written out in forward"


def test_widths_that_are_named_are_made_once_and_within_the_budget():
    networks = cast(Networks, FakeNetworks(Budget(params=300)))
    assert [one.name for one in named_variants(networks, (0.5, 1.01, 1.3, 0.51))] == [
        "x0.5",
        "x1.3",
    ]
    assert "width 2: budget params=300" in refused(lambda: named_variants(networks, (2.0,)))


def test_named_widths_above_a_cap_are_refused_before_anything_is_trained(tmp_path):
    x = torch.randn(300, 4)

    def model() -> nn.Module:
        return nn.Sequential(
            nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)
        )

    text = refused(lambda: esper.grow(
        model, (x, (x[:, 0] > 0).long()), budget=esper.Budget(params=200), widths=(0.5, 8),
        folder=tmp_path, verbose=False, device="cpu"))  # fmt: skip
    assert text.startswith("width 8: budget params=200: it has")
    assert not list(tmp_path.glob("*/networks/*.safetensors"))


def test_names_hold_widths_and_depths_and_a_resume_makes_them_all_again():
    names = ["", "x0.354", "x16", "d2", "x1.41 d0.5"]
    assert [variant_name(*read_variant(name)) for name in names] == names
    networks = cast(Networks, FakeNetworks(Budget(params=300)))
    assert [one.name for one in remade_variants(networks, names)] == names[1:]


def test_a_resumed_run_has_the_widths_it_was_started_with(tmp_path, monkeypatch):
    """Though a time limit and a slower machine would choose others."""
    from torch import nn

    x = np.random.default_rng(0).standard_normal((120, 5)).astype(np.float32)
    data = x, (x[:, 0] > 0).astype(np.int64)

    def model() -> nn.Module:
        return nn.Sequential(
            nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2)
        )

    budget = esper.Budget(host_runs=6, params=400)
    settings = {"epochs": 4, "device": "cpu", "verbose": False}
    first = esper.grow(model, data, budget=budget, folder=tmp_path, **settings)
    monkeypatch.setattr("esper.growing.widths.WIDEST_UNDER_CAP", 1.5)
    again = esper.grow(model, data, budget=budget, resume=first.folder, **settings)
    assert again.info.variants == first.info.variants
    assert len(first.info.variants) > 3


@pytest.mark.parametrize("cap", [60, 300, 2000, None])
def test_other_depths_are_tried_at_two_widths_each_up_to_the_widest_that_fits(cap):
    networks = cast(Networks, FakeNetworks(Budget(params=cap)))
    found = spread_variants(networks, math.inf, (0.5, 2.0))
    assert len(found) <= 9 + len(SMALL)
    sizes = [one.size(()).params for one in found]
    assert sizes == sorted(sizes)
    for depth in (0.5, 1.0, 2.0):
        of_depth = {one.name: one.size(()).params for one in found
                    if read_variant(one.name)[1] == depth}  # fmt: skip
        assert len(of_depth) == 2 or depth == 1
        if cap is not None:
            widths = [round(depth * params(width)) for width in range(1, 200)]
            fits = max(size for size in widths if size <= cap)
            assert max(of_depth.values()) == fits or (depth == 1 and fits == params(WIDTH))
    if cap is None:
        assert "d0.5" in [one.name for one in found]


def test_a_cap_may_be_below_all_widths_but_not_below_a_shallow_one():
    found = spread_variants(cast(Networks, FakeNetworks(Budget(params=3))), 10.0, (0.5,))
    assert {one.size(()).params for one in found} == {2}
    require_smaller(cast(Networks, FakeNetworks(Budget(params=3))), "auto", (0.5,))
