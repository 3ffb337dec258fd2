"""The listener: totals equal explicit loops, levels apply, records are not changed.

The golden counts are written anew, after a deliberate change, by

    PYTHONPATH=src:tests python tests/simic/telemetry/test_listener.py
"""

import copy
import dataclasses
import inspect
import json
import math
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from call_support import python_calls
from engine_script import Script
from esper.leyline import (
    ActionHead,
    EngineListener,
    LifecycleOp,
    SeedStage,
    StepRecord,
    TelemetryConfig,
    TelemetryEvent,
    TelemetryEventType,
    TelemetryLevel,
    VetoReason,
)
from esper.leyline.actions import HEADS_BY_OP, NO_SLOT, SLOT_OPS, ActionOutcome, op_choices
from esper.leyline.payloads import (
    PhaseTime,
    PPOUpdateMetrics,
    RunStarted,
    RunStatus,
    SeedGateEvaluated,
    StepPhase,
)
from esper.leyline.records import PlanRecord
from esper.leyline.stages import OCCUPIED_STAGES
from esper.nissa import MemorySink, TelemetryHub
from esper.simic.telemetry.listener import ListenerGroup, RunTally, TelemetryListener
from esper.tasks.spec import OptimSettings
from loop_support import ANYTHING_GOES
from payload_support import build

Kind = TelemetryEventType
OFF, MINIMAL, NORMAL, DEBUG = TelemetryLevel
GOLDEN = Path(__file__).parent / "golden" / "event_counts.json"
CONFIGS = {
    "off": TelemetryConfig(OFF),
    "off with step events": TelemetryConfig(OFF, step_events=True),
    "minimal": TelemetryConfig(MINIMAL),
    "minimal with step events": TelemetryConfig(MINIMAL, step_events=True),
    "normal": TelemetryConfig(NORMAL),
    "normal with step events": TelemetryConfig(NORMAL, step_events=True),
    "debug": TelemetryConfig(DEBUG),
}


METRICS = build(PPOUpdateMetrics, {"head_entropy": (1.0,) * len(ActionHead)})


def listener_of(hub: TelemetryHub, config: TelemetryConfig, **settings) -> TelemetryListener:
    sizes = {"rounds_total": 2, "batches_per_step": 8, "batch_size": 64}
    sizes |= {"anomalies": ANYTHING_GOES, "optim": OptimSettings()}
    return TelemetryListener(hub, config, "cpu", **(sizes | settings))


def recorded(script: Script, config: TelemetryConfig, **settings) -> list[TelemetryEvent]:
    """All events of a scripted run, in order."""
    sink = MemorySink()
    with TelemetryHub.from_config([sink], config) as hub:
        listener = listener_of(hub, config, **settings)
        listener.run_started(build(RunStarted))
        script.play(listener, after=lambda r: listener.on_update(r, METRICS, seconds=0.5))
        listener.run_finished(RunStatus.COMPLETED, seconds=12.0)
    return sink.events


def of(events: list[TelemetryEvent], kind: TelemetryEventType) -> list[TelemetryEvent]:
    return [event for event in events if event.type is kind]


def payload(events: list[TelemetryEvent], kind: TelemetryEventType, index: int = 0):
    return of(events, kind)[index].payload


def records_of(script: Script, round_index: int) -> list[StepRecord]:
    return [script.record(round_index, step) for step in range(script.steps)]


def decisions_of(script: Script, round_index: int) -> list[PlanRecord | StepRecord]:
    """Records of the plan phase, if there is one, and of the steps."""
    slots = range(script.slots) if script.plans else ()
    plans = [script.plan_record(round_index, slot) for slot in slots]
    return [*plans, *records_of(script, round_index)]


def outcome_of(record: PlanRecord | StepRecord) -> ActionOutcome:
    return record.outcome if isinstance(record, PlanRecord) else record.result.outcome


SCRIPTS = st.builds(
    Script,
    seed=st.integers(0, 10**6),
    rounds=st.just(1),
    steps=st.integers(1, 4),
    members=st.integers(1, 5),
    slots=st.integers(1, 3),
    blueprints=st.integers(1, 4),
    nan_share=st.sampled_from([0.0, 0.0, 0.3]),
    plans=st.booleans(),
)
RUNS = settings(max_examples=25)


# ---- totals against loops ---------------------------------------------------------------------


@RUNS
@given(SCRIPTS)
def test_actions_of_a_round_are_those_of_its_member_steps(script):
    said = payload(recorded(script, TelemetryConfig(NORMAL)), Kind.ACTION_DISTRIBUTION)
    ops, stages = len(LifecycleOp), len(SeedStage)
    chosen, executed, legal = [0] * ops, [0] * ops, [0] * ops
    probability, by_stage = [0.0] * ops, [[0] * stages for _ in range(ops)]
    for record in decisions_of(script, 0):
        for e in range(script.members):
            op, outcome = record.decision.actions.op[e], outcome_of(record)
            chosen[op] += 1
            executed[op] += outcome.veto[e] == VetoReason.NONE
            if op in SLOT_OPS:
                by_stage[op][outcome.stage_before[e]] += 1
            for o in range(ops):
                legal[o] += record.masks.op_EO[e, o]
                probability[o] += float(record.decision.op_probability_EO[e, o])
    assert said.chosen_O.tolist() == chosen
    assert said.executed_O.tolist() == executed
    assert said.legal_O.tolist() == legal
    assert said.chosen_OZ.tolist() == by_stage
    decisions = len(decisions_of(script, 0))
    assert np.allclose(said.probability_O * script.members * decisions, probability)


def choices_left(record: StepRecord, e: int, head: ActionHead) -> np.ndarray:
    """The mask one head of one member was sampled under."""
    masks, actions = record.masks, record.decision.actions
    return {
        ActionHead.OP: lambda: masks.op_EO[e, : op_choices(restarts=False)],
        ActionHead.SLOT: lambda: masks.slot_EOS[e, actions.op[e]],
        ActionHead.BLUEPRINT: lambda: masks.blueprint_ESK[e, actions.slot[e]],
        ActionHead.STYLE: lambda: masks.style_Y,
        ActionHead.TEMPO: lambda: masks.tempo_M,
        ActionHead.ALPHA_TARGET: lambda: masks.alpha_target_T,
        ActionHead.ALPHA_SPEED: lambda: masks.alpha_speed_V,
        ActionHead.ALPHA_CURVE: lambda: masks.alpha_curve_U,
    }[head]()


@RUNS
@given(SCRIPTS)
def test_mask_hits_are_counted_where_heads_counted(script):
    said = payload(recorded(script, TelemetryConfig(NORMAL)), Kind.MASK_HIT_RATES)
    for head in ActionHead:
        masked, forced = [], []
        for record in decisions_of(script, 0):
            for e in range(script.members):
                if head in HEADS_BY_OP[LifecycleOp(record.decision.actions.op[e])]:
                    mask = choices_left(record, e, head).tolist()
                    masked.append(mask.count(False) / len(mask))
                    forced.append(mask.count(True) == 1)
        assert said.steps_A[head] == len(masked)
        mean = np.mean(masked) if masked else math.nan
        share = np.mean(forced) if forced else math.nan
        assert said.masked_fraction_A[head] == pytest.approx(mean, nan_ok=True)
        assert said.forced_fraction_A[head] == pytest.approx(share, nan_ok=True)


@RUNS
@given(SCRIPTS)
def test_rewards_of_a_round_are_summed_by_part_and_member(script):
    events = recorded(script, TelemetryConfig(DEBUG))
    said = payload(events, Kind.REWARD_SUMMARY)
    assert said.parts == ("score", "upkeep", "end")
    records = decisions_of(script, 0)
    so_far = [0.0] * script.members
    for step, record in enumerate(records):
        action = payload(events, Kind.LAST_ACTION, step)
        for e in range(script.members):
            paid = sum(record.rewards.value_PE[:, e].tolist())
            so_far[e] += paid
            assert action.reward_E[e] == pytest.approx(paid, nan_ok=True)
            assert action.cumulative_reward_E[e] == pytest.approx(so_far[e], nan_ok=True)
    assert said.total_E.tolist() == pytest.approx(so_far, nan_ok=True)
    for p, name in enumerate(said.parts):
        for e in range(script.members):
            paid = sum(r.rewards.part(name)[e] for r in records if name in r.rewards.names)
            assert said.value_EP[e, p] == pytest.approx(paid, nan_ok=True)


@RUNS
@given(SCRIPTS)
def test_time_of_a_round_is_the_sum_of_its_phases(script):
    said = payload(recorded(script, TelemetryConfig(NORMAL)), Kind.PHASE_PROFILE)
    spent: Counter[StepPhase] = Counter()
    for record in records_of(script, 0):
        for time in record.phases:
            spent[time.phase] += time.seconds
    assert [(t.phase, t.seconds) for t in said.phases] == sorted(spent.items())
    assert said.total_seconds == script.seconds


@RUNS
@given(SCRIPTS)
def test_summary_of_a_round_is_that_of_its_outcome(script):
    said = payload(recorded(script, TelemetryConfig(MINIMAL)), Kind.ROUND_COMPLETED)
    rollout = script.rollout(0)
    ended, stages = rollout.outcome, rollout.final_signals.slots.stage_ES.ravel().tolist()
    members = script.members

    def mean(values: np.ndarray) -> float:
        return pytest.approx(sum(values.tolist()) / members, nan_ok=True)

    assert (said.round_index, said.rounds_total) == (0, 2)
    assert (said.episodes_done, said.members) == (members, members)
    assert said.mean_reward == mean(ended.episode_return_E)
    assert said.mean_accuracy == mean(ended.accuracy_E)
    assert said.mean_score == mean(ended.score_E)
    assert said.mean_added_params == mean(ended.added_params_E)
    assert said.mean_added_macs == mean(ended.added_macs_E)
    if not np.isnan(ended.accuracy_E).any():
        low, high = min(ended.accuracy_E.tolist()), max(ended.accuracy_E.tolist())
        assert (said.min_accuracy, said.max_accuracy) == (low, high)
    if not np.isnan(ended.score_E).any():
        assert said.max_score == max(ended.score_E.tolist())
    assert said.rollbacks == sum(ended.rollbacks_E.tolist())
    assert list(said.stage_counts) == [stages.count(stage) for stage in SeedStage]
    seeds = [s for s in stages if s in OCCUPIED_STAGES]
    assert said.active_slots == pytest.approx(len(seeds) / members)
    assert said.seconds == script.seconds
    assert said.member_steps_per_second == pytest.approx(script.steps * members / script.seconds)


# ---- figures in closed form -------------------------------------------------------------------


def test_slots_are_told_apart_by_operations_and_rewards():
    script = Script(members=4, steps=3, plans=True)
    events = recorded(script, TelemetryConfig(NORMAL))
    actions, rewards = (
        payload(events, Kind.ACTION_DISTRIBUTION),
        payload(events, Kind.REWARD_SUMMARY),
    )
    chosen, executed, paid = (np.zeros(script.slots) for _ in range(3))
    for record in decisions_of(script, 0):
        outcome = outcome_of(record)
        for member, slot in enumerate(outcome.target_slot):
            if slot != NO_SLOT:
                chosen[slot] += 1
                executed[slot] += outcome.executed[member]
                paid[slot] += record.rewards.total[member]
    assert chosen.sum() > 0
    assert list(actions.slot_chosen) == chosen.tolist()
    assert list(actions.slot_executed) == executed.tolist()
    np.testing.assert_allclose(rewards.slot_reward, paid)


def test_throughput_follows_from_the_sizes():
    script = Script(members=4, steps=3, seconds=6.0, plans=True)
    events = recorded(script, TelemetryConfig(NORMAL))
    said = payload(events, Kind.THROUGHPUT)
    assert said.member_steps_per_second == 2.0
    assert said.episodes_per_second == pytest.approx(4 / 6)
    assert said.batches_per_second == 2.0 * 8
    assert said.samples_per_second == 2.0 * 8 * 64
    assert said.device_share == 0.75
    assert math.isnan(said.gpu_utilization)  # a CPU has none
    assert math.isnan(said.gpu_memory)
    records = records_of(script, 0)
    assert said.rows_per_member == pytest.approx(sum(r.rows for r in records) / 12)
    took = [sum(t.seconds for t in r.phases) for r in records]
    assert said.step_seconds_p50 == pytest.approx(sorted(took)[1])
    assert said.step_seconds_p95 == pytest.approx(np.percentile(took, 95))


def test_figures_nobody_measured_are_nan():
    events = recorded(Script(seconds=0.0), TelemetryConfig(NORMAL))
    speed, summary = payload(events, Kind.THROUGHPUT), payload(events, Kind.ROUND_COMPLETED)
    assert math.isnan(speed.device_share)
    assert math.isnan(speed.member_steps_per_second)
    assert math.isnan(summary.member_steps_per_second)
    assert math.isnan(summary.learning_rate)
    assert math.isnan(summary.entropy_coef)


def test_learner_figures_are_said_once_set():
    sink = MemorySink()
    with TelemetryHub([sink], MINIMAL) as hub:
        listener = listener_of(hub, TelemetryConfig(MINIMAL))
        Script().play(listener, after=lambda r: listener.set_learner(0.25 / (r + 1), 0.5))
    first, second = (event.payload for event in of(sink.events, Kind.ROUND_COMPLETED))
    assert math.isnan(first.learning_rate)
    assert (second.learning_rate, second.entropy_coef) == (0.25, 0.5)


def test_best_score_and_episodes_go_on_over_rounds_and_pass_over_nan():
    script = Script(rounds=4)
    scores = [0.5, math.nan, 0.75, 0.25]
    sink = MemorySink()
    with TelemetryHub([sink], MINIMAL) as hub:
        listener = listener_of(hub, TelemetryConfig(MINIMAL))
        for r, score in enumerate(scores):
            rollout = script.rollout(r)
            rollout.outcome.score_E[:] = score
            listener.on_round_start(r, 4)
            listener.on_round_end(rollout)
        listener.run_finished(RunStatus.INTERRUPTED, seconds=3.0)
    rounds = [event.payload for event in of(sink.events, Kind.ROUND_COMPLETED)]
    assert [said.best_score for said in rounds] == [0.5, 0.5, 0.75, 0.75]
    assert [said.episodes_done for said in rounds] == [4, 8, 12, 16]
    end = payload(sink.events, Kind.RUN_FINISHED)
    assert (end.status, end.rounds_done, end.episodes_done) == (RunStatus.INTERRUPTED, 4, 16)
    assert (end.seconds, end.best_score, end.events_dropped) == (3.0, 0.75, 0)
    assert listener.tally == RunTally(4, 16, 0.75)


def test_members_of_ranks_that_were_cut_have_no_outcome():
    """Their steps count for the speed, and those not taken are counted."""
    script, sink = Script(rounds=1, steps=4), MemorySink()
    rollout = dataclasses.replace(script.rollout(0), steps_E=np.array([4, 1, 3, 4]))
    with TelemetryHub([sink], MINIMAL) as hub:
        listener = listener_of(hub, TelemetryConfig(MINIMAL))
        listener.on_round_start(0, 4)
        listener.on_round_end(rollout)
    said = payload(sink.events, Kind.ROUND_COMPLETED)
    assert (said.cut_steps, said.members, said.episodes_done) == (4, 4, 4)
    ended, whole = rollout.outcome, [0, 3]
    assert said.mean_score == pytest.approx(ended.score_E[whole].mean())
    assert said.max_score == ended.score_E[whole].max()
    assert said.mean_train_accuracy == pytest.approx(rollout.train_accuracy_E[whole].mean())
    assert said.member_steps_per_second == pytest.approx(12 / script.seconds)
    outcome = payload(sink.events, Kind.EPISODE_OUTCOME)
    assert outcome.member_E.tolist() == ended.member_E[whole].tolist()
    assert outcome.score_E.tolist() == ended.score_E[whole].tolist()


def test_pieces_of_an_episode_are_no_episodes():
    """Two rollouts of half an episode each: the first ends none, and its score is no round's."""
    script, sink = Script(rounds=1, steps=4), MemorySink()
    whole = script.rollout(0)
    half = dataclasses.replace(script.rollout(0), ends_episode=False)
    half.outcome.score_E[:], whole.outcome.score_E[:] = 0.75, 0.5
    with TelemetryHub([sink], MINIMAL) as hub:
        listener = listener_of(hub, TelemetryConfig(MINIMAL))
        tallies = []
        for rollout in (half, whole):
            listener.on_round_start(0, 4)
            listener.on_round_end(rollout)
            tallies.append(listener.tally)
    assert (tallies[0].rounds_done, tallies[0].episodes_done) == (0, 0)
    assert math.isnan(tallies[0].best_score)
    assert tallies[1] == RunTally(1, 4, 0.5)
    rounds = [event.payload for event in of(sink.events, Kind.ROUND_COMPLETED)]
    assert [said.episodes_done for said in rounds] == [0, 4]


def test_a_resumed_run_continues_its_tally():
    script = Script(rounds=1)
    events = recorded(script, TelemetryConfig(MINIMAL), tally=RunTally(3, 30, 99.0))
    assert payload(events, Kind.ROUND_COMPLETED).episodes_done == 34
    assert payload(events, Kind.RUN_FINISHED).best_score == 99.0


def test_where_rounds_do_not_compare_none_is_the_best_and_that_is_no_anomaly():
    """Also not the best of a run that was begun when one was."""
    script, config = Script(rounds=2), TelemetryConfig(NORMAL)
    events = recorded(script, config, tally=RunTally(3, 30, 99.0), ranked=False)
    ends = [event.payload for event in of(events, Kind.ROUND_COMPLETED)]
    assert [said.episodes_done for said in ends] == [34, 38]
    assert all(math.isnan(said.best_score) for said in ends)
    assert math.isnan(payload(events, Kind.RUN_FINISHED).best_score)
    assert of(events, Kind.ANOMALY_DETECTED) == of(events, Kind.STEP_COMPLETED) == []


def test_dropped_events_are_said_at_the_end():
    sink = MemorySink()
    config = TelemetryConfig(DEBUG, queue_size=1)
    hub = TelemetryHub.from_config([sink], config)
    listener = listener_of(hub, config)
    with hub._changed:  # the writer cannot take anything meanwhile
        for _ in range(5):
            listener.run_started(build(RunStarted))
    assert hub.flush()
    listener.run_finished(RunStatus.COMPLETED, seconds=1.0)
    hub.close()
    assert payload(sink.events, Kind.RUN_FINISHED).events_dropped == 4


def test_update_is_told_with_its_time():
    events = recorded(Script(rounds=1), TelemetryConfig(NORMAL))
    (update,) = of(events, Kind.PPO_UPDATED)
    assert (update.round_index, update.payload.metrics) == (0, METRICS)
    rollout, learner = (event.payload for event in of(events, Kind.PHASE_PROFILE))
    assert learner.phases == (PhaseTime(StepPhase.UPDATE, 0.5),)
    assert learner.total_seconds == 0.5
    assert StepPhase.UPDATE not in {time.phase for time in rollout.phases}


# ---- what is recorded when --------------------------------------------------------------------


def counts_of(config: TelemetryConfig) -> dict[str, int]:
    events = recorded(Script(seed=7), config)
    return dict(sorted(Counter(event.type.name for event in events).items()))


@pytest.mark.parametrize("name", CONFIGS)
def test_number_of_events_per_type_is_the_golden_one(name):
    assert counts_of(CONFIGS[name]) == json.loads(GOLDEN.read_text())[name]


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_level_decides_what_is_emitted(config):
    kinds = {event.type for event in recorded(Script(seed=7), config)}
    steps = {Kind.STEP_COMPLETED, Kind.LAST_ACTION}
    never_here = {Kind.ANOMALY_DETECTED, Kind.CHECKPOINT_SAVED, Kind.CHECKPOINT_LOADED}
    wanted = {kind for kind in Kind if kind.recorded_at(config.level)} - never_here
    if config.step_events and config.level is not OFF:
        wanted |= steps
    assert kinds == wanted


def test_every_event_of_a_step_says_where_it_happened():
    events = recorded(Script(seed=7, rounds=2, steps=3), TelemetryConfig(DEBUG))
    steps = of(events, Kind.STEP_COMPLETED)
    assert [(e.round_index, e.step) for e in steps] == [(r, t) for r in (0, 1) for t in range(3)]
    assert {e.device for e in steps} == {"cpu"}
    last = {r: max(i for i, e in enumerate(events) if e.round_index == r) for r in (0, 1)}
    ends = [events.index(e) for e in of(events, Kind.ROUND_COMPLETED)]
    # After the summary of a round comes only its update (2 events).
    assert [last[r] - ends[r] for r in (0, 1)] == [2, 2]


def test_actions_of_the_plan_phase_come_before_those_of_the_steps_and_have_no_step():
    events = recorded(Script(rounds=1, steps=3, slots=2, plans=True), TelemetryConfig(DEBUG))
    actions = of(events, Kind.LAST_ACTION)
    assert [(e.round_index, e.step) for e in actions] == [(0, s) for s in (None, None, 0, 1, 2)]


def test_members_without_counterfactuals_are_named_with_their_reasons():
    script = Script(members=9, rounds=1)
    events = of(recorded(script, TelemetryConfig(DEBUG)), Kind.COUNTERFACTUAL_UNAVAILABLE)
    for event, record in zip(events, records_of(script, 0), strict=True):
        gap_E = record.counterfactuals.gap_E
        who = [e for e in range(9) if gap_E[e]]
        assert 0 < len(who) < 9
        assert event.payload.member_N.tolist() == who
        assert event.payload.reason_N.tolist() == [gap_E[e] for e in who]


def test_a_raised_level_records_gates():
    sink = MemorySink()
    with TelemetryHub([sink], NORMAL) as hub:
        listener = listener_of(hub, TelemetryConfig(NORMAL))
        for step, level in enumerate((NORMAL, DEBUG, NORMAL)):
            hub.level = level
            listener.on_slot_events(0, step, build(SeedGateEvaluated, N=1))
    assert [event.step for event in sink.events] == [1]


def test_a_level_raised_in_a_round_shows_no_half_totals():
    script, sink = Script(steps=3), MemorySink()
    with TelemetryHub([sink], MINIMAL) as hub:
        listener = listener_of(hub, TelemetryConfig(MINIMAL))
        listener.on_round_start(0, 4)
        listener.on_step(script.record(0, 0))
        hub.level = DEBUG
        listener.on_step(script.record(0, 1))
        listener.on_round_end(script.rollout(0))
        script.play_round(listener, 1)
    raised = {event.type for event in sink.events if event.round_index == 0}
    assert Kind.STEP_COMPLETED in raised
    assert not raised & {Kind.REWARD_SUMMARY, Kind.ACTION_DISTRIBUTION, Kind.LAST_ACTION}
    (summed,) = of(sink.events, Kind.REWARD_SUMMARY)
    assert summed.round_index == 1


def test_a_level_switched_off_for_a_step_shows_no_half_totals():
    script, sink = Script(steps=3), MemorySink()
    with TelemetryHub([sink], NORMAL) as hub:
        listener = listener_of(hub, TelemetryConfig(NORMAL))
        listener.on_round_start(0, 4)
        for step, level in enumerate((NORMAL, OFF, NORMAL)):
            hub.level = level
            listener.on_step(script.record(0, step))
        listener.on_round_end(script.rollout(0))
    assert of(sink.events, Kind.REWARD_SUMMARY) == []
    assert len(of(sink.events, Kind.ROUND_COMPLETED)) == 1


def test_off_builds_nothing():
    """Not even the totals: a record is not looked at."""

    class Untouchable:
        def __getattr__(self, name: str):
            raise AssertionError(f"read {name} of a record")

    with TelemetryHub([MemorySink()], OFF) as hub:
        listener = listener_of(hub, TelemetryConfig(OFF, step_events=True))
        listener.on_round_start(0, 4)
        listener.on_step(Untouchable())
        listener.on_slot_events(0, 0, Untouchable())


# ---- what a listener must never do ------------------------------------------------------------


def test_listener_and_group_satisfy_the_protocol():
    hub = TelemetryHub([], OFF)
    for thing in (listener_of(hub, TelemetryConfig()), ListenerGroup([])):
        assert isinstance(thing, EngineListener)
        for name, method in vars(EngineListener).items():
            if inspect.isfunction(method) and name.startswith("on_"):
                theirs = inspect.signature(getattr(type(thing), name)).parameters
                assert list(inspect.signature(method).parameters) == list(theirs)


@RUNS
@given(SCRIPTS)
def test_records_are_left_as_they_were(script):
    record, rollout = script.record(0, 0), script.rollout(0)
    kept = copy.deepcopy((record, rollout))
    with TelemetryHub([MemorySink()], DEBUG) as hub:
        listener = listener_of(hub, TelemetryConfig(DEBUG))
        listener.on_round_start(0, script.members)
        listener.on_step(record)
        listener.on_step(record)
        listener.on_round_end(rollout)
    assert (record, rollout) == kept


def test_a_read_only_record_is_no_trouble():
    record = Script().record(0, 0)
    for struct in (record.signals, record.masks, record.decision, record.reward_inputs):
        for name in struct.__dataclass_fields__:
            value = getattr(struct, name)
            if isinstance(value, np.ndarray):
                value.flags.writeable = False
    with TelemetryHub([MemorySink()], DEBUG) as hub:
        listener = listener_of(hub, TelemetryConfig(DEBUG))
        listener.on_round_start(0, 4)
        listener.on_step(record)


def test_a_sink_that_raises_does_not_disturb_the_run():
    class Broken(MemorySink):
        def emit(self, event: TelemetryEvent) -> None:
            raise RuntimeError("no")

    script, good = Script(seed=7), MemorySink()
    config = TelemetryConfig(DEBUG)
    hub = TelemetryHub.from_config([Broken(), good], config)
    listener = listener_of(hub, config)
    script.play(listener)
    hub.close()
    alone = MemorySink()
    with TelemetryHub.from_config([alone], config) as hub:
        script.play(listener_of(hub, config))
    assert [e.payload for e in good.events] == [e.payload for e in alone.events]
    assert listener.tally.rounds_done == 2


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_neither_raise_nor_warn(value):
    script = Script(nan_share=0.5)
    with TelemetryHub([MemorySink()], DEBUG) as hub, warnings.catch_warnings():
        warnings.simplefilter("error")
        listener = listener_of(hub, TelemetryConfig(DEBUG))
        listener.on_round_start(0, 4)
        for step in range(3):
            record = script.record(0, step)
            record.rewards.value_PE[0] = value
            record.rewards.value_PE[1] = -value
            record.signals.val_loss_E[:] = value
            record.decision.op_probability_EO[:] = value
            listener.on_step(record)
        rollout = script.rollout(0)
        rollout.outcome.score_E[:2] = value, -value
        rollout.outcome.accuracy_E[:2] = value, -value
        listener.on_round_end(rollout)
        listener.run_finished(RunStatus.FAILED, seconds=math.nan)
    assert hub.report().complete


def test_calls_per_step_do_not_grow_with_the_members():
    """Python work is the same for 2 and for 200 members."""

    def calls(members: int) -> int:
        script = Script(seed=7, members=members)
        record = script.record(0, 0)
        with TelemetryHub([MemorySink()], DEBUG) as hub:
            listener = listener_of(hub, TelemetryConfig(DEBUG))
            listener.on_round_start(0, members)
            return python_calls(lambda: listener.on_step(record)).total()

    calls(20)
    assert calls(200) <= calls(20) + 10


def test_a_group_tells_every_listener_in_order():
    reported: list[tuple] = []

    class Diary:
        def __init__(self, name: str) -> None:
            self.name = name

        def on_round_start(self, round_index: int, members: int) -> None:
            reported.append((self.name, "start", round_index, members))

        def on_slot_events(self, round_index: int, step: int, payload) -> None:
            reported.append((self.name, "slots", round_index, step, payload))

        def on_step(self, record) -> None:
            reported.append((self.name, "step", record))

        def on_plan(self, record) -> None:
            reported.append((self.name, "plan", record))

        def on_round_end(self, rollout) -> None:
            reported.append((self.name, "end", rollout))

    group = ListenerGroup([Diary("a"), Diary("b")])
    group.on_round_start(1, 4)
    group.on_plan("plan record")
    group.on_slot_events(1, 2, "payload")
    group.on_step("record")
    group.on_round_end("rollout")
    said = [
        ("start", 1, 4),
        ("plan", "plan record"),
        ("slots", 1, 2, "payload"),
        ("step", "record"),
        ("end", "rollout"),
    ]
    assert reported == [(name, *what) for what in said for name in "ab"]


if __name__ == "__main__":
    found = {name: counts_of(config) for name, config in CONFIGS.items()}
    GOLDEN.write_text(json.dumps(found, indent=1) + "\n")
