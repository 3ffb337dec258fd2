"""What the network sees: every metric moves a feature, every feature is moved, all are finite."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.leyline import (
    AlphaMode,
    BlendStyle,
    LifecycleOp,
    SeedStage,
    TrainingSignals,
)
from esper.leyline.signals import HISTORY_LENGTH, SlotReports
from esper.tamiyo.features import (
    FEATURE_NAMES,
    GLOBAL_FEATURES,
    MAX_SIZE,
    SLOT_FEATURES,
    batch_signals_to_features,
    symlog,
)
from payload_support import build

E, S = 3, 2
UNUSED = {
    "round_index": "hosts of later rounds are no different: a controller must not count them",
    "slots.slot_ids": "names; depth, channels and resolution say where a slot is",
    "slots.blueprints": "names behind the indices, which the network embeds",
}
CODES = {"stage_ES": SeedStage, "style_ES": BlendStyle, "alpha_mode_ES": AlphaMode,
         "last_op_E": LifecycleOp}  # fmt: skip


def some_signals(seed: int = 0, members: int = E, slots: int = S) -> TrainingSignals:
    """Every number known and neither 0 nor 1; a seed in every slot."""
    rng = np.random.default_rng(seed)
    blank = build(TrainingSignals, {"episode_length": 20, "step": 3}, E=members, S=slots, K=4)

    def filled(struct: Any) -> dict[str, Any]:
        changes: dict[str, Any] = {}
        for field in fields(struct):
            value = getattr(struct, field.name)
            if isinstance(value, np.ndarray) and value.dtype == np.float32:
                changes[field.name] = rng.uniform(0.1, 0.7, value.shape).astype(np.float32)
            elif isinstance(value, np.ndarray) and value.dtype == np.int64:
                changes[field.name] = rng.integers(1, 4, value.shape)
            elif isinstance(value, np.ndarray) and value.dtype == np.bool_:
                changes[field.name] = np.zeros(value.shape, dtype=np.bool_)
        return changes

    slot_facts = replace(blank.slots, **filled(blank.slots))
    facts = filled(blank) | {"last_slot_E": np.zeros(members, dtype=np.int64)}
    return replace(blank, **(facts | {"slots": slot_facts}))


def put(signals: TrainingSignals, path: str, value: Any) -> TrainingSignals:
    if path.startswith("slots."):
        slots = replace(signals.slots, **{path.removeprefix("slots."): value})
        return replace(signals, slots=slots)
    return replace(signals, **{path: value})


def get(signals: TrainingSignals, path: str) -> Any:
    inner = path.startswith("slots.")
    return getattr(signals.slots if inner else signals, path.removeprefix("slots."))


def moved(value: np.ndarray, name: str) -> list[np.ndarray]:
    """The array with member 0 (all slots, all of a history) given other plausible values."""
    here = slice(None) if name.endswith("_S") else 0
    if name in CODES:
        codes = [code for code in CODES[name] if code != value.flat[0]]
        others: list[Any] = [int(code) for code in codes]
    elif value.dtype == np.bool_:
        others = [~value[here]]
    elif value.dtype == np.int64:
        others = [value[here] + 1]
    else:
        others = [value[here] + np.float32(0.2), np.nan]
    results = []
    for other in others:
        copy = value.copy()
        copy[here] = other
        results.append(copy)
    return results


def paths() -> list[str]:
    """Every field of the signals, those of the slots behind a prefix."""
    outer = [field.name for field in fields(TrainingSignals) if field.name != "slots"]
    return outer + [f"slots.{field.name}" for field in fields(SlotReports)]


def features_moved(before: TrainingSignals, after: TrainingSignals) -> set[str]:
    """Names of the features that differ for any member; the index of a blueprint as one."""
    one, two = batch_signals_to_features(before), batch_signals_to_features(after)
    whole = (one.global_EG != two.global_EG).any(axis=0)
    slot = (one.slot_ESF != two.slot_ESF).any(axis=(0, 1))
    names = {n for n, m in zip(FEATURE_NAMES.whole, whole, strict=True) if m}
    names |= {n for n, m in zip(FEATURE_NAMES.slot, slot, strict=True) if m}
    return names | ({"blueprint"} if (one.blueprint_ES != two.blueprint_ES).any() else set())


def changes_of(signals: TrainingSignals, path: str) -> list[TrainingSignals]:
    value = get(signals, path)
    if path in ("step", "episode_length"):
        return [put(signals, path, value + 1)]
    return [put(signals, path, new) for new in moved(value, path.removeprefix("slots."))]


@pytest.mark.parametrize("path", [path for path in paths() if path not in UNUSED])
def test_every_source_metric_moves_a_feature(path):
    signals = some_signals()
    for changed in changes_of(signals, path):
        assert features_moved(signals, changed), path


@pytest.mark.parametrize(
    "path", [p for p in paths() if p not in UNUSED and p.endswith(("_E", "_ES", "_EL"))]
)
def test_a_metric_of_one_member_moves_no_other_member(path):
    signals = some_signals()
    before = batch_signals_to_features(signals)
    for changed in changes_of(signals, path):
        after = batch_signals_to_features(changed)
        assert np.array_equal(before.global_EG[1:], after.global_EG[1:])
        assert np.array_equal(before.slot_ESF[1:], after.slot_ESF[1:])


def test_every_feature_is_moved_by_something():
    signals = some_signals()
    seen: set[str] = set()
    for path in set(paths()) - set(UNUSED):
        for changed in changes_of(signals, path):
            seen |= features_moved(signals, changed)
    assert seen == {*FEATURE_NAMES.whole, *FEATURE_NAMES.slot, "blueprint"}


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
    ):
        assert len(set(names)) == len(names) == len(table)
    for slots in (1, 3, 5):
        seen = batch_signals_to_features(some_signals(slots=slots))
        assert seen.global_EG.shape == (E, len(FEATURE_NAMES.whole))
        assert seen.slot_ESF.shape == (E, slots, len(FEATURE_NAMES.slot))
        assert seen.global_EG.dtype == seen.slot_ESF.dtype == np.float32


def test_not_measured_is_told_apart_from_measured_as_zero():
    """A contribution, a gradient and a shadow loss of 0 differ from none."""
    for path in (
        "slots.contribution_ES",
        "grad_norm_ES",
        "shadow_gap_ES",
        "train_loss_E",
        "val_loss_E",
    ):
        zero = np.zeros_like(get(some_signals(), path))
        none = np.full_like(zero, np.nan)
        one, two = (put(some_signals(), path, value) for value in (zero, none))
        assert any("known" in n or "finite" in n for n in features_moved(one, two)), path


def test_features_that_say_which_are_one_hot():
    signals = some_signals()
    stage = np.array([[1, 2], [3, 4], [5, 8]], dtype=np.int8)
    obs = batch_signals_to_features(put(signals, "slots.stage_ES", stage))
    first = FEATURE_NAMES.slot.index("stage_dormant")
    assert np.array_equal(obs.slot_ESF[..., first : first + len(SeedStage)], np.eye(9)[stage])
    first = FEATURE_NAMES.whole.index("last_wait")
    assert (obs.global_EG[:, first : first + len(LifecycleOp)].sum(axis=1) == 1).all()


def test_losses_keep_their_order_up_to_the_limit():
    x = np.array([-np.inf, -3.0, 0.0, 0.1, 2.3, 50.0, MAX_SIZE, np.inf])
    assert (np.diff(symlog(x)) >= 0).all()
    assert (np.diff(symlog(x[1:-1])) > 0).all()


@given(data=st.data(), seed=st.integers(0, 2**16))
@settings(max_examples=60, deadline=None)
def test_features_are_finite_for_any_signals(data, seed):
    """NaN, infinities, the ends of every integer type: in any field, at any place."""
    signals = some_signals(seed)
    rng = np.random.default_rng(seed)
    wild = [np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 1e-45, 0.0, -1.0]
    chosen = data.draw(st.lists(st.sampled_from(sorted(set(paths()) - set(UNUSED))), min_size=1))
    for path in chosen:
        value = get(signals, path)
        name = path.removeprefix("slots.")
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
    assert max(np.abs(obs.global_EG).max(), np.abs(obs.slot_ESF).max()) <= limit


def test_heads_of_an_action_that_was_taken_are_seen():
    """The last operation and the slot it went to; later heads are seen in what they set."""
    signals = some_signals()
    seen = batch_signals_to_features(put(signals, "last_slot_E", np.array([0, 1, -1])))
    acted = seen.slot_ESF[..., FEATURE_NAMES.slot.index("acted_on_last")]
    assert np.array_equal(acted, [[1, 0], [0, 1], [0, 0]])
