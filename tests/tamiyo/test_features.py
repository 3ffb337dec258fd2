"""What the network sees: every metric moves a feature, every feature is moved, all are finite."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.leyline import BlendStyle, LifecycleOp, SeedStage, TrainingSignals
from esper.leyline.actions import AlphaMode
from esper.leyline.context import Candidates, ContextSignals
from esper.leyline.prices import ScoreConstants
from esper.leyline.signals import HISTORY_LENGTH, SlotReports
from esper.tamiyo.features import (
    CANDIDATE_FEATURES,
    FEATURE_NAMES,
    GLOBAL_FEATURES,
    MAX_SIZE,
    SLOT_FEATURES,
    UNSEEN_STAGES,
    _symlog,
    batch_signals_to_features,
    feature_names,
    log,
)
from payload_support import build

E, S, K = 3, 2, 4
UNUSED = {
    "round_index": "hosts of later rounds are no different: a controller must not count them",
    "slots.slot_ids": "names; depth, channels and resolution say where a slot is",
    "slots.blueprints": "names; the candidates' descriptors say what a blueprint is",
    "context.plans": "shown by the plan phase itself, and by the masks",
    "context.restarts": "shown by the masks",
}
PARTS = {"slots": SlotReports, "context": ContextSignals, "candidates": Candidates}
"""Structs inside the signals; their fields are named behind a prefix."""
MEASURED_WITHOUT_GAPS = ("rent_ESK", "budget_share_ESK", "receptive_SK", "depth_S", "resolution_S")
CODES = {"stage_ES": SeedStage, "style_ES": BlendStyle, "alpha_mode_ES": AlphaMode,
         "last_op_E": LifecycleOp}  # fmt: skip


def some_signals(seed: int = 0, members: int = E, slots: int = S) -> TrainingSignals:
    """Every number known and neither 0 nor 1; a seed in every slot."""
    rng = np.random.default_rng(seed)
    facts = {
        "episode_length": 20, "step": 3, "constants": ScoreConstants(), "plan_slot": -1,
        "chance_loss": 2.3, "chance_accuracy": 0.1, "budget": 2.0, "groups": 5,
        "train_samples": 900, "host_params": 100, "host_macs": 1000, "plans": True,
    }  # fmt: skip
    blank = build(TrainingSignals, facts, E=members, S=slots, K=K)

    def filled(struct: Any) -> dict[str, Any]:
        changes: dict[str, Any] = {}
        for field in fields(struct):
            value = getattr(struct, field.name)
            if field.name in ("params_cap_E", "macs_cap_E"):
                changes[field.name] = np.full(value.shape, 1102.0)
            elif field.name in ("reserved_params_E", "reserved_macs_E"):
                changes[field.name] = np.full(value.shape, 1100.0)
            elif isinstance(value, np.ndarray) and value.dtype in (np.float32, np.float64):
                changes[field.name] = rng.uniform(0.15, 0.7, value.shape).astype(value.dtype)
            elif isinstance(value, np.ndarray) and value.dtype == np.int64:
                changes[field.name] = rng.integers(1, 4, value.shape)
            elif isinstance(value, np.ndarray) and value.dtype == np.bool_:
                changes[field.name] = np.zeros(value.shape, dtype=np.bool_)
        return changes

    inner = {name: getattr(blank, name) for name in PARTS}
    inner = {name: replace(struct, **filled(struct)) for name, struct in inner.items()}
    last = {"last_slot_E": np.zeros(members, dtype=np.int64)}
    return replace(blank, **(filled(blank) | last | inner))


def put(signals: TrainingSignals, path: str, value: Any) -> TrainingSignals:
    part, _, name = path.rpartition(".")
    if part:
        value = replace(getattr(signals, part), **{name: value})
    return replace(signals, **{part or name: value})


def get(signals: TrainingSignals, path: str) -> Any:
    part, _, name = path.rpartition(".")
    return getattr(getattr(signals, part) if part else signals, name)


def moved(value: np.ndarray, name: str) -> list[np.ndarray]:
    """The array with member 0 (all slots, all of a history) given other plausible values."""
    here = slice(None) if name.endswith(("_S", "_SK")) else 0
    if name in CODES:
        unseen = UNSEEN_STAGES if CODES[name] is SeedStage else ()
        codes = [code for code in CODES[name] if code != value.flat[0] and code not in unseen]
        others: list[Any] = [int(code) for code in codes]
    elif value.dtype == np.bool_:
        others = [~value[here]]
    elif value.dtype == np.int64:
        others = [value[here] + 1]
    elif name.endswith("cap_E"):
        others = [value[here] - 1.5, np.inf]
    elif name.startswith("reserved_"):
        others = [value[here] + 1.5]
    elif value.dtype == np.float64 or name in MEASURED_WITHOUT_GAPS:
        others = [value[here] + value.dtype.type(0.2)]
    else:
        others = [value[here] + np.float32(0.2), np.nan]
    results = []
    for other in others:
        copy = value.copy()
        copy[here] = other
        results.append(copy)
    return results


def paths() -> list[str]:
    """Every field of the signals, those of inner structs behind a prefix."""
    outer = [field.name for field in fields(TrainingSignals) if field.name not in PARTS]
    return outer + [f"{part}.{field.name}" for part in PARTS for field in fields(PARTS[part])]


def features_moved(before: TrainingSignals, after: TrainingSignals) -> set[str]:
    """Names of the features that differ for any member; the index of a blueprint as one."""
    one, two = (batch_signals_to_features(each, restarts=True) for each in (before, after))
    whole = (one.global_EG != two.global_EG).any(axis=0)
    slot = (one.slot_ESF != two.slot_ESF).any(axis=(0, 1))
    candidate = (one.candidate_ESKD != two.candidate_ESKD).any(axis=(0, 1, 2))
    names = {n for n, m in zip(feature_names(restarts=True).whole, whole, strict=True) if m}
    names |= {n for n, m in zip(FEATURE_NAMES.slot, slot, strict=True) if m}
    names |= {n for n, m in zip(FEATURE_NAMES.candidate, candidate, strict=True) if m}
    return names | ({"blueprint"} if (one.blueprint_ES != two.blueprint_ES).any() else set())


def changes_of(signals: TrainingSignals, path: str) -> list[TrainingSignals]:
    value = get(signals, path)
    if isinstance(value, ScoreConstants):
        prices = ("c_p", "c_m", "c_f")
        return [put(signals, path, replace(value, **{name: 0.3})) for name in prices]
    if isinstance(value, int | float):
        return [put(signals, path, value * 1.5 if isinstance(value, float) else value + 1)]
    return [put(signals, path, new) for new in moved(value, path.rpartition(".")[2])]


@pytest.mark.parametrize("path", [path for path in paths() if path not in UNUSED])
def test_every_source_metric_moves_a_feature(path):
    signals = some_signals()
    for changed in changes_of(signals, path):
        assert features_moved(signals, changed), path


@pytest.mark.parametrize(
    "path", [p for p in paths() if p not in UNUSED and p.endswith(("_E", "_ES", "_EL", "_ESK"))]
)
def test_a_metric_of_one_member_moves_no_other_member(path):
    signals = some_signals()
    before = batch_signals_to_features(signals)
    for changed in changes_of(signals, path):
        after = batch_signals_to_features(changed)
        assert np.array_equal(before.global_EG[1:], after.global_EG[1:])
        assert np.array_equal(before.slot_ESF[1:], after.slot_ESF[1:])
        assert np.array_equal(before.candidate_ESKD[1:], after.candidate_ESKD[1:])


def test_every_feature_is_moved_by_something():
    signals = some_signals()
    seen: set[str] = set()
    for path in set(paths()) - set(UNUSED):
        for changed in changes_of(signals, path):
            seen |= features_moved(signals, changed)
    whole = feature_names(restarts=True).whole
    named = {*whole, *FEATURE_NAMES.slot, *FEATURE_NAMES.candidate}
    assert seen == named | {"blueprint"}


@pytest.mark.parametrize("metric", ["train_loss", "val_loss", "val_accuracy"])
@pytest.mark.parametrize("ago", range(1, HISTORY_LENGTH))
def test_each_value_of_a_history_has_its_own_feature(metric, ago):
    signals = some_signals()
    history = getattr(signals, f"{metric}_history_EL").copy()
    history[0, -1 - ago] += 0.1
    changed = put(signals, f"{metric}_history_EL", history)
    assert features_moved(signals, changed) == {f"{metric}_{ago}_steps_ago"}


def test_what_is_listed_as_unused_exists():
    assert set(UNUSED) <= set(paths())


def test_names_are_unique_and_sizes_follow_from_them():
    for names, table in (
        (FEATURE_NAMES.whole, GLOBAL_FEATURES),
        (FEATURE_NAMES.slot, SLOT_FEATURES),
        (FEATURE_NAMES.candidate, CANDIDATE_FEATURES),
    ):
        assert len(set(names)) == len(names) == len(table)
    for slots in (1, 3, 5):
        seen = batch_signals_to_features(some_signals(slots=slots))
        assert seen.global_EG.shape == (E, len(FEATURE_NAMES.whole))
        assert seen.slot_ESF.shape == (E, slots, len(FEATURE_NAMES.slot))
        assert seen.candidate_ESKD.shape == (E, slots, K, len(FEATURE_NAMES.candidate))
        assert seen.global_EG.dtype == seen.slot_ESF.dtype == np.float32


def test_not_measured_is_told_apart_from_measured_as_zero():
    """A contribution, a gradient and a shadow loss of 0 differ from none."""
    for path in (
        "slots.contribution_ES",
        "grad_norm_ES",
        "shadow_gap_ES",
        "activation_grad_ES",
        "train_loss_E",
        "train_accuracy_E",
        "val_loss_E",
    ):
        zero = np.zeros_like(get(some_signals(), path))
        none = np.full_like(zero, np.nan)
        one, two = (put(some_signals(), path, value) for value in (zero, none))
        assert any("known" in n or "finite" in n for n in features_moved(one, two)), path


def test_features_that_say_which_are_one_hot():
    signals = some_signals()
    stage = np.array([[0, 2], [3, 4], [5, 9]], dtype=np.int8)
    obs = batch_signals_to_features(put(signals, "slots.stage_ES", stage))
    first, seen = FEATURE_NAMES.slot.index("stage_dormant"), len(SeedStage) - len(UNSEEN_STAGES)
    shown = np.delete(np.eye(len(SeedStage)), list(UNSEEN_STAGES), axis=1)
    assert np.array_equal(obs.slot_ESF[..., first : first + seen], shown[stage])
    first = FEATURE_NAMES.whole.index("last_wait")
    assert (obs.global_EG[:, first : first + len(LifecycleOp)].sum(axis=1) == 1).all()


def test_losses_keep_their_order_up_to_the_limit():
    x = np.array([-np.inf, -3.0, 0.0, 0.1, 2.3, 50.0, MAX_SIZE, np.inf])
    assert (np.diff(_symlog(x)) >= 0).all()
    assert (np.diff(_symlog(x[1:-1])) > 0).all()


@given(data=st.data(), seed=st.integers(0, 2**16))
@settings(max_examples=60)
def test_features_are_finite_for_any_signals(data, seed):
    """NaN, infinities, the ends of every integer type: in any field, at any place."""
    signals = some_signals(seed)
    rng = np.random.default_rng(seed)
    wild = [np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 1e-45, 0.0, -1.0]
    chosen = data.draw(st.lists(st.sampled_from(sorted(set(paths()) - set(UNUSED))), min_size=1))
    for path in chosen:
        value = get(signals, path)
        name = path.rpartition(".")[2]
        if not isinstance(value, np.ndarray) or name in CODES or name == "blueprint_ES":
            continue
        pool: Any = wild
        if value.dtype == np.int64:
            pool = [np.iinfo(np.int64).min, np.iinfo(np.int64).max, -1, 0]
        elif value.dtype == np.bool_:
            pool = [True, False]
        signals = put(signals, path, rng.choice(np.array(pool, dtype=value.dtype), value.shape))
    obs = batch_signals_to_features(signals)
    obs.require_finite()
    limit = 2 * np.log1p(MAX_SIZE) + 1e-3
    for values in (obs.global_EG, obs.slot_ESF, obs.candidate_ESKD):
        assert np.abs(values).max() <= limit


def test_heads_of_an_action_that_was_taken_are_seen():
    """The last operation and the slot it went to; later heads are seen in what they set."""
    signals = some_signals()
    seen = batch_signals_to_features(put(signals, "last_slot_E", np.array([0, 1, -1])))
    acted = seen.slot_ESF[..., FEATURE_NAMES.slot.index("acted_on_last")]
    assert np.array_equal(acted, [[1, 0], [0, 1], [0, 0]])


# ---- what the context says -----------------------------------------------------------------------


def column(signals: TrainingSignals, name: str) -> np.ndarray:
    obs = batch_signals_to_features(signals)
    for names, values in (
        (FEATURE_NAMES.whole, obs.global_EG),
        (FEATURE_NAMES.slot, obs.slot_ESF),
        (FEATURE_NAMES.candidate, obs.candidate_ESKD),
    ):
        if name in names:
            return values[..., names.index(name)]
    raise AssertionError(name)


def test_observations_at_two_prices_differ():
    signals = some_signals()
    dear = put(signals, "context.price_E", signals.context.price_E * 4)
    moves = features_moved(signals, dear)
    assert moves == {"price_params", "price_macs", "price_compute"}
    for name in moves:
        np.testing.assert_allclose(
            column(dear, name) - column(signals, name), np.log(4), rtol=1e-5, err_msg=name
        )


def test_growth_that_costs_nothing_is_a_price_like_any_other():
    free = put(some_signals(), "context.constants", ScoreConstants(0.0, 0.0, 0.0))
    obs = batch_signals_to_features(free)
    obs.require_finite()
    assert (column(free, "price_params") < column(some_signals(), "price_params")).all()
    assert log(0.0) == log(np.nan) < log(2e-5)


def test_losses_and_accuracies_mean_the_same_with_few_and_with_many_classes():
    """Guessing is loss 1 and accuracy 0, perfection is accuracy 1, whatever the context."""
    for groups in (2, 10):
        signals = put(some_signals(), "context.chance_loss", float(np.log(groups)))
        signals = put(signals, "context.chance_accuracy", 1 / groups)
        for name, guess in (("loss", np.log(groups)), ("accuracy", 1 / groups)):
            for part in ("train", "val"):
                signals = put(signals, f"{part}_{name}_E", np.full(E, guess, dtype=np.float32))
        np.testing.assert_allclose(column(signals, "val_loss"), np.log(2), rtol=1e-5)
        np.testing.assert_allclose(column(signals, "val_accuracy"), 0.0, atol=1e-6)
        np.testing.assert_allclose(column(signals, "loss_gap"), 0.0, atol=1e-6)
        signals = put(signals, "train_accuracy_E", np.ones(E, dtype=np.float32))
        np.testing.assert_allclose(column(signals, "train_accuracy"), 1.0, rtol=1e-6)
        np.testing.assert_allclose(column(signals, "accuracy_gap"), 1.0, rtol=1e-6)


def test_caps_are_told_apart_from_none_and_show_what_is_left():
    signals = put(some_signals(), "context.params_cap_E", np.array([200.0, 100.0, np.inf]))
    signals = put(signals, "context.reserved_params_E", np.full(E, 100.0))
    assert column(signals, "params_capped").tolist() == [1, 1, 0]
    assert column(signals, "params_cap_left").tolist() == [0.5, 0.0, 1.0]
    signals = put(signals, "candidates.params_SK", np.array([[100, 101, 0, 1]] * S))
    fits = column(signals, "candidate_fits_params_cap")[:, 0]
    assert fits.tolist() == [[1, 0, 1, 1], [0, 0, 1, 0], [1, 1, 1, 1]]


def test_the_plan_phase_shows_its_slot_and_that_nothing_has_begun():
    step, plan = some_signals(), put(some_signals(), "plan_slot", 1)
    assert (column(step, "planning").max(), column(plan, "planning").min()) == (0, 1)
    assert not column(step, "planned_now").any()
    assert column(plan, "planned_now").tolist() == [[0, 1]] * E
    assert (column(plan, "progress") == 0).all()
    assert (column(plan, "steps_left") > column(step, "steps_left")).all()
