"""How one member grew: its seeds over steps done, what they contributed, its parameters."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from itertools import chain, product, repeat
from pathlib import Path

import pytest

from esper.karn import views
from esper.karn.views.sentences import member_sentences
from esper.karn.views.tables import EventTables
from esper.leyline.stages import OCCUPIED_STAGES, SeedStage
from esper.leyline.telemetry import TelemetryEventType
from event_files import read_jsonl
from tui_support import life


def outcomes(run: Path) -> list:
    events = list(read_jsonl(run / "events.jsonl"))
    return [one.payload for one in events if one.type.name == "EPISODE_OUTCOME"]


@pytest.mark.parametrize("at", [0, 1, 2])
def test_added_parameters_end_with_those_of_the_outcome(ppo, at):
    for member, added in enumerate(outcomes(ppo)[at].added_params_E):
        found = views.read_growth(ppo, at, member)
        assert (found.round, found.member) == (at, member)
        assert len(found.added_params) == found.now + 1 == found.steps + 1
        assert (found.added_params[0], found.added_params[-1]) == (0, added)


@pytest.mark.parametrize(
    ("spans", "added"),
    [
        ([("TRAINING", 0, 1, 0.0), ("BLENDING", 1, None, 0.0)], (0, 0, 0, 64)),
        ([("BLENDING", 0, 1, 0.0), ("HOLDING", 1, 2, 1.0), ("PRUNED", 2, None, 0.0)],
         (0, 0, 64, 0)),
        ([("PLANTED", 0, None, 1.0)], (64, 64, 64, 64)),
    ],
)  # fmt: skip
def test_a_seed_counts_from_its_first_blended_step_until_it_is_pruned(
    copy, monkeypatch, spans, added
):
    seed = replace(life(0, "r0c0", "norm", (0,)), stages=tuple(views.StageSpan(*s) for s in spans))
    monkeypatch.setattr("esper.karn.views.growth.read_seeds", lambda *_: (seed,))
    shutil.rmtree(copy / "events" / "EPISODE_OUTCOME")
    assert views.read_growth(copy, 0, 0).added_params == added


def test_by_default_it_is_the_best_member_of_the_newest_round(ppo):
    found, last = views.read_growth(ppo), outcomes(ppo)[-1]
    assert (found.round, found.newest, found.member) == (2, 2, last.score_E.argmax())
    assert [one.score for one in found.members] == last.score_E.tolist()
    assert [one.seeds for one in found.members] == (last.blueprint_ES >= 0).sum(axis=1).tolist()


def test_what_is_asked_for_beyond_the_end_is_the_last(ppo):
    found = views.read_growth(ppo, 10**9, 10**9)
    assert (found.round, found.member) == (2, 1)


def test_accuracy_and_stages_are_on_one_axis_of_steps_done(ppo):
    """An event at the end of the step with index t lies where the accuracy of that step does."""
    events = list(read_jsonl(ppo / "events.jsonl"))
    born = {
        (one.step + 1, member)
        for one in events
        if one.type.name == "SEED_GERMINATED" and one.round_index == 1
        for member in one.payload.member_N.tolist()
    }
    growths = [views.read_growth(ppo, 1, member) for member in range(2)]
    assert {(s.stages[0].first, s.member) for one in growths for s in one.seeds} == born != set()
    steps = [one for one in events if one.type.name == "STEP_COMPLETED" and one.round_index == 1]
    for one in growths:
        assert [point.at for point in one.points] == [event.step + 1 for event in steps]
        expected = [event.payload.val_accuracy_E[one.member] for event in steps]
        assert [point.accuracy for point in one.points] == expected


def test_a_measurement_belongs_to_the_seed_that_was_in_the_slot(ppo):
    first = life(0, "r0c0", "norm", (0, 1, 2))
    spans = (*first.stages[:2], replace(first.stages[2], end=5), views.StageSpan("PRUNED", 5, 6))
    pruned = replace(first, stages=spans)
    second = life(0, "r0c0", "conv_light", (11, 12))
    measured = [
        views.Contribution(7, step, member, slot, "", step / 10, 0.1, 0.0)
        for step, member, slot in
        [(3, 0, "r0c0"), (5, 0, "r0c0"), (13, 0, "r0c0"), (3, 1, "r0c0"), (3, 0, "r0c1")]
    ]  # fmt: skip
    unknown = replace(measured[0], step=4, contribution=math.nan)
    one, other = views.seed_growth([pruned, second], [*measured, unknown])
    assert [(m.at, m.value) for m in one.measured] == [(4, 0.3), (6, 0.5)]
    assert [(m.at, m.se) for m in other.measured] == [(14, 0.1)]


def test_planted_seeds_are_there_before_the_first_step(copy, monkeypatch):
    """A network that was planted whole changes no stage: only its outcome knows of its seeds."""
    for kind in ("SEED_STAGE_CHANGED", "SEED_GERMINATED"):
        shutil.rmtree(copy / "events" / kind)
    rows, setup = EventTables.rows, views.read_setup(copy)

    def planted(tables, kind, *more):
        found = rows(tables, kind, *more)
        if kind is not TelemetryEventType.EPISODE_OUTCOME:
            return found
        kinds = [-1] * (len(setup.slots) - 1) + [0]
        return [one | {"blueprint_ES": kinds, "added_params_E": 96} for one in found]

    monkeypatch.setattr(EventTables, "rows", planted)
    (seed,) = views.read_growth(copy, 2, 0).seeds
    assert (seed.slot, seed.blueprint) == (setup.slots[-1], setup.blueprints[0])
    assert seed.stages == (views.StageSpan("PLANTED", 0, None, 1.0),)
    assert set(views.read_growth(copy, 2, 0).added_params) == {96}


def test_a_round_under_way_ends_where_its_records_do(copy):
    shutil.rmtree(copy / "events" / "EPISODE_OUTCOME")
    found = views.read_growth(copy)
    assert (found.member, found.now) == (0, found.points[-1].at)
    assert all(math.isnan(one.score) for one in found.members)


def test_a_run_without_events_has_no_round(copy):
    (copy / "events.jsonl").unlink()
    shutil.rmtree(copy / "events")
    found = views.read_growth(copy)
    assert (found.round, found.seeds, found.happened, found.members) == (-1, (), (), ())


def test_alpha_is_that_of_the_events(ppo):
    held = {stage.name for stage in OCCUPIED_STAGES}
    spans = [span for one in views.read_seeds(ppo, 0, 2) for span in one.stages]
    assert {span.alpha for span in spans if span.stage == SeedStage.TRAINING.name} == {0.0}
    assert all(0 <= span.alpha <= 1 for span in spans if span.stage in held)


def test_what_happened_is_in_order_and_of_that_member_alone(ppo):
    for at, member in product(range(3), range(2)):
        found = views.read_growth(ppo, at, member)
        assert {one.member for one in found.happened} <= {member}
        assert sum("germinated, +" in one.what for one in found.happened) == len(found.seeds)


def test_what_happened_is_told_by_step_whatever_its_type(ppo, monkeypatch):
    late = views.Sentence("SEED_GERMINATED", 0, 5, 1, "", 0.0)
    early = member_sentences("SEED_PRUNED", [{"step": 0, "member_N": 1}])
    by_type = chain([(late,), early], repeat(()))
    monkeypatch.setattr("esper.karn.views.growth.member_sentences", lambda *_: next(by_type))
    assert [one.step for one in views.read_growth(ppo, 0, 1).happened] == [0, 5]
