"""Numbers of parameters are those of the modules that come back."""

from __future__ import annotations

import pytest
import torch

from esper.growing.data.reading import read_data
from esper.growing.networks import Variant
from esper.growing.problem import make_problem
from esper.growing.settings import GrowSettings
from esper.kasmina.tracing import finished_model
from user_models import CASES

QUICK = ("sequential", "lstm", "unused")
OTHERS = ("frozen", "tied", "resnet", "mobilenet", "densenet", "vit", "gpt", "conv1d")
"""Layouts, and hosts with parameters that are unused, frozen or tied."""


@pytest.mark.parametrize(
    "kind", [*QUICK, *[pytest.param(k, marks=pytest.mark.slow) for k in OTHERS]]
)
def test_every_seed_in_every_slot_counts_as_in_the_module_the_user_gets(kind):
    """One blueprint after the other, in all slots that it fits."""
    case = CASES[kind]
    torch.manual_seed(0)
    data = read_data((case.example(40), case.labels(40)))
    trace = make_problem(case.build, data, GrowSettings(output=case.output)).trace
    variant = Variant("", trace, trace.inputs.values(data.example().inputs), 0)
    slots = range(len(trace.slots))
    topologies = [variant.bare]
    for name in sorted({name for slot in slots for name in variant.options(slot)}):
        topologies.append(tuple(name if name in variant.options(slot) else "" for slot in slots))
    assert len(topologies) > 1
    for topology in topologies:
        model = finished_model(variant.build(topology, 0))
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        assert variant.size(topology).params == trained, topology
