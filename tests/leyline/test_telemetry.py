"""Telemetry: every event type has one payload and a level, and every event survives JSON."""

import json
import math
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from esper.leyline import (
    ActionHead,
    AnomalyReport,
    BatchSummary,
    EsperError,
    SeedStage,
    TelemetryConfig,
    TelemetryEvent,
    TelemetryEventType,
    TelemetryLevel,
    payloads,
)
from esper.leyline.codec import from_json
from esper.leyline.errors import UnknownNameError
from esper.leyline.payloads import (
    AnomalyDetected,
    AnomalyKind,
    CheckpointLoaded,
    GovernorPanic,
    Payload,
    RunFinished,
    RunStatus,
)
from esper.leyline.records import LearningRates, MemberRestarted
from event_files import read_event

TYPES = list(TelemetryEventType)
GAP = {"member_N": [0], "reason_N": [300]}
SIZES = {letter: size for size, letter in enumerate("ESNKOAZLPT", start=1)}
SCALARS = {
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(),
    bool: st.booleans(),
    str: st.text(max_size=5),
}


def values_of(name: str, hint: Any) -> st.SearchStrategy[Any]:
    """Any value a field may hold, NaN, infinities and odd text included."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is UnionType:
        (present,) = (arg for arg in args if arg is not NoneType)
        return st.none() | values_of(name, present)
    if origin is np.ndarray:
        (scalar,) = get_args(args[1])
        return hnp.arrays(scalar, tuple(SIZES[letter] for letter in name.rpartition("_")[2]))
    if name == "stage_counts":
        return st.tuples(*[st.integers()] * len(SeedStage))
    if origin is tuple and args[-1] is Ellipsis:
        return st.lists(values_of(name, args[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*(values_of(name, arg) for arg in args))
    if issubclass(hint, Enum):
        return st.sampled_from(list(hint))
    return instances_of(hint) if is_dataclass(hint) else SCALARS[hint]


def instances_of(cls: type) -> st.SearchStrategy[Any]:
    """Any instance of a record."""
    hints = get_type_hints(cls)
    return st.builds(cls, **{f.name: values_of(f.name, hints[f.name]) for f in fields(cls)})


def through_text(event: TelemetryEvent) -> TelemetryEvent:
    """Written as strict JSON text and read back."""
    text = json.dumps(event.to_json_dict(), allow_nan=False)
    return read_event(json.loads(text))


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
@settings(max_examples=8)
@given(data=st.data())
def test_every_event_survives_a_json_round_trip(kind: TelemetryEventType, data: st.DataObject):
    payload = data.draw(instances_of(kind.payload_class))
    place = st.none() | st.integers(0, 10**6)
    event = TelemetryEvent.of(payload, data.draw(place), data.draw(place), device="cuda:0")
    back = through_text(event)
    assert type(back.payload) is kind.payload_class
    assert back.type is kind
    assert back == event
    for field in fields(payload):
        before, after = getattr(payload, field.name), getattr(back.payload, field.name)
        assert type(after) is type(before)
        if isinstance(before, np.ndarray):
            assert after.dtype == before.dtype
            assert after.tobytes() == before.tobytes() or np.isnan(before).any()


def test_empty_columns_survive():
    no = np.zeros(0)
    ints, codes, floats = no.astype(np.int64), no.astype(np.int8), no.astype(np.float32)
    event = TelemetryEvent.of(GovernorPanic(ints, codes, floats, floats, ints))
    assert through_text(event) == event


def test_non_finite_numbers_are_written_as_documented():
    finished = RunFinished(RunStatus.FAILED, 0, 0, math.inf, math.nan, 0)
    written = TelemetryEvent.of(finished).to_json_dict()["payload"]
    assert written["seconds"] == "Infinity"
    assert written["best_score"] == "NaN"
    assert written["status"] == "FAILED"


def test_numpy_scalars_are_written_as_numbers():
    written = TelemetryEvent.of(CheckpointLoaded("x", np.int64(3))).to_json_dict()
    assert json.loads(json.dumps(written))["payload"]["rounds_done"] == 3


def test_every_payload_class_has_exactly_one_event_type():
    defined = {
        value
        for value in [*vars(payloads).values(), BatchSummary, LearningRates, MemberRestarted]
        if isinstance(value, type) and issubclass(value, Payload) and value is not Payload
    }
    listed = [kind.payload_class for kind in TYPES]
    assert set(listed) == defined
    assert len(listed) == len(defined)


def test_the_events_of_the_design_exist():
    design = """RUN_STARTED RUN_FINISHED ROUND_COMPLETED STEP_COMPLETED SEED_GERMINATED
        SEED_STAGE_CHANGED SEED_GATE_EVALUATED SEED_FOSSILIZED SEED_PRUNED COUNTERFACTUALS_MEASURED
        PPO_UPDATED ACTION_DISTRIBUTION MASK_HIT_RATES REWARD_SUMMARY THROUGHPUT PHASE_PROFILE
        GOVERNOR_PANIC GOVERNOR_ROLLBACK ANOMALY_DETECTED CHECKPOINT_SAVED CHECKPOINT_LOADED
        EPISODE_OUTCOME EPISODE_CURVE ROUND_CONTEXTS LAST_ACTION COUNTERFACTUAL_UNAVAILABLE
        LEARNING_RATES MEMBER_RESTARTED"""
    assert {kind.name for kind in TYPES} == set(design.split())


def test_levels_are_ordered_and_off_records_nothing():
    assert [level.name for level in sorted(TelemetryLevel)] == ["OFF", "MINIMAL", "NORMAL", "DEBUG"]
    counts = [sum(kind.recorded_at(level) for kind in TYPES) for level in TelemetryLevel]
    assert counts[0] == 0
    assert counts == sorted(set(counts))
    assert counts[-1] == len(TYPES)


@pytest.mark.parametrize("name", ["GOVERNOR_ROLLBACK", "ANOMALY_DETECTED", "RUN_FINISHED"])
def test_what_went_wrong_is_recorded_at_the_lowest_level(name: str):
    assert TelemetryEventType[name].recorded_at(TelemetryLevel.MINIMAL)


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_columns_of_a_payload_share_their_first_axis(kind: TelemetryEventType):
    hints = get_type_hints(kind.payload_class)
    arrays = [n for n, hint in hints.items() if get_origin(hint) is np.ndarray]
    assert len({name.rpartition("_")[2][0] for name in arrays}) <= 1


def test_columns_of_unequal_length_are_refused(build):
    panic = build(GovernorPanic)
    with pytest.raises(EsperError, match=r"GovernorPanic\.loss_N: N is 1, but 4"):
        replace(panic, loss_N=np.zeros(1, np.float32))


def written() -> dict[str, Any]:
    return TelemetryEvent.of(CheckpointLoaded("x", 1)).to_json_dict()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"type": "CHECKPOINT_LOADE"}, "did you mean 'CHECKPOINT_LOADED'"),
        ({"colour": 1}, "unknown field 'colour' in event CHECKPOINT_LOADED"),
        ({"payload": {"path": "x"}}, "payload: field 'rounds_done' is missing"),
        ({"payload": {"path": 1, "rounds_done": 1}}, "payload.path: 1, expected str"),
        ({"payload": {"path": "x", "rounds_done": True}}, "rounds_done: True, expected int"),
        ({"payload": [1]}, r"payload: \[1\], expected dict"),
        ({"type": "COUNTERFACTUAL_UNAVAILABLE", "payload": GAP}, "reason_N: not an array of int8"),
    ],
)
def test_foreign_json_is_refused_in_one_line(change: dict[str, Any], complaint: str):
    with pytest.raises(EsperError, match=complaint) as caught:
        read_event({**written(), **change})
    assert "\n" not in str(caught.value)


def test_missing_field_of_the_event_is_named():
    data = written()
    del data["wall_time"]
    with pytest.raises(EsperError, match="event CHECKPOINT_LOADED: field 'wall_time' is missing"):
        read_event(data)


def test_anomaly_report_knows_whether_anything_is_wrong():
    assert not AnomalyReport().has_anomaly
    collapse = AnomalyDetected(
        AnomalyKind.ENTROPY_COLLAPSE, 0.01, 0.1, ActionHead.SLOT, "slot head"
    )
    assert AnomalyReport((collapse,)).has_anomaly


@pytest.mark.parametrize("bad", [{"escalation_rounds": -1}, {"queue_size": 0}])
def test_config_refuses_what_cannot_work(bad: dict[str, int]):
    (name, value), *_ = bad.items()
    with pytest.raises(EsperError, match=f"{name}={value}"):
        TelemetryConfig(**bad)


def test_a_literal_is_read_by_its_values():
    assert from_json(Literal["sgd", "adamw"], "adamw", "optim.kind") == "adamw"
    for wrong in ("adam", 3, None, ["sgd"]):
        with pytest.raises(UnknownNameError, match=r"in optim\.kind.*valid: sgd, adamw"):
            from_json(Literal["sgd", "adamw"], wrong, "optim.kind")
