"""The transition table is the one of the design, and every other set of stages follows from it."""

from itertools import pairwise

import pytest

from esper.leyline import SeedStage
from esper.leyline.stage_masks import IS_LIVE, IS_OCCUPIED
from esper.leyline.stages import (
    ADVANCE_TO,
    BLENDED_STAGES,
    COOLDOWN_CHAIN,
    GATE_INTO,
    LIVE_STAGES,
    OCCUPIED_STAGES,
    PRUNABLE_STAGES,
    STATIC_STAGES,
    TRANSITIONS,
    Gate,
)

EDGES = """
    DORMANT GERMINATED
    GERMINATED TRAINING
    TRAINING BLENDING
    BLENDING HOLDING
    HOLDING FOSSILIZED
    HOLDING BLENDING
    GERMINATED PRUNED
    TRAINING PRUNED
    BLENDING PRUNED
    HOLDING PRUNED
    PRUNED EMBARGOED
    EMBARGOED RESETTING
    RESETTING DORMANT
    DORMANT PLANTED
    PLANTED BLENDING
    PLANTED PRUNED
"""


def edges() -> set[tuple[SeedStage, SeedStage]]:
    pairs = (line.split() for line in EDGES.strip().splitlines())
    return {(SeedStage[a], SeedStage[b]) for a, b in pairs}


def reachable(start: SeedStage, avoiding: SeedStage | None = None) -> set[SeedStage]:
    """Stages that can be reached from `start` in one or more transitions."""
    seen: set[SeedStage] = set()
    frontier = [start]
    while frontier:
        for after in TRANSITIONS[frontier.pop()] - seen - {avoiding}:
            seen.add(after)
            frontier.append(after)
    return seen


def test_no_other_edges_than_the_design():
    assert {(a, b) for a in SeedStage for b in SeedStage if b in TRANSITIONS[a]} == edges()


def test_every_stage_is_in_the_table():
    assert set(TRANSITIONS) == set(SeedStage)


def test_table_cannot_be_changed():
    with pytest.raises(TypeError):
        TRANSITIONS[SeedStage.FOSSILIZED] = frozenset(SeedStage)


@pytest.mark.parametrize("stage", sorted(set(SeedStage) - {SeedStage.FOSSILIZED}))
def test_every_stage_but_fossilized_can_become_dormant_again(stage: SeedStage):
    assert SeedStage.DORMANT in reachable(stage)


def test_nothing_leaves_fossilized():
    assert reachable(SeedStage.FOSSILIZED) == set()


@pytest.mark.parametrize("stage", list(SeedStage))
def test_every_stage_is_reached_from_dormant(stage: SeedStage):
    assert stage in reachable(SeedStage.DORMANT)


def test_stages_part_into_dormant_occupied_and_cooling():
    parts = [{SeedStage.DORMANT}, OCCUPIED_STAGES, COOLDOWN_CHAIN[:-1]]
    assert set().union(*parts) == set(SeedStage)
    assert sum(map(len, parts)) == len(SeedStage)


def test_live_stages_are_those_of_a_seed_on_trial():
    prunable = {a for a, b in edges() if b is SeedStage.PRUNED}
    assert prunable == PRUNABLE_STAGES
    assert PRUNABLE_STAGES - {SeedStage.PLANTED} == LIVE_STAGES
    assert LIVE_STAGES | STATIC_STAGES == OCCUPIED_STAGES


def test_static_stages_are_those_of_a_static_network():
    assert {SeedStage.FOSSILIZED, SeedStage.PLANTED} == STATIC_STAGES


def test_blended_stages_are_those_the_same_seed_reaches_from_blending():
    onward = reachable(SeedStage.BLENDING, avoiding=SeedStage.PRUNED)
    assert onward | {SeedStage.PLANTED} == BLENDED_STAGES


def test_cooldown_chain_is_the_only_way_from_pruned_to_dormant():
    for stage, after in pairwise(COOLDOWN_CHAIN):
        assert TRANSITIONS[stage] == {after}
    assert COOLDOWN_CHAIN[0] is SeedStage.PRUNED
    assert COOLDOWN_CHAIN[-1] is SeedStage.DORMANT


def test_gates_guard_the_way_forward():
    forward = [SeedStage.DORMANT, SeedStage.GERMINATED, SeedStage.TRAINING, SeedStage.BLENDING]
    forward += [SeedStage.HOLDING, SeedStage.FOSSILIZED]
    assert list(GATE_INTO) == forward[1:]
    assert list(GATE_INTO.values()) == list(Gate)
    assert [gate.name for gate in Gate] == ["G0", "G1", "G2", "G3", "G5"]
    for stage, after in pairwise(forward):
        assert after in TRANSITIONS[stage]


def test_advance_follows_the_table_through_a_gate():
    for stage, after in ADVANCE_TO.items():
        assert after in TRANSITIONS[stage]
        assert after in GATE_INTO
    # Germinating and fossilising are operations of their own.
    assert set(ADVANCE_TO.values()) == set(GATE_INTO) - {SeedStage.GERMINATED, SeedStage.FOSSILIZED}


def test_masks_are_the_sets_of_stages():
    for mask, stages in ((IS_LIVE, LIVE_STAGES), (IS_OCCUPIED, OCCUPIED_STAGES)):
        assert {stage for stage in SeedStage if mask[stage]} == stages
        with pytest.raises(ValueError, match="read-only"):
            mask[0] = True
