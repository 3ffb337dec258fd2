"""Numbers of parameters are those of the modules that come back."""

from __future__ import annotations

import pytest
import torch

from esper.growing.budget import Budget
from esper.growing.data import read_data
from esper.growing.problem import make_problem
from esper.growing.settings import GrowSettings
from esper.growing.setup import Builder, make_space
from esper.growing.training import BracketTrainer
from esper.kasmina.population_config import PopulationConfig
from esper.kasmina.tracing import plain_model
from user_models import CASES

QUICK = ("sequential", "lstm", "unused", "frozen", "tied")
"""Layouts, and hosts with parameters that are unused, frozen or tied."""


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[] if k in QUICK else [pytest.mark.slow]) for k in CASES]
)
def test_every_seed_in_every_slot_counts_as_in_the_module_the_user_gets(kind):
    """One blueprint after the other, in all slots that it fits."""
    case = CASES[kind]
    torch.manual_seed(0)
    data = read_data((case.example(40), case.labels(40)))
    problem = make_problem(case.build, data, GrowSettings(output=case.output))
    builder = Builder(problem.trace, PopulationConfig(), problem.loss, 0, torch.device("cpu"))
    space = make_space(builder, problem.packed(data.val), Budget())
    topologies = [space.bare]
    for name in space.blueprints:
        fitting = (name if name in space.options(slot) else "" for slot in range(space.slots))
        topologies.append(tuple(fitting))
    population = builder(range(len(topologies)))
    trainer = BracketTrainer(population, space, None, 1, [0.01])
    trainer.plant(topologies)
    for member, topology in enumerate(topologies):
        model = plain_model(problem.trace, population.member(member))
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        assert space.size(topology).params == trained, topology
