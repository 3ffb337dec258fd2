"""Other depths of a model in a search: which are made, how they are named, kept and read back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import esper
from esper.growing.api import prepare_run
from esper.growing.networks import Variant
from esper.growing.problem import Model
from esper.growing.progress import ProgressPrinter
from esper.growing.run import GrowRun
from esper.growing.settings import GrowSettings
from esper.growing.widths import named_variants, own_width_variants, remade_variants
from support import refused


class Block(nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.layer(x))


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), Block(), Block(), nn.Linear(5, 2))


def data() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).standard_normal((90, 6)).astype(np.float32)
    return x, (x[:, 0] * x[:, 1] > 0).astype(np.int64)


def size(blocks: int, width: int = 5) -> int:
    return 7 * width + blocks * (width + 1) * width + 2 * (width + 1)


def prepared(given: Model = model, params: int | None = None, **settings) -> GrowRun:
    """A search that has not begun."""
    chosen = GrowSettings(**{"device": "cpu", "widths": ()} | settings)
    return prepare_run(
        given, (data(), None, None), esper.Budget(params=params), chosen, ProgressPrinter(False)
    )


def names_of(variants: Sequence[Variant]) -> dict[str, int]:
    return {variant.name: variant.bare_size.params for variant in variants}


def test_a_model_is_fitted_into_a_cap_that_only_fewer_blocks_reach_resumed_and_read_back(tmp_path):
    settings = {"budget": esper.Budget(host_runs=3, params=size(1)), "epochs": 1, "widths": (),
                "device": "cpu", "verbose": False}  # fmt: skip
    found = esper.grow(model, data(), folder=tmp_path, **settings)
    assert found.info.variants == ("", "d0.5")
    assert found.best.params == size(1)
    assert (found.best.width, found.best.depth, found.host.depth) == (1.0, 0.5, 1.0)
    assert found.verdict.startswith(
        f"depth x0.5: {size(1)} parameters (your model: {size(2)}), test accuracy"
    )
    assert str(esper.grow(model, data(), resume=found.folder, **settings)) == str(found)
    x = torch.from_numpy(data()[0])
    for code in (None, model):
        again = esper.GrowResult.load(found.folder, model=code)
        assert again.overview().rows[0][1] == "depth x0.5"
        torch.testing.assert_close(again.model(x), found.model(x))


def test_widths_and_depths_that_are_named_are_made_in_pairs_and_by_name_again():
    run = prepared(depths=(0.5, 2))
    made = named_variants(run.networks, (0.6,), run.networks.depths)
    names = {"x0.6": size(2, 3), "d0.5": size(1), "x0.6 d0.5": size(1, 3), "d2": size(4),
             "x0.6 d2": size(4, 3)}  # fmt: skip
    assert names_of(made) == names
    for one, again in zip(made, remade_variants(run.networks, list(names)), strict=True):
        first, second = (network.build(network.bare, 0).state_dict() for network in (one, again))
        assert all(torch.equal(first[name], second[name]) for name in first)


def test_auto_is_half_and_twice_the_blocks_where_a_model_repeats_some():
    run = prepared()
    found = own_width_variants(run.networks, 10.0, run.networks.depths)
    assert names_of(found) == {"d0.5": size(1), "d2": size(4)}
    assert names_of(own_width_variants(run.networks, 1.0, run.networks.depths)) == {"d0.5": size(1)}
    plain = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
    assert prepared(plain).networks.depths == ()
    assert prepared(depths=()).networks.depths == ()


def test_a_trained_model_keeps_the_weights_of_the_blocks_that_stay():
    trained = model()
    run = prepared(trained)
    for variant in own_width_variants(run.networks, 10.0, run.networks.depths):
        state = variant.build(variant.bare, 0).state_dict()
        last = "2" if variant.name == "d0.5" else "5"
        assert torch.equal(state["1.layer.weight"], trained[1].layer.weight)
        assert torch.equal(state[f"{last}.weight"], trained[3].weight)


@pytest.mark.parametrize(
    ("depths", "says"),
    [
        ((3.0,), "depth 3: Linear cannot have 3 times its blocks: it repeats no block"),
        ((1, 2, 3, 4), "depths=(1, 2, 3, 4): give up to three multiples of the number of blocks"),
        ((-1,), "depths=(-1,): give up to three"),
    ],
)
def test_depths_that_cannot_be_are_one_line(depths, says):
    assert says in refused(lambda: prepared(nn.Linear(6, 2), depths=depths))
