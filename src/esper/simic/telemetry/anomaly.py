"""Anomaly detection after each round, and the telemetry level it raises.

    report = detect_anomalies(AnomalyConfig(), metrics=metrics, rounds=summaries, outcome=outcome)
    emit_anomaly_diagnostics(hub, report, round_index, None)
    hub.level = clock.after_round(report)

Detection is read-only and uses values that are already on the host. A metric that is NaN by
definition is never an anomaly. Shape letters: A heads, E members, N ranked values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
import numpy.typing as npt

from esper.leyline.actions import ActionHead
from esper.leyline.arrays import Doubles
from esper.leyline.errors import EsperError
from esper.leyline.payloads import (
    AnomalyDetected,
    AnomalyKind,
    AnomalyReport,
    EpisodeOutcome,
    LayerGradientStats,
    PPOUpdateMetrics,
)
from esper.leyline.records import BatchSummary
from esper.leyline.telemetry import TelemetryConfig, TelemetryEvent, TelemetryLevel
from esper.nissa.hub import TelemetryHub
from esper.simic.telemetry.emitters import (
    aggregate_layer_gradient_health,
    check_performance_degradation,
)
from esper.simic.telemetry.round_totals import MaskStats

_Kind = AnomalyKind

WORST_FIRST: Final = (
    _Kind.NON_FINITE,
    _Kind.GRADIENT_EXPLOSION,
    _Kind.RATIO_EXPLOSION,
    _Kind.KL_EXPLOSION,
    _Kind.VALUE_COLLAPSE,
    _Kind.GRADIENT_VANISHING,
    _Kind.ENTROPY_COLLAPSE,
    _Kind.RATIO_COLLAPSE,
    _Kind.REWARD_HACKING,
    _Kind.PERFORMANCE_DEGRADATION,
)
"""Order of a report, most severe first."""

_MAY_BE_NAN: Final[Mapping[type, frozenset[str]]] = {
    PPOUpdateMetrics: frozenset({"head_entropy", "explained_variance"}),
    BatchSummary: frozenset(
        {
            "learning_rate",
            "entropy_coef",
            "member_steps_per_second",
            "best_score",
            "mean_train_accuracy",
        }
    ),
}
"""Metrics for which NaN means not applicable: head never used, constant returns, nothing learns, no
time measured, rounds that do not compare, a member whose budget buys no batch."""


@dataclass(frozen=True, slots=True)
class AnomalyConfig:
    """Thresholds of anomalies."""

    max_ratio: float = 5.0
    """Maximum probability ratio of an update, new policy over old."""
    min_ratio: float = 0.1
    """Minimum probability ratio."""
    max_kl: float = 0.2
    """Maximum KL divergence of a minibatch, in nats; well above `target_kl`."""
    min_head_entropy: float = 0.02
    """Minimum entropy of a head, in nats, over steps with more than one choice."""
    min_value_spread: float = 0.01
    """Minimum standard deviation of the values, as a fraction of that of the returns."""
    min_explained_variance: float = -1.0
    """Minimum explained variance; below 0, values are worse than a constant."""
    max_grad_norm: float = 100.0
    """Maximum gradient norm before clipping."""
    min_grad_norm: float = 1e-7
    """Minimum gradient norm."""
    max_dead_layers: float = 0.5
    """Maximum fraction of layers with a (nearly) zero gradient, at DEBUG level."""
    window: int = 20
    """Rounds in the trend window, including the current one."""
    hacking_deviations: float = 3.0
    """Standard deviations from chance at which reward and score diverge significantly."""
    max_degradation: float = 0.05
    """Maximum drop of mean accuracy (0..1) below the earlier rounds of the window."""

    def __post_init__(self) -> None:
        for f in fields(self):
            if not math.isfinite(getattr(self, f.name)):
                raise EsperError(f"AnomalyConfig.{f.name}={getattr(self, f.name)}: must be finite")
        for low, high in (("min_ratio", "max_ratio"), ("min_grad_norm", "max_grad_norm")):
            if getattr(self, low) >= getattr(self, high):
                raise EsperError(
                    f"AnomalyConfig.{low}={getattr(self, low)}: must be below "
                    f"{high}={getattr(self, high)}"
                )
        if self.window < 2:
            raise EsperError(f"AnomalyConfig.window={self.window}: 2 rounds or more")


def detect_anomalies(
    config: AnomalyConfig,
    *,
    metrics: PPOUpdateMetrics | None = None,
    rounds: Sequence[BatchSummary] = (),
    outcome: EpisodeOutcome | None = None,
    mask_stats: MaskStats | None = None,
    layers: Sequence[LayerGradientStats] = (),
    non_finite: Mapping[str, int] | None = None,
) -> AnomalyReport:
    """Detect anomalies, worst first; inputs that are not given are not checked.

    `metrics`: of the update. `rounds`: summaries, oldest first, the current round last; only the
    window is used. `outcome`: episode outcomes of this round. `mask_stats`: of this round, so that
    a head without a choice does not count as collapsed. `layers`: from
    `collect_per_layer_gradients`. `non_finite`: from
    `check_numerical_stability`.
    """
    found = [*_non_finite_tensors(non_finite or {}, layers)]
    if metrics is not None:
        found += _non_finite_metrics(metrics, "PPO update")
        found += _of_policy(config, metrics)
        found += _of_heads(config, metrics, mask_stats)
        found += _of_values(config, metrics)
        found += _of_gradient(config, metrics)
    found += _of_layers(config, layers)
    if rounds:
        found += _non_finite_metrics(rounds[-1], "round")
        found += _of_rounds(config, rounds[-config.window :])
    if outcome is not None:
        found += _of_members(config, outcome)
    return AnomalyReport(tuple(sorted(found, key=_severity_key)))


def _severity_key(anomaly: AnomalyDetected) -> tuple[int, float]:
    """Sort key: by kind, then by distance from the threshold."""
    return WORST_FIRST.index(anomaly.kind), -abs(anomaly.value - anomaly.threshold)


def _anomaly(
    kind: AnomalyKind, value: float, threshold: float, detail: str, head: ActionHead | None = None
) -> AnomalyDetected:
    return AnomalyDetected(kind, float(value), float(threshold), head, detail)


# ---- non-finite values ------------------------------------------------------------------------


def _non_finite(count: int, detail: str) -> AnomalyDetected:
    """Anomaly whose value is the number of non-finite values."""
    return _anomaly(_Kind.NON_FINITE, count, 0.0, detail)


def _non_finite_tensors(
    non_finite: Mapping[str, int], layers: Sequence[LayerGradientStats]
) -> Iterator[AnomalyDetected]:
    """Report each tensor once, even if both checks found it."""
    by_layer = {f"gradient {s.layer}": s.nan_count + s.inf_count for s in layers}
    for name, count in (by_layer | dict(non_finite)).items():
        if count:
            yield _non_finite(count, f"{name}: numbers that are not finite: {count}")


def _non_finite_metrics(
    record: PPOUpdateMetrics | BatchSummary, owner: str
) -> Iterator[AnomalyDetected]:
    for f in fields(record):
        given = np.atleast_1d(np.asarray(getattr(record, f.name), dtype=np.float64))
        broken = ~np.isfinite(given)
        if f.name in _MAY_BE_NAN[type(record)] or (f.name == "grad_norm" and _took_no_step(record)):
            broken &= ~np.isnan(given)
        if broken.any():
            yield _non_finite(int(broken.sum()), f"{owner}: {f.name} is {given[broken][0]}")


def _took_no_step(record: PPOUpdateMetrics | BatchSummary) -> bool:
    """Whether the KL limit may have stopped the update before its first step."""
    return isinstance(record, PPOUpdateMetrics) and record.early_stopped


# ---- one update -------------------------------------------------------------------------------


def _of_policy(config: AnomalyConfig, metrics: PPOUpdateMetrics) -> Iterator[AnomalyDetected]:
    """Change of the policy by the update; NaN exceeds no threshold."""
    highest, lowest, kl = metrics.ratio_max, metrics.ratio_min, metrics.approx_kl
    if highest > config.max_ratio:
        detail = f"an action became {highest:.3g} times as likely in one update"
        yield _anomaly(_Kind.RATIO_EXPLOSION, highest, config.max_ratio, detail)
    if lowest < config.min_ratio:
        detail = f"an action became {lowest:.3g} times as likely in one update"
        yield _anomaly(_Kind.RATIO_COLLAPSE, lowest, config.min_ratio, detail)
    if kl > config.max_kl:
        detail = f"the update went {kl:.3g} nats away from the policy that acted"
        yield _anomaly(_Kind.KL_EXPLOSION, kl, config.max_kl, detail)


def _of_heads(
    config: AnomalyConfig, metrics: PPOUpdateMetrics, mask_stats: MaskStats | None
) -> Iterator[AnomalyDetected]:
    """Entropy per head, rescaled to the steps with more than one choice."""
    entropy_A = np.asarray(metrics.head_entropy, dtype=np.float64)
    if mask_stats is not None:
        free_A = mask_stats.steps_A - mask_stats.forced_A
        with np.errstate(divide="ignore", invalid="ignore"):
            entropy_A = np.where(free_A > 0, entropy_A * mask_stats.steps_A / free_A, np.nan)
    for head in ActionHead:
        entropy = float(entropy_A[head])
        if entropy < config.min_head_entropy:
            detail = f"head {head.name} hardly chooses any more: entropy {entropy:.3g} nats"
            yield _anomaly(_Kind.ENTROPY_COLLAPSE, entropy, config.min_head_entropy, detail, head)


def _of_values(config: AnomalyConfig, metrics: PPOUpdateMetrics) -> Iterator[AnomalyDetected]:
    least = config.min_value_spread * metrics.return_std
    if metrics.value_std < least:
        detail = (
            f"values hardly differ: deviation {metrics.value_std:.3g} beside "
            f"{metrics.return_std:.3g} of the returns"
        )
        yield _anomaly(_Kind.VALUE_COLLAPSE, metrics.value_std, least, detail)
    explained = metrics.explained_variance
    if explained < config.min_explained_variance:
        detail = f"values are worse than one number for all: explained variance {explained:.3g}"
        yield _anomaly(_Kind.VALUE_COLLAPSE, explained, config.min_explained_variance, detail)


def _of_gradient(config: AnomalyConfig, metrics: PPOUpdateMetrics) -> Iterator[AnomalyDetected]:
    norm = metrics.grad_norm
    if norm > config.max_grad_norm:
        detail = f"gradient norm {norm:.3g} before clipping"
        yield _anomaly(_Kind.GRADIENT_EXPLOSION, norm, config.max_grad_norm, detail)
    if norm < config.min_grad_norm:
        detail = f"gradient norm {norm:.3g}: nothing is learnt"
        yield _anomaly(_Kind.GRADIENT_VANISHING, norm, config.min_grad_norm, detail)


def _of_layers(
    config: AnomalyConfig, layers: Sequence[LayerGradientStats]
) -> Iterator[AnomalyDetected]:
    if not layers:
        return
    health = aggregate_layer_gradient_health(layers)
    if health["exploding_layers"]:
        worst = max(layers, key=lambda layer: layer.large_fraction)
        detail = (
            f"{health['exploding_layers']} of {health['layers']} layers explode, "
            f"{worst.layer} most: {worst.large_fraction:.0%} of its gradient is large"
        )
        yield _anomaly(_Kind.GRADIENT_EXPLOSION, health["exploding_layers"], 0.0, detail)
    dead = health["dead_layers"] / health["layers"]
    if dead > config.max_dead_layers:
        detail = f"{health['dead_layers']} of {health['layers']} layers have no gradient"
        yield _anomaly(_Kind.GRADIENT_VANISHING, dead, config.max_dead_layers, detail)


# ---- reward and score -------------------------------------------------------------------------


def _of_members(config: AnomalyConfig, outcome: EpisodeOutcome) -> Iterator[AnomalyDetected]:
    """Non-finite rewards and scores, and negative rank correlation between them."""
    for name, values_E in (("return", outcome.episode_return_E), ("score", outcome.score_E)):
        broken = ~np.isfinite(values_E)
        if broken.any():
            first = int(np.flatnonzero(broken)[0])
            detail = f"{name} of {broken.sum()} members, first of member {first}, is not finite"
            yield _non_finite(int(broken.sum()), detail)
    agreement = _rank_agreement(outcome.episode_return_E, outcome.score_E)
    if agreement < -config.hacking_deviations:
        detail = "members with the worse scores were paid more in this round"
        yield _anomaly(_Kind.REWARD_HACKING, agreement, -config.hacking_deviations, detail)


def _of_rounds(config: AnomalyConfig, rounds: Sequence[BatchSummary]) -> Iterator[AnomalyDetected]:
    """Trends over the rounds of the window."""
    time = np.arange(len(rounds))
    paid = _rank_agreement(time, [r.mean_reward for r in rounds])
    reached = _rank_agreement(time, [r.mean_score for r in rounds])
    if paid > config.hacking_deviations and not reached > 0:
        detail = f"pay rose over the last {len(rounds)} rounds, the score did not"
        yield _anomaly(_Kind.REWARD_HACKING, paid, config.hacking_deviations, detail)
    earlier = [r.mean_accuracy for r in rounds[:-1] if math.isfinite(r.mean_accuracy)]
    if not earlier:
        return
    now, before = rounds[-1].mean_accuracy, math.fsum(earlier) / len(earlier)
    degraded, delta = check_performance_degradation(now, before, config.max_degradation)
    if degraded:
        detail = f"mean accuracy {now:.3f}, {-delta:.3f} below the {len(earlier)} rounds before"
        yield _anomaly(_Kind.PERFORMANCE_DEGRADATION, delta, -config.max_degradation, detail)


def _rank_agreement(left: npt.ArrayLike, right: npt.ArrayLike) -> float:
    """Spearman's rank correlation as a z-score; NaN for constant values.

    Under independence it has mean 0 and standard deviation 1. Pairs that are not finite are
    ignored.

    >>> round(_rank_agreement([1, 2, 3, 4, 5], [10, 100, 1e3, 1e4, 1e5]), 6)
    2.0
    """
    pairs = np.stack([np.asarray(left, np.float64), np.asarray(right, np.float64)])
    ranks = [_ranks(values) for values in pairs[:, np.isfinite(pairs).all(axis=0)]]
    centred = [values - values.mean() if len(values) else values for values in ranks]
    spread = math.sqrt(float(centred[0] @ centred[0]) * float(centred[1] @ centred[1]))
    if spread == 0.0:
        return math.nan
    return float(centred[0] @ centred[1]) / spread * math.sqrt(len(ranks[0]) - 1)


def _ranks(values_N: Doubles) -> Doubles:
    """Ranks from 0; ties share their mean rank."""
    _, place_N, count = np.unique(values_N, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return np.asarray((last - (count + 1) / 2)[place_N], dtype=np.float64)


# ---- escalation -------------------------------------------------------------------------------


def handle_telemetry_escalation(
    anomaly_report: AnomalyReport, telemetry_config: TelemetryConfig
) -> TelemetryLevel:
    """Return the telemetry level after this report: raised on an anomaly, never lowered.

    OFF stays OFF.
    """
    escalates = anomaly_report.has_anomaly and telemetry_config.escalation_rounds > 0
    return _raised(telemetry_config) if escalates else telemetry_config.level


def _raised(config: TelemetryConfig) -> TelemetryLevel:
    off = config.level is TelemetryLevel.OFF
    return config.level if off else max(config.level, config.escalation_level)


class EscalationClock:
    """Keeps the level raised for n rounds after the last anomaly.

    >>> clock = EscalationClock(TelemetryConfig(escalation_rounds=1))
    >>> bad = AnomalyReport((_anomaly(AnomalyKind.KL_EXPLOSION, 0.5, 0.2, "too far"),))
    >>> [clock.after_round(report).name for report in (bad, AnomalyReport())]
    ['DEBUG', 'NORMAL']
    """

    def __init__(self, config: TelemetryConfig) -> None:
        self.config = config
        self._rounds_left = 0
        """Remaining rounds at the raised level."""

    def after_round(self, report: AnomalyReport) -> TelemetryLevel:
        """Return the level of the next round; an anomaly restarts the clock."""
        if report.has_anomaly:
            self._rounds_left = self.config.escalation_rounds
            return handle_telemetry_escalation(report, self.config)
        self._rounds_left = max(0, self._rounds_left - 1)
        return _raised(self.config) if self._rounds_left else self.config.level


def emit_anomaly_diagnostics(
    hub: TelemetryHub, anomaly_report: AnomalyReport, batch_idx: int, epoch_idx: int | None
) -> None:
    """Emit one event per anomaly, worst first; `epoch_idx`: step, None for the whole round."""
    for anomaly in anomaly_report.anomalies:
        hub.emit(TelemetryEvent.of(anomaly, batch_idx, epoch_idx))
