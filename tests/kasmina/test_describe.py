"""A member's description says what stands where, since when and at what cost."""

from __future__ import annotations

import torch

from esper.kasmina import Population
from esper.leyline import BlendStyle, SeedStage
from support import bring_to, make_population, pass_step

MEMBER = """\
CNNHost, 1,617 parameters, 11,600 MACs; with blended seeds 2,245 parameters, 20,816 MACs
slot  stage               blueprint   style     alpha                       age  in stage  parameters   MACs  contribution
r0c0  BLENDING            norm        MULTIPLY  0.33 -> 1.00 in 2             2         1          12      0  +0.2000 ± 0.0100
r1c0  DORMANT             -           -         -                             -         -           -      -  -
r0c1  BLENDING            conv_light  GATE      0.67 -> 0.00 in 2, pruning    6         1         616  9,216  +0.2000 ± 0.0100
r1c1  EMBARGOED (5 left)  -           -         -                             -         -           -      -  -
r0c2  TRAINING            attention   ADD       0.00                          1         1         164    128  +0.2000 ± 0.0100"""  # noqa: E501


def population_in_many_stages() -> Population:
    return make_population(members=1, slots=("r0c0", "r1c0", "r0c1", "r1c1", "r0c2"))


def test_description_of_a_member_word_for_word():
    population = population_in_many_stages()
    population.forward(torch.zeros(1, 1, 1, 8, 8))
    population.germinate([0], "r1c1", "norm")
    bring_to(population, SeedStage.HOLDING, [0], "r0c1", "conv_light", style=BlendStyle.GATE)
    population.prune([0], "r1c1")
    bring_to(population, SeedStage.BLENDING, [0], "r0c0", "norm", style=BlendStyle.MULTIPLY)
    population.germinate([0], "r0c2", "attention")
    population.prune([0], "r0c1", speed=3)
    pass_step(population)
    assert population.member(0).describe() == MEMBER


def test_description_before_the_first_batch_says_that_macs_are_unknown():
    population = population_in_many_stages()
    population.germinate([0], "r0c2", "norm")
    lines = population.member(0).describe().split("\n")
    assert lines[0] == "CNNHost, 1,617 parameters, ? MACs"
    assert lines[-1].split() == [
        "r0c2",
        "GERMINATED",
        "norm",
        "ADD",
        "0.00",
        "0",
        "0",
        "48",
        "?",
        "-",
    ]


def test_description_of_a_host_without_slots_is_its_heading():
    population = make_population(members=1, slots=())
    assert population.member(0).describe() == "CNNHost, 1,617 parameters, ? MACs"


def test_repr_names_the_member_and_describes_it():
    member = make_population(members=3).member(2)
    assert repr(member) == f"MorphogeneticModel, member 2: {member.describe()}"
