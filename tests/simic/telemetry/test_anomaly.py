"""Anomalies are detected at their thresholds, ranked, emitted, and raise the level."""

import math
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from esper.leyline import (
    ActionHead,
    BatchSummary,
    LayerGradientStats,
    TelemetryConfig,
    TelemetryEventType,
    TelemetryLevel,
)
from esper.leyline.context import ContextSpec
from esper.leyline.errors import EsperError
from esper.leyline.payloads import (
    AnomalyDetected,
    AnomalyKind,
    AnomalyReport,
    EpisodeOutcome,
    PPOUpdateMetrics,
)
from esper.nissa import MemorySink, TelemetryHub
from esper.simic.telemetry.anomaly import (
    WORST_FIRST,
    AnomalyConfig,
    EscalationClock,
    _rank_agreement,
    detect_anomalies,
    emit_anomaly_diagnostics,
    handle_telemetry_escalation,
)
from esper.simic.telemetry.round_totals import MaskStats
from esper.simic.telemetry.run_telemetry import RunTelemetry
from esper.tasks.registry import get_task_spec
from event_files import read_event
from payload_support import build

Kind = AnomalyKind
OFF, MINIMAL, NORMAL, DEBUG = TelemetryLevel
NAN, INF = math.nan, math.inf
CONFIG = AnomalyConfig()
HEADS = len(ActionHead)

SOUND = PPOUpdateMetrics(
    policy_loss=-0.01,
    value_loss=0.3,
    entropy=2.0,
    head_entropy=(1.0,) * HEADS,
    approx_kl=0.01,
    clip_fraction=0.1,
    ratio_mean=1.0,
    ratio_min=0.7,
    ratio_max=1.4,
    explained_variance=0.5,
    value_mean=0.1,
    value_std=0.8,
    return_mean=0.1,
    return_std=1.0,
    advantage_mean=0.0,
    advantage_std=1.0,
    grad_norm=0.4,
    learning_rate=1e-3,
    entropy_coef=0.01,
    exploration=0.0,
    epochs_run=4,
    early_stopped=False,
)


def update(**changes) -> AnomalyReport:
    """What is wrong with an update that is sound but for these figures."""
    return detect_anomalies(CONFIG, metrics=replace(SOUND, **changes))


def kinds(report: AnomalyReport) -> list[AnomalyKind]:
    return [anomaly.kind for anomaly in report.anomalies]


def only(report: AnomalyReport) -> AnomalyDetected:
    (anomaly,) = report.anomalies
    return anomaly


def rounds_of(**series) -> list[BatchSummary]:
    """Summaries of rounds with these figures, one value each."""
    return [
        build(BatchSummary, {"round_index": i, **dict(zip(series, values, strict=True))})
        for i, values in enumerate(zip(*series.values(), strict=True))
    ]


def members(paid, score) -> EpisodeOutcome:
    arrays = {"episode_return_E": np.array(paid, float), "score_E": np.array(score, float)}
    return build(EpisodeOutcome, arrays, E=len(paid))


# ---- one update -------------------------------------------------------------------------------


def test_a_sound_run_has_no_anomaly():
    rising = np.linspace(0.1, 0.6, 30)
    rounds = rounds_of(mean_reward=rising, mean_score=rising, mean_accuracy=rising)
    report = detect_anomalies(
        CONFIG,
        metrics=SOUND,
        rounds=rounds,
        outcome=members(rising, rising),
        layers=[build(LayerGradientStats, {"grad_norm": 1.0})],
        non_finite={},
    )
    assert not report.has_anomaly
    assert detect_anomalies(CONFIG) == AnomalyReport()


LIMITS = [
    ("ratio_max", Kind.RATIO_EXPLOSION, CONFIG.max_ratio, +1),
    ("ratio_min", Kind.RATIO_COLLAPSE, CONFIG.min_ratio, -1),
    ("approx_kl", Kind.KL_EXPLOSION, CONFIG.max_kl, +1),
    ("grad_norm", Kind.GRADIENT_EXPLOSION, CONFIG.max_grad_norm, +1),
    ("grad_norm", Kind.GRADIENT_VANISHING, CONFIG.min_grad_norm, -1),
    ("explained_variance", Kind.VALUE_COLLAPSE, CONFIG.min_explained_variance, -1),
    ("value_std", Kind.VALUE_COLLAPSE, CONFIG.min_value_spread, -1),
]


@pytest.mark.parametrize(("figure", "kind", "limit", "sign"), LIMITS)
def test_a_figure_is_an_anomaly_beyond_its_limit_and_not_at_it(figure, kind, limit, sign):
    assert kinds(update(**{figure: limit})) == []
    beyond = float(np.nextafter(limit, sign * INF))
    found = only(update(**{figure: beyond}))
    assert (found.kind, found.value, found.threshold, found.head) == (kind, beyond, limit, None)
    assert found.detail
    assert "\n" not in found.detail


def test_limits_are_those_of_the_config():
    lax = AnomalyConfig(max_ratio=50.0)
    assert detect_anomalies(lax, metrics=replace(SOUND, ratio_max=40.0)) == AnomalyReport()


def test_values_are_compared_with_the_spread_of_the_returns():
    assert kinds(update(value_std=0.5, return_std=100.0)) == [Kind.VALUE_COLLAPSE]
    assert kinds(update(value_std=0.0, return_std=0.0, explained_variance=NAN)) == []


@pytest.mark.parametrize("head", ActionHead)
def test_entropy_collapses_head_by_head(head):
    entropy = [1.0] * HEADS
    entropy[head] = CONFIG.min_head_entropy / 2
    found = only(update(head_entropy=tuple(entropy)))
    assert (found.kind, found.head, found.value) == (Kind.ENTROPY_COLLAPSE, head, entropy[head])
    assert head.name in found.detail


def test_a_head_that_never_counted_is_no_collapse():
    assert kinds(update(head_entropy=(1.0, *(NAN,) * (HEADS - 1)))) == []


def stats(steps: int, forced: int) -> MaskStats:
    return MaskStats(np.full(HEADS, steps), np.zeros(HEADS), np.full(HEADS, forced))


def test_a_head_without_a_choice_is_no_collapse():
    """A frozen head or a single slot: the entropy is 0 because the masks leave one choice."""
    metrics = replace(SOUND, head_entropy=(0.0,) * HEADS)
    assert kinds(detect_anomalies(CONFIG, metrics=metrics)) == [Kind.ENTROPY_COLLAPSE] * HEADS
    assert kinds(detect_anomalies(CONFIG, metrics=metrics, mask_stats=stats(40, 40))) == []
    never = detect_anomalies(CONFIG, metrics=metrics, mask_stats=MaskStats.none())
    assert kinds(never) == []


def test_entropy_is_that_of_the_steps_with_a_choice():
    """A mean of h over 10 steps, 9 of them forced, is 10 h over the one that was free."""
    h = CONFIG.min_head_entropy / 4
    metrics = replace(SOUND, head_entropy=(h, *(1.0,) * (HEADS - 1)))
    assert kinds(detect_anomalies(CONFIG, metrics=metrics, mask_stats=stats(10, 9))) == []
    found = only(detect_anomalies(CONFIG, metrics=metrics, mask_stats=stats(10, 5)))
    assert found.value == pytest.approx(2 * h)


# ---- numbers that are none --------------------------------------------------------------------

FIGURES = [f.name for f in fields(PPOUpdateMetrics) if f.type == "float"]


@pytest.mark.parametrize("figure", FIGURES)
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_every_figure_that_is_not_finite_is_named(figure, value):
    first = update(**{figure: value}).anomalies
    if figure == "explained_variance" and math.isnan(value):
        assert first == ()
        return
    assert (first[0].kind, first[0].value) == (Kind.NON_FINITE, 1.0)
    assert first[0].detail == f"PPO update: {figure} is {value}"


def test_an_update_that_was_stopped_before_its_first_step_has_no_gradient():
    assert kinds(update(grad_norm=NAN, early_stopped=True)) == []
    assert kinds(update(grad_norm=NAN, early_stopped=False)) == [Kind.NON_FINITE]
    assert Kind.NON_FINITE in kinds(update(grad_norm=INF, early_stopped=True))


def test_a_round_that_is_not_finite_is_named_unless_nan_means_not_applicable():
    learner = ("learning_rate", "entropy_coef")
    idle = (*learner, "member_steps_per_second", "best_score", "mean_train_accuracy")
    summary = build(BatchSummary, dict.fromkeys(idle, NAN))
    assert kinds(detect_anomalies(CONFIG, rounds=[summary])) == []
    ill = build(BatchSummary, {"mean_score": NAN})
    assert only(detect_anomalies(CONFIG, rounds=[ill])).detail == "round: mean_score is nan"
    assert kinds(detect_anomalies(CONFIG, rounds=[ill, build(BatchSummary)])) == []


def test_members_that_are_not_finite_are_counted():
    found = detect_anomalies(CONFIG, outcome=members([1, NAN, INF], [0, 1, NAN]))
    assert kinds(found) == [Kind.NON_FINITE] * 2
    assert [anomaly.value for anomaly in found.anomalies] == [2.0, 1.0]
    assert "member 1" in found.anomalies[0].detail


def layer(name: str = "core", **changes) -> LayerGradientStats:
    return build(LayerGradientStats, {"layer": name, **changes})


def test_a_broken_tensor_is_named_once():
    layers = [layer("core", nan_count=2, inf_count=1), layer("value")]
    ill = {"gradient core": 3, "parameter core": 1}
    found = detect_anomalies(CONFIG, layers=layers, non_finite=ill)
    assert [(a.detail.partition(":")[0], a.value) for a in found.anomalies] == [
        ("gradient core", 3.0),
        ("parameter core", 1.0),
    ]
    assert only(detect_anomalies(CONFIG, layers=layers)).value == 3.0


def test_layers_explode_and_die():
    exploding = [layer("a", large_fraction=0.3), layer("b", large_fraction=0.9), layer("c")]
    found = only(detect_anomalies(CONFIG, layers=exploding))
    assert (found.kind, found.value) == (Kind.GRADIENT_EXPLOSION, 2.0)
    assert "b most: 90%" in found.detail
    half_dead = [layer("a", zero_fraction=1.0), layer("b")]
    assert kinds(detect_anomalies(CONFIG, layers=half_dead)) == []
    found = only(detect_anomalies(CONFIG, layers=[*half_dead, layer("c", zero_fraction=1.0)]))
    assert (found.kind, found.value) == (Kind.GRADIENT_VANISHING, pytest.approx(2 / 3))


# ---- pay and score ----------------------------------------------------------------------------


def test_members_paid_against_their_score_are_reward_hacking():
    score = np.linspace(0, 1, 16)
    assert kinds(detect_anomalies(CONFIG, outcome=members(1e4 * score, score))) == []
    found = only(detect_anomalies(CONFIG, outcome=members(-np.exp(9 * score), score)))
    assert (found.kind, found.threshold) == (Kind.REWARD_HACKING, -CONFIG.hacking_deviations)
    assert found.value == pytest.approx(-math.sqrt(15))


def test_pay_that_rises_without_the_score_is_reward_hacking():
    rising, flat = np.arange(12.0), np.full(12, 0.4)
    for score in (flat, -rising):
        found = only(
            detect_anomalies(CONFIG, rounds=rounds_of(mean_reward=rising, mean_score=score))
        )
        assert (found.kind, found.value) == (Kind.REWARD_HACKING, pytest.approx(math.sqrt(11)))
    for paid, score in ((rising, rising), (flat, flat), (-rising, flat)):
        rounds = rounds_of(mean_reward=paid, mean_score=score)
        assert kinds(detect_anomalies(CONFIG, rounds=rounds)) == []


def test_a_few_rounds_or_members_prove_nothing():
    rising, flat = np.arange(9.0), np.zeros(9)
    rounds = rounds_of(mean_reward=rising, mean_score=flat)
    assert kinds(detect_anomalies(CONFIG, rounds=rounds, outcome=members(rising, -rising))) == []


def test_rounds_before_the_window_do_not_count():
    paid = [*range(30), *(29.0,) * 20]
    rounds = rounds_of(mean_reward=paid, mean_score=[0.0] * 50)
    assert kinds(detect_anomalies(CONFIG, rounds=rounds[:30])) == [Kind.REWARD_HACKING]
    assert kinds(detect_anomalies(CONFIG, rounds=rounds)) == []


def test_chance_is_rarely_taken_for_reward_hacking():
    rng = np.random.default_rng(0)
    found = [
        bool(detect_anomalies(CONFIG, outcome=members(*rng.normal(size=(2, 64)))).anomalies)
        for _ in range(1000)
    ]
    assert sum(found) <= 8, "about 1.3 of 1000 lie beyond 3 deviations on one side"


def test_accuracy_below_the_rounds_before_is_degradation():
    for last, expected in ((0.56, []), (0.54, [Kind.PERFORMANCE_DEGRADATION])):
        rounds = rounds_of(mean_accuracy=[0.5, 0.7, NAN, last])
        found = detect_anomalies(CONFIG, rounds=rounds)
        assert kinds(found) == expected
    assert found.anomalies[0].value == pytest.approx(-0.06)
    assert kinds(detect_anomalies(CONFIG, rounds=rounds[-1:])) == []


@pytest.mark.parametrize("drawn", [False, True])
def test_rounds_that_draw_their_own_problem_do_not_degrade(drawn):
    context = ContextSpec(min_groups=2) if drawn else ContextSpec()
    task = replace(get_task_spec("digits_impaired"), context=context)
    hub = TelemetryHub([MemorySink()], TelemetryLevel.NORMAL)
    made = RunTelemetry([hub], TelemetryConfig(), task, torch.device("cpu"), 9)
    rounds = rounds_of(mean_accuracy=[0.9, 0.9, 0.3])
    found = detect_anomalies(made.listeners[0].anomalies, rounds=rounds)
    assert kinds(found) == [Kind.PERFORMANCE_DEGRADATION] * (not drawn)
    hub.close()


reals = st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=20)


@given(reals, st.randoms(use_true_random=False))
def test_rank_agreement_is_spearmans_in_deviations(left, random):
    right = left.copy()
    random.shuffle(right)
    found = _rank_agreement(left, right)
    if len(set(left)) == 1:
        assert math.isnan(found)
        return
    expected = spearmanr(left, right).statistic * math.sqrt(len(left) - 1)
    assert found == pytest.approx(expected, abs=1e-9)
    assert found == pytest.approx(_rank_agreement(right, left))
    assert _rank_agreement([*left, NAN], [*right, 1.0]) == pytest.approx(found)


def test_rank_agreement_of_nothing_is_none():
    assert math.isnan(_rank_agreement([], []))
    assert math.isnan(_rank_agreement([1.0], [2.0]))


# ---- the report -------------------------------------------------------------------------------


def test_every_kind_has_its_place_in_the_order():
    assert sorted(WORST_FIRST) == list(Kind)


def test_the_worst_comes_first():
    entropy = (0.01, 0.001, *(1.0,) * (HEADS - 2))
    report = update(approx_kl=0.3, ratio_max=9.0, head_entropy=entropy, policy_loss=NAN)
    assert kinds(report) == [
        Kind.NON_FINITE,
        Kind.RATIO_EXPLOSION,
        Kind.KL_EXPLOSION,
        Kind.ENTROPY_COLLAPSE,
        Kind.ENTROPY_COLLAPSE,
    ]
    assert [a.head for a in report.anomalies[-2:]] == [ActionHead.SLOT, ActionHead.OP]


anything = st.floats(allow_nan=True, allow_infinity=True)


@given(st.fixed_dictionaries(dict.fromkeys(FIGURES, anything)))
def test_whatever_the_figures_a_report_comes_in_order(figures):
    found = kinds(update(**figures))
    places = [WORST_FIRST.index(kind) for kind in found]
    assert places == sorted(places)
    broken = sum(not math.isfinite(value) for value in figures.values())
    broken -= math.isnan(figures["explained_variance"])
    assert found.count(Kind.NON_FINITE) == broken


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_kl": NAN}, r"max_kl=nan: must be finite"),
        ({"min_ratio": 6.0}, r"min_ratio=6.0: must be below max_ratio=5.0"),
        ({"min_grad_norm": 100.0}, r"must be below max_grad_norm"),
        ({"window": 1}, r"window=1: 2 rounds or more"),
    ],
)
def test_a_config_that_cannot_be_meant_is_refused(changes, message):
    with pytest.raises(EsperError, match=message):
        AnomalyConfig(**changes)


# ---- what comes of it -------------------------------------------------------------------------

BAD = update(approx_kl=1.0)
GOOD = AnomalyReport()


@pytest.mark.parametrize("level", TelemetryLevel)
@pytest.mark.parametrize("raised", TelemetryLevel)
def test_an_anomaly_raises_the_level_and_never_lowers_it(level, raised):
    config = TelemetryConfig(level=level, escalation_level=raised)
    assert handle_telemetry_escalation(GOOD, config) is level
    expected = OFF if level is OFF else max(level, raised)
    assert handle_telemetry_escalation(BAD, config) is expected


def test_no_rounds_means_never():
    config = TelemetryConfig(level=MINIMAL, escalation_rounds=0)
    assert handle_telemetry_escalation(BAD, config) is MINIMAL
    clock = EscalationClock(config)
    assert [clock.after_round(BAD), clock.after_round(BAD)] == [MINIMAL, MINIMAL]


def levels(config: TelemetryConfig, story: str) -> str:
    """The level of the round after each one: `x` has an anomaly, `.` none; D is debug."""
    clock = EscalationClock(config)
    return "".join(clock.after_round(BAD if c == "x" else GOOD).name[0] for c in story)


def test_the_level_is_raised_for_n_rounds_and_back():
    config = TelemetryConfig(level=NORMAL, escalation_rounds=3)
    assert levels(config, "..x.....") == "NNDDDNNN"


def test_another_anomaly_starts_the_clock_again():
    config = TelemetryConfig(level=NORMAL, escalation_rounds=3)
    assert levels(config, "x.x.....") == "DDDDDNNN"
    assert levels(config, "xxx...x..") == "DDDDDNDDD"


@given(st.text("x.", max_size=30), st.integers(0, 5))
def test_a_round_is_raised_if_an_anomaly_lies_n_rounds_back_at_most(story, n):
    config = TelemetryConfig(level=NORMAL, escalation_rounds=n)
    near = ["x" in story[max(0, i - n + 1) : i + 1] and n > 0 for i in range(len(story))]
    assert levels(config, story) == "".join("D" if raised else "N" for raised in near)


def reported(report: AnomalyReport, level: TelemetryLevel, step: int | None = None):
    sink = MemorySink()
    with TelemetryHub([sink], level) as hub:
        emit_anomaly_diagnostics(hub, report, 4, step)
    return sink.events


def test_one_event_per_anomaly_in_the_order_of_the_report():
    report = update(approx_kl=0.3, ratio_max=9.0)
    for step in (None, 7):
        events = reported(report, MINIMAL, step)
        assert [event.payload for event in events] == list(report.anomalies)
        assert {(e.type, e.round_index, e.step) for e in events} == {
            (TelemetryEventType.ANOMALY_DETECTED, 4, step)
        }
        assert [read_event(e.to_json_dict()) for e in events] == events


def test_nothing_wrong_or_nobody_there_is_no_event():
    assert reported(GOOD, DEBUG) == []
    assert reported(BAD, OFF) == []
