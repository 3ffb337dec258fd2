"""Events in words: every type has a sentence unless plots show it, whatever its file holds."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from esper.karn import views
from esper.karn.views.sentences import MAX_CHARS, sentences_of
from esper.karn.views.setup import NO_SETUP
from esper.leyline.payloads import PruneCause
from esper.leyline.signals import PanicKind
from esper.leyline.stages import TRANSITIONS, SeedStage
from esper.leyline.telemetry import TelemetryEvent, TelemetryEventType
from payload_support import build
from tui_support import training_shot

SETUP = training_shot().setup
_Kind = TelemetryEventType


def line(kind: TelemetryEventType, step: int | None = 11, **values: Any) -> views.EventLine:
    """An event with these values as a reader returns it; the rest is zero."""
    payload = build(kind.payload_class, values, N=1)
    data = json.loads(json.dumps(TelemetryEvent.of(payload, 2, step).to_json_dict()))
    return views.EventLine(kind.name, 2, step, 1.0, data["payload"])


def ints(*values: int) -> np.ndarray:
    return np.array(values)


FIGURES = {
    _Kind.ACTION_DISTRIBUTION, _Kind.COUNTERFACTUALS_MEASURED, _Kind.COUNTERFACTUAL_UNAVAILABLE,
    _Kind.EPISODE_CURVE, _Kind.EPISODE_OUTCOME, _Kind.LAST_ACTION, _Kind.LEARNING_RATES,
    _Kind.MASK_HIT_RATES, _Kind.PHASE_PROFILE, _Kind.REWARD_SUMMARY, _Kind.ROUND_CONTEXTS,
    _Kind.SEED_GATE_EVALUATED, _Kind.STEP_COMPLETED, _Kind.THROUGHPUT,
}  # fmt: skip
"""What plots and tables show of every step or round."""
WHERE = "step 12, member 3: conv_light in r0c1"
SEED = {"member_N": ints(3), "slot_N": ints(1), "blueprint_N": ints(1)}
MEASURED = {"contribution_N": np.array([0.08]), "contribution_se_N": np.array([0.011])}


@pytest.mark.parametrize("kind", _Kind)
def test_every_type_of_event_is_a_readable_sentence_or_left_to_the_plots(kind):
    values = {"stage_after_N": ints(SeedStage.TRAINING), "stage_before_N": ints(1)}
    found = sentences_of(line(kind, **values), SETUP)
    assert bool(found) == (kind not in FIGURES)
    for one in found:
        assert one.type == kind.name
        assert one.text.startswith("step 12")
        assert len(one.text) > len("step 12: ") + 8
        for word in ("_", "nan", "None", "unknown", "  ", ", ,", ": ,", "{", "["):
            assert word not in one.text, one.text


@pytest.mark.parametrize(
    ("kind", "values", "said"),
    [
        (_Kind.SEED_FOSSILIZED, SEED | MEASURED | {"params_N": ints(308)},
         f"{WHERE} made permanent, +8.0 ± 1.1 points, +308 parameters"),
        (_Kind.SEED_FOSSILIZED, SEED | {"contribution_N": np.array([math.nan])},
         f"{WHERE} made permanent, +0 parameters"),
        (_Kind.SEED_GERMINATED, SEED | {"params_N": ints(1308)},
         f"{WHERE} germinated, +1,308 parameters"),
        (_Kind.SEED_PRUNED,
         SEED | MEASURED | {"cause_N": ints(PruneCause.ROLLBACK), "age_N": ints(1)},
         f"{WHERE} pruned by a rollback, +8.0 ± 1.1 points, aged 1 step"),
        (_Kind.SEED_STAGE_CHANGED,
         SEED | {"stage_before_N": ints(2), "stage_after_N": ints(3), "alpha_N": np.array([0.5])},
         f"{WHERE} from training to blending, alpha 0.50"),
        (_Kind.GOVERNOR_ROLLBACK,
         SEED | {"kind_N": ints(PanicKind.LOSS_SPIKE), "snapshot_step_N": ints(7),
                 "seeds_pruned_N": ints(2)},
         "step 12, member 3: rolled back to its state of step 8 (loss spike), 2 seeds pruned"),
        (_Kind.ANOMALY_DETECTED, {"detail": "KL 0.1,\n above 0.05"},
         "step 12: unusual: KL 0.1, above 0.05"),
    ],
)  # fmt: skip
def test_a_sentence_names_seed_place_and_figures(kind, values, said):
    assert [one.text for one in sentences_of(line(kind, **values), SETUP)] == [said]


def test_every_seed_of_an_event_has_its_own_sentence_and_names_need_a_setup():
    two = {name: np.repeat(value, 2) for name, value in SEED.items()} | {"member_N": ints(3, 0)}
    event = views.EventLine("SEED_PRUNED", 0, 0, 1.0, {k: v.tolist() for k, v in two.items()})
    assert [one.member for one in sentences_of(event, SETUP)] == [3, 0]
    assert sentences_of(event)[0].text.startswith("step 1, member 3: 1 in 1 pruned by")


def test_a_life_is_told_once_from_germination_to_its_empty_slot(ppo):
    """Of every transition exactly one event speaks: its own type, or the change of stage."""
    own = {SeedStage.GERMINATED, SeedStage.FOSSILIZED, SeedStage.PRUNED}
    for before, following in TRANSITIONS.items():
        for after in following:
            stages = {"stage_before_N": ints(before), "stage_after_N": ints(after)}
            found = sentences_of(line(_Kind.SEED_STAGE_CHANGED, **SEED, **stages), SETUP)
            silent = after in own or after in (SeedStage.EMBARGOED, SeedStage.RESETTING)
            assert len(found) == (not silent), (before, after)
    told = [one.text for one in views.log_of_events(views.last_events(ppo, 10**6))]
    assert sum("germinated, +" in one for one in told) == len(views.read_seeds(ppo, 0, 2))


@pytest.mark.parametrize("kind", [*(one.name for one in _Kind), "OF_THE_FUTURE"])
@pytest.mark.parametrize("junk", ["<b>x</b>", [None, "x", {}], {"a": [1]}, -7, 1e308, True, None])
def test_a_damaged_payload_is_never_an_error_and_never_long(kind, junk):
    whole = line(_Kind[kind]).payload if kind in _Kind.__members__ else {"news": 1, "words": "a\nb"}
    for payload in (dict.fromkeys(whole, junk), {}, *({**whole, name: junk} for name in whole)):
        for one in sentences_of(views.EventLine(kind, None, None, 0.0, payload), NO_SETUP):
            assert one.what
            assert len(one.what) <= MAX_CHARS
            assert "\n" not in one.what


def test_the_log_of_a_run_leaves_figures_to_the_plots(ppo: Path):
    events = views.last_events(ppo, 10**6)
    types = {one.type for event in events for one in sentences_of(event)}
    assert {"RUN_STARTED", "SEED_GERMINATED", "ROUND_COMPLETED", "RUN_FINISHED"} <= types
    assert not types & {"STEP_COMPLETED", "LAST_ACTION", "THROUGHPUT"}
