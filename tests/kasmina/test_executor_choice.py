"""A host that cannot be vmapped falls back to loop and says why; the trial leaves no trace."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor, nn

from esper.kasmina import CNNHost, Population, PopulationConfig
from esper.leyline.errors import EsperError
from support import batch, make_population


class Branching(nn.Module):
    """Looks at its data in Python: vmap has no answer to that."""

    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum().item() > 0 else x + 0.0


class Unvmappable(CNNHost):
    def __init__(self) -> None:
        super().__init__(5, 1, 3, 4)
        self.pools[0] = nn.Sequential(nn.MaxPool2d(2), Branching())


def population_of(host: type[nn.Module], executor: str) -> Population:
    config = PopulationConfig(executor=executor)  # type: ignore[arg-type]
    return Population(host, ("r0c1", "r0c2"), ("norm",), 3, config=config)


def test_auto_takes_vmap_where_it_works():
    population = make_population(executor="auto")
    assert population.choice is None, "not known before an input was seen"
    population.forward(batch(3)[0])
    assert population.choice.executor.name == "vmap"


def test_auto_falls_back_to_loop_and_says_why(caplog):
    population = population_of(Unvmappable, "auto")
    with caplog.at_level(logging.WARNING):
        losses = [population.train_batch(*batch(3)).loss_E for _ in range(8)]
    assert population.choice.executor.name == "loop"
    assert "Unvmappable cannot be vmapped" in population.choice.reason
    assert ".item()" in population.choice.reason
    assert [r.message for r in caplog.records] == [
        f"executor loop, member by member: {population.choice.reason}"
    ]
    assert (losses[-1] < losses[0]).all(), "and it trains"


def test_vmap_asked_for_but_impossible_is_refused_in_one_line():
    population = population_of(Unvmappable, "vmap")
    with pytest.raises(EsperError, match="use executor 'auto' or 'loop'") as error:
        population.train_batch(*batch(3))
    assert "\n" not in str(error.value)
    population = population_of(Unvmappable, "loop")
    population.train_batch(*batch(3))


class TrainBatchNorm(CNNHost):
    """Running statistics and dropout: both would show if the trial left a trace."""

    def __init__(self) -> None:
        super().__init__(5, 1, 3, 4)
        self.pools[0] = nn.Sequential(nn.MaxPool2d(2), nn.BatchNorm2d(4), nn.Dropout(0.1))


def test_the_trial_leaves_no_trace():
    population = population_of(TrainBatchNorm, "auto")
    before = {name: value.clone() for name, value in population.network.host.fixed.items()}
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    population.evaluate(*batch(3))
    assert torch.equal(torch.rand(4), expected), "the global generator"
    assert population.network.host.flat_EP.grad is None
    for name, value in population.network.host.fixed.items():
        assert torch.equal(value, before[name]), name
    assert population.choice.executor.name == "vmap"
