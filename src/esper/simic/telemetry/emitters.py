"""Emitters: one function per telemetry event, each formats a payload and emits it.

`TelemetryListener` (listener.py) calls them. They never change training state. Arrays of a record
are copied, because the hub's writer reads them later; payloads are passed on as they are. Nothing
is built that the hub would not record. An emitter with a `telemetry_level` also skips below the
level of its event.

Arguments for one member may also be arrays over all members; `env_id` is then None (or the array of
members). Shape letters: E members, N occurrences, O operations, S slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypedDict, get_args

import numpy as np
import numpy.typing as npt

from esper.leyline.actions import LifecycleOp
from esper.leyline.arrays import Bools, Codes, Doubles, Floats, Ints
from esper.leyline.payloads import (
    ActionDistribution,
    CounterfactualsMeasured,
    CounterfactualUnavailable,
    EpisodeOutcome,
    GovernorPanic,
    GovernorRollback,
    LastAction,
    LayerGradientStats,
    MaskHitRates,
    Payload,
    PhaseProfile,
    PhaseTime,
    PPOUpdated,
    PPOUpdateMetrics,
    RewardSummary,
    RoundContexts,
    SlotPayload,
    StepCompleted,
    Throughput,
)
from esper.leyline.records import BatchSummary, LearningRates, MemberRestarted, Rollout, StepRecord
from esper.leyline.rewards import RewardComponentsTelemetry
from esper.leyline.signals import CounterfactualGap, PanicKind
from esper.leyline.stage_masks import IS_LIVE, IS_OCCUPIED
from esper.leyline.telemetry import (
    EVENT_TYPE_OF,
    TelemetryConfig,
    TelemetryEvent,
    TelemetryEventType,
    TelemetryLevel,
)
from esper.nissa.hub import TelemetryHub
from esper.simic.telemetry.round_totals import MaskStats, RoundTotals

if TYPE_CHECKING:
    from torch import Tensor, nn

    from esper.tasks.spec import OptimSettings

_Kind = TelemetryEventType

SLOT_EVENTS: Final = frozenset(EVENT_TYPE_OF[payload] for payload in get_args(SlotPayload))
"""Event types of slots."""

DEAD_FRACTION: Final = 0.9
"""A layer is dead if more than this fraction of its gradient is exactly 0."""
EXPLODING_FRACTION: Final = 0.1
"""A layer explodes if more than this fraction of its gradient exceeds 10 in magnitude."""


def _is_recorded(
    hub: TelemetryHub, kind: TelemetryEventType, telemetry_level: TelemetryLevel
) -> bool:
    return kind.recorded_at(telemetry_level) and hub.records(kind)


def _column(values: npt.ArrayLike, dtype: type[np.generic]) -> npt.NDArray[Any]:
    """Copy values to an event column; a scalar becomes a column of length 1."""
    return np.atleast_1d(np.array(values, dtype=dtype))


def emit_with_env_context(
    hub: TelemetryHub, event: TelemetryEvent, env_id: int | None, device: str | None
) -> None:
    """Emit `event` with this member (None: its columns name the members) and device."""
    if hub.records(event.type):
        if (event.env_id, event.device) != (env_id, device):
            event = replace(event, env_id=env_id, device=device)
        hub.emit(event)


# ---- steps ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SlotTelemetry:
    """Recorded slot events, and the step and round they are stamped with."""

    kinds: frozenset[TelemetryEventType] = frozenset()
    """Recorded event types."""
    inner_epoch: int = 0
    """Step of the episode."""
    global_epoch: int = 0
    """Round of the run."""


def apply_slot_telemetry(
    slot_config: SlotTelemetry,
    telemetry_config: TelemetryConfig,
    inner_epoch: int,
    global_epoch: int,
) -> SlotTelemetry:
    """Return `slot_config` for this step and round, at the level of `telemetry_config`."""
    kinds = _slot_kinds(telemetry_config.level)
    now = SlotTelemetry(kinds, inner_epoch, global_epoch)
    return slot_config if slot_config == now else now


@cache
def _slot_kinds(level: TelemetryLevel) -> frozenset[TelemetryEventType]:
    return frozenset(kind for kind in SLOT_EVENTS if kind.recorded_at(level))


def emit_slot_events(
    hub: TelemetryHub, slot_config: SlotTelemetry, device: str, payload: SlotPayload
) -> None:
    """Emit a slot event; no event if the payload is empty."""
    if EVENT_TYPE_OF[type(payload)] in slot_config.kinds and len(payload.member_N):
        at = slot_config.global_epoch, slot_config.inner_epoch
        emit_with_env_context(hub, TelemetryEvent.of(payload, *at, device=device), None, device)


def _emit_step_event(hub: TelemetryHub, device: str, record: StepRecord, payload: Payload) -> None:
    at = record.signals
    event = TelemetryEvent.of(payload, at.round_index, at.step, device=device)
    emit_with_env_context(hub, event, None, device)


def emit_step_completed(hub: TelemetryHub, device: str, record: StepRecord) -> None:
    """Emit the measurements of all members; active seeds are counted at measurement time."""
    if not hub.records(_Kind.STEP_COMPLETED):
        return
    seen = record.signals
    live_E = IS_LIVE[seen.slots.stage_ES].sum(axis=1)
    payload = StepCompleted(
        train_loss_E=seen.train_loss_E.copy(),
        val_loss_E=seen.val_loss_E.copy(),
        val_accuracy_E=seen.val_accuracy_E.copy(),
        score_E=record.reward_inputs.score_E.copy(),
        value_E=record.decision.value_E.copy(),
        live_seeds_E=live_E,
        params_over_host_E=seen.params_over_host_E.copy(),
        train_accuracy_E=seen.train_accuracy_E.copy(),
        spent_E=seen.context.spent_E.copy(),
    )
    _emit_step_event(hub, device, record, payload)


def emit_last_action(
    hub: TelemetryHub,
    env_id: int | None,
    device: str,
    action: int | Ints,
    target_slot: int | Ints,
    reward: float | Doubles,
    cumulative_reward: float | Doubles,
    action_mask: Bools,
    telemetry_level: TelemetryLevel,
    *,
    veto: int | Codes,
    op_probability: Floats,
    round_index: int,
    step: int | None,
) -> None:
    """Emit the actions and rewards of one member, or of all in order.

    `step`: None for a decision of the plan phase.
    """
    if not _is_recorded(hub, _Kind.LAST_ACTION, telemetry_level):
        return
    payload = LastAction(
        op_E=_column(action, np.int8),
        target_slot_E=_column(target_slot, np.int64),
        veto_E=_column(veto, np.int8),
        reward_E=_column(reward, np.float64),
        cumulative_reward_E=_column(cumulative_reward, np.float64),
        op_mask_EO=np.atleast_2d(action_mask).copy(),
        op_probability_EO=np.atleast_2d(op_probability).copy(),
    )
    emit_with_env_context(hub, TelemetryEvent.of(payload, round_index, step), env_id, device)


def emit_counterfactuals(hub: TelemetryHub, device: str, record: StepRecord) -> None:
    """Emit measured contributions of seeds; no event if none was measured."""
    if not hub.records(_Kind.COUNTERFACTUALS_MEASURED):
        return
    found = record.counterfactuals
    measured_E = found.gap_E == CounterfactualGap.NONE
    at = np.nonzero(measured_E[:, None] & ~np.isnan(found.contribution_ES))
    if not len(at[0]):
        return
    payload = CounterfactualsMeasured(
        member_N=at[0],
        slot_N=at[1],
        blueprint_N=record.signals.slots.blueprint_ES[at],
        contribution_N=found.contribution_ES[at],
        contribution_se_N=found.contribution_se_ES[at],
        shapley_N=found.shapley_ES[at],
        interaction_N=found.interaction_ES[at],
        coalitions_N=found.coalitions_E[at[0]],
        exact_N=found.exact_E[at[0]],
    )
    _emit_step_event(hub, device, record, payload)


def emit_cf_unavailable(
    hub: TelemetryHub,
    env_id: int | Ints,
    device: str,
    reason: CounterfactualGap | Codes,
    *,
    round_index: int,
    step: int,
) -> None:
    """Emit members whose seeds were not measured, and why; no event if there are none."""
    member_N = _column(env_id, np.int64)
    if not hub.records(_Kind.COUNTERFACTUAL_UNAVAILABLE) or not len(member_N):
        return
    reason_N = np.broadcast_to(_column(reason, np.int8), member_N.shape).copy()
    event = TelemetryEvent.of(CounterfactualUnavailable(member_N, reason_N), round_index, step)
    emit_with_env_context(hub, event, env_id if isinstance(env_id, int) else None, device)


def emit_governor(hub: TelemetryHub, device: str, record: StepRecord) -> None:
    """Emit panics and rollbacks of the governor."""
    found = record.governor
    (panicked,) = np.nonzero(found.panic_E != PanicKind.NONE)
    if len(panicked) and hub.records(_Kind.GOVERNOR_PANIC):
        panic = GovernorPanic(
            member_N=panicked,
            kind_N=found.panic_E[panicked],
            loss_N=record.signals.val_loss_E[panicked],
            limit_N=found.loss_limit_E[panicked],
            strikes_N=found.strikes_E[panicked],
        )
        _emit_step_event(hub, device, record, panic)
    (set_back,) = np.nonzero(found.rolled_back_E)
    if len(set_back) and hub.records(_Kind.GOVERNOR_ROLLBACK):
        rollback = GovernorRollback(
            member_N=set_back,
            kind_N=found.panic_E[set_back],
            snapshot_step_N=found.snapshot_step_E[set_back],
            score_before_N=record.reward_inputs.score_before_E[set_back],
            snapshot_score_N=found.snapshot_score_E[set_back],
            seeds_pruned_N=found.seeds_pruned_E[set_back],
        )
        _emit_step_event(hub, device, record, rollback)


def emit_restarts(hub: TelemetryHub, device: str, record: StepRecord) -> None:
    """Emit members that began anew; no event if there are none."""
    op_E, done_E = record.decision.actions.op, record.result.outcome.executed
    (anew,) = np.nonzero((op_E == LifecycleOp.RESTART) & done_E)
    if not len(anew) or not hub.records(_Kind.MEMBER_RESTARTED):
        return
    seen = record.signals
    payload = MemberRestarted(
        member_N=anew,
        restart_N=seen.context.restarts_E[anew] + 1,
        score_N=record.reward_inputs.score_E[anew],
        seeds_removed_N=IS_OCCUPIED[seen.slots.stage_ES[anew]].sum(axis=1),
        spent_N=seen.context.spent_E[anew],
    )
    _emit_step_event(hub, device, record, payload)


def emit_learning_rates(
    hub: TelemetryHub, device: str, record: StepRecord, optim: OptimSettings
) -> None:
    """Emit what the rates of the members begin with, after the first step of an episode."""
    if record.signals.step != 0 or not hub.records(_Kind.LEARNING_RATES):
        return
    factor_E = record.signals.context.learning_rate_E
    payload = LearningRates(optim.host_lr * factor_E, optim.seed_lr * factor_E, optim.schedule)
    _emit_step_event(hub, device, record, payload)


# ---- rounds -----------------------------------------------------------------------------------


def emit_round_contexts(hub: TelemetryHub, device: str, rollout: Rollout[object]) -> None:
    """Emit the contexts of the round, and what members used of their budget."""
    if not hub.records(_Kind.ROUND_CONTEXTS):
        return
    seen, drawn = rollout.final_signals.context, rollout.round_context
    payload = RoundContexts(
        price_E=seen.price_E.copy(),
        learning_rate_E=seen.learning_rate_E.copy(),
        params_cap_E=seen.params_cap_E.copy(),
        macs_cap_E=seen.macs_cap_E.copy(),
        spent_E=seen.spent_E.copy(),
        stopped_E=seen.stopped_E.copy(),
        budget=seen.budget,
        groups=seen.groups,
        train_samples=seen.train_samples,
        pixel_noise=drawn.pixel_noise,
        permuted=drawn.permuted,
        label_noise=drawn.label_noise,
    )
    event = TelemetryEvent.of(payload, rollout.round_index)
    emit_with_env_context(hub, event, None, device)


def emit_episode_outcome(
    hub: TelemetryHub, device: str, outcome: EpisodeOutcome, round_index: int
) -> None:
    """Emit the outcome of every member's episode."""
    emit_with_env_context(hub, TelemetryEvent.of(outcome, round_index), None, device)


def emit_episode_curve(
    hub: TelemetryHub, device: str, totals: RoundTotals, round_index: int
) -> None:
    """Emit the round step by step; nothing for a round without a step."""
    if hub.records(_Kind.EPISODE_CURVE) and totals.steps:
        event = TelemetryEvent.of(totals.curve, round_index)
        emit_with_env_context(hub, event, None, device)


def emit_batch_completed(
    hub: TelemetryHub, summary: BatchSummary, telemetry_level: TelemetryLevel
) -> None:
    """Emit the summary of a round."""
    if _is_recorded(hub, _Kind.ROUND_COMPLETED, telemetry_level):
        hub.emit(TelemetryEvent.of(summary, summary.round_index))


def emit_action_distribution(
    hub: TelemetryHub,
    action_counts: Ints,
    action_successes: Ints,
    *,
    legal: Ints,
    probability: Doubles,
    by_stage: Ints,
    slot_counts: Ints,
    slot_successes: Ints,
    round_index: int,
) -> None:
    """Emit the operation counts of a round; arrays over operations, `by_stage` `[O, Z]`."""
    if not hub.records(_Kind.ACTION_DISTRIBUTION):
        return
    payload = ActionDistribution(
        chosen_O=action_counts.copy(),
        executed_O=action_successes.copy(),
        legal_O=legal.copy(),
        probability_O=probability.astype(np.float32),
        chosen_OZ=by_stage.copy(),
        slot_chosen=tuple(slot_counts.tolist()),
        slot_executed=tuple(slot_successes.tolist()),
    )
    hub.emit(TelemetryEvent.of(payload, round_index))


def emit_mask_hit_rates(hub: TelemetryHub, mask_stats: MaskStats, *, round_index: int) -> None:
    """Emit the masked and forced fractions of each head in a round."""
    if not hub.records(_Kind.MASK_HIT_RATES):
        return
    with np.errstate(divide="ignore", invalid="ignore"):
        masked_A = mask_stats.masked_A / mask_stats.steps_A
        forced_A = mask_stats.forced_A / mask_stats.steps_A
    payload = MaskHitRates(
        steps_A=mask_stats.steps_A.copy(),
        masked_fraction_A=masked_A.astype(np.float32),
        forced_fraction_A=forced_A.astype(np.float32),
    )
    hub.emit(TelemetryEvent.of(payload, round_index))


def emit_reward_summary(
    hub: TelemetryHub,
    env_id: int | None,
    device: str,
    reward_components: RewardComponentsTelemetry,
    total_reward: Doubles,
    *,
    slot_reward: Doubles,
    round_index: int,
) -> None:
    """Emit the reward of every member in a round, by component."""
    if not hub.records(_Kind.REWARD_SUMMARY):
        return
    payload = RewardSummary(
        parts=reward_components.names,
        value_EP=reward_components.value_PE.T.copy(),
        total_E=_column(total_reward, np.float64),
        slot_reward=tuple(slot_reward.tolist()),
    )
    emit_with_env_context(hub, TelemetryEvent.of(payload, round_index), env_id, device)


def emit_throughput(
    hub: TelemetryHub,
    env_id: int | None,
    device: str,
    batches_per_second: float,
    samples_per_second: float,
    gpu_utilization: float,
    *,
    member_steps_per_second: float,
    episodes_per_second: float,
    rows_per_member: float,
    step_seconds_p50: float,
    step_seconds_p95: float,
    device_share: float,
    gpu_memory: float,
    round_index: int,
) -> None:
    """Emit the throughput of a round."""
    if not hub.records(_Kind.THROUGHPUT):
        return
    payload = Throughput(
        member_steps_per_second=member_steps_per_second,
        episodes_per_second=episodes_per_second,
        batches_per_second=batches_per_second,
        samples_per_second=samples_per_second,
        gpu_utilization=gpu_utilization,
        rows_per_member=rows_per_member,
        step_seconds_p50=step_seconds_p50,
        step_seconds_p95=step_seconds_p95,
        device_share=device_share,
        gpu_memory=gpu_memory,
    )
    emit_with_env_context(hub, TelemetryEvent.of(payload, round_index), env_id, device)


def emit_phase_profile(
    hub: TelemetryHub,
    device: str,
    phases: Iterable[PhaseTime],
    total_seconds: float,
    round_index: int,
) -> None:
    """Emit the time per phase; up to two events per round, for rollout and update."""
    if hub.records(_Kind.PHASE_PROFILE):
        event = TelemetryEvent.of(PhaseProfile(tuple(phases), total_seconds), round_index)
        emit_with_env_context(hub, event, None, device)


# ---- the learner ------------------------------------------------------------------------------


def emit_ppo_update_event(
    hub: TelemetryHub,
    ppo_metrics: PPOUpdateMetrics,
    layer_stats: Sequence[LayerGradientStats],
    telemetry_level: TelemetryLevel,
    *,
    round_index: int,
) -> None:
    """Emit the metrics of an update; per-layer statistics at DEBUG only."""
    if not _is_recorded(hub, _Kind.PPO_UPDATED, telemetry_level):
        return
    layers = tuple(layer_stats) if telemetry_level >= TelemetryLevel.DEBUG else ()
    hub.emit(TelemetryEvent.of(PPOUpdated(ppo_metrics, layers), round_index))


def compute_grad_norm_surrogate(module_or_grads: nn.Module | Iterable[Tensor | None]) -> float:
    """Total norm of all gradients, without changing them; 0 if there are none.

    A surrogate: computed when called, not when the optimizer clips.
    """
    import torch

    if isinstance(module_or_grads, torch.nn.Module):
        module_or_grads = (parameter.grad for parameter in module_or_grads.parameters())
    norms = [
        torch.linalg.vector_norm(grad.detach(), dtype=torch.float64)
        for grad in module_or_grads
        if grad is not None
    ]
    if not norms:
        return 0.0
    together = torch.linalg.vector_norm(torch.stack([n.to(norms[0].device) for n in norms]))
    return float(together)  # SYNC: one number, on request; never in the step


class _LayerGradientHealth(TypedDict):
    """Summary of the gradients of all layers."""

    layers: int
    dead_layers: int
    """More than `DEAD_FRACTION` of the gradient is exactly 0."""
    exploding_layers: int
    """More than `EXPLODING_FRACTION` of the gradient exceeds 10 in magnitude."""


def aggregate_layer_gradient_health(
    layer_stats: Sequence[LayerGradientStats],
) -> _LayerGradientHealth:
    """Count layers without a gradient, and with a very large one."""
    return _LayerGradientHealth(
        layers=len(layer_stats),
        dead_layers=sum(s.zero_fraction > DEAD_FRACTION for s in layer_stats),
        exploding_layers=sum(s.large_fraction > EXPLODING_FRACTION for s in layer_stats),
    )


def check_performance_degradation(
    current_accuracy: float, baseline_accuracy: float, threshold: float = 0.05
) -> tuple[bool, float]:
    """Whether accuracy (0..1) lies more than `threshold` below the baseline, and the difference.

    NaN on either side is no degradation; non-finite values are a separate anomaly.
    """
    delta = current_accuracy - baseline_accuracy
    return bool(delta < -threshold), delta
