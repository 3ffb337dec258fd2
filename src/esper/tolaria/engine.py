"""The vectorized engine: trains, validates, observes, acts and rewards all members per step.

    engine = VectorizedEngine(get_task_spec("digits_impaired"), EngineConfig(members=8))
    rollout = engine.run_rollout(client)

The engine drives any `PolicyProtocol` and notifies `EngineListener`s; learning and recording happen
there.

Shape letters: E members, S slots, R rows, T steps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any, Final

import numpy as np

from esper.device.graphs import GraphCache, GraphReport
from esper.device.streams import new_stream, on_stream
from esper.device.transfer import fetch
from esper.kasmina.lifecycle.gates import gate_signals
from esper.kasmina.snapshot import finite_members
from esper.leyline.actions import LifecycleOp
from esper.leyline.arrays import Doubles, Floats
from esper.leyline.context import FIXED
from esper.leyline.errors import EsperError
from esper.leyline.masks import ActionMasks
from esper.leyline.payloads import EpisodeOutcome, PhaseTime, PruneCause, StepPhase
from esper.leyline.protocols import EngineListener, PolicyProtocol
from esper.leyline.records import Rollout, StepRecord
from esper.leyline.signals import Counterfactuals, GovernorVerdicts, TrainingSignals
from esper.leyline.stages import SeedStage
from esper.tamiyo.masks import build_masks
from esper.tasks.scoring import suffix_macs
from esper.tasks.spec import TaskSpec
from esper.tasks.task_data import TaskData
from esper.tolaria.action_execution import bootstrap_targets, execute_actions
from esper.tolaria.batch_ops import RowTotals
from esper.tolaria.context_state import ContextState, gates_allowed
from esper.tolaria.counterfactual_eval import CoalitionPlan, attribute, plan_coalitions
from esper.tolaria.engine_config import EngineConfig, require_same_run
from esper.tolaria.env_factory import create_env_state, make_telemetry_callback, reset_env_state
from esper.tolaria.episode import EpisodeTracker
from esper.tolaria.governor import healthy_members
from esper.tolaria.measurements import (
    RowMeasurements,
    StepMeasurements,
    TrainMeasurements,
    fetch_rows,
    fetch_step,
)
from esper.tolaria.memory_check import require_memory
from esper.tolaria.observation import ObservedStep, Observer, StepMetrics
from esper.tolaria.plan_phase import PlanPhase
from esper.tolaria.policy_checks import checked_decision, checked_rewards
from esper.tolaria.runtime import (
    CUDATimer,
    autocast,
    choose_precision,
    explain_out_of_memory,
    set_profile,
    timed_phase,
)
from esper.tolaria.setup import (
    allocate_batch_buffers,
    choose_device,
    default_val_batch_size,
    make_graph_cache,
    make_train_iterator,
    prepare_executor,
)
from esper.tolaria.slot_events import SlotEventCollector
from esper.tolaria.step_training import StepTrainer
from esper.tolaria.validation import Validator

STATE_VERSION: Final = 1


class VectorizedEngine:
    """Runs E members of a task under a policy."""

    def __init__(
        self,
        spec: TaskSpec,
        config: EngineConfig | None = None,
        listener: EngineListener | None = None,
        data: TaskData | None = None,
    ) -> None:
        """`listener`: notified of every rollout; `data`: the task's data, if already loaded."""
        self.spec = spec
        self.config = config or EngineConfig()
        self._listeners = () if listener is None else (listener,)
        self.device = choose_device(self.config)
        self.precision = choose_precision(self.config.precision, self.device)
        self.round = 0
        """Index of the current episode, or of the next one between episodes."""
        self.step = 0
        """Steps completed in the current episode; 0 between episodes."""
        self._next_step: ObservedStep | None = None
        """The next step, already observed because the last rollout was truncated before it."""
        self._measures_gradients = False
        """Whether the policy reads activation gradients, which take an extra pass per step."""
        self.timer = CUDATimer(self.device)
        """Device time of training and validation, for benchmarks."""
        self.phase_seconds = dict.fromkeys(StepPhase, 0.0)
        """Host wall time of each phase so far."""
        set_profile(self.config.profile, self.device)
        with explain_out_of_memory(self.device, self.config.members, spec.batch_size):
            self._build(data if data is not None else spec.load())

    def _build(self, data: TaskData) -> None:
        spec, config = self.spec, self.config
        require_memory(spec, data, config.members, self.device)
        self._member_ids = np.arange(config.members)
        if config.member_ids is not None:
            self._member_ids = np.array(config.member_ids, dtype=np.int64)
        objective = spec.objective(data)
        self.env = create_env_state(
            spec,
            config.members,
            config.seed,
            self.device,
            config.executor,
            config.signals,
            config.governor,
            fp16=self.precision == "fp16",
            stream=new_stream(self.device),
            objective=objective,
        )
        population, device, precision = self.env.model, self.device, self.precision
        population.member_ids[:] = self._member_ids
        self.batches = make_train_iterator(spec, data, config, population, device, precision)
        self.buffers = allocate_batch_buffers(self.batches, device)
        batch_size = config.val_batch_size or default_val_batch_size(config.members, device)
        limit = config.counterfactuals.images
        self.validator = Validator(spec, data, device, batch_size, limit, objective)
        prepare_executor(spec, self.env, self.batches, self.buffers, config, device, precision)
        sample = self.validator.control.sample
        suffix_S = suffix_macs(population, sample)
        context_ids = np.array(config.context_ids or self._member_ids, dtype=np.int64)
        self.context = ContextState(
            spec.context,
            spec,
            data,
            population,
            sample,
            suffix_S,
            context_ids,
            gates_allowed(config.frozen_heads),
            config.hidden_seed,
            objective,
        )
        self.trainer = StepTrainer(
            spec, self.env, self.batches, self.buffers, self.context, self.autocast
        )
        graphs, self._graphs_off_reason = make_graph_cache(config.graphs, population)
        self.use_graphs(graphs)
        self.episode = EpisodeTracker(spec, population, suffix_S, self.context)
        self.observer = Observer(self.env, spec.episode_length, self.context)
        life, frozen = population.lifecycle, dict(config.frozen_heads)
        build_masks(life.legal_ops(), life.fits_ESK(), frozen)  # raises early on invalid heads
        self.slot_events = SlotEventCollector(population)

    def use_graphs(self, graphs: GraphCache | None) -> None:
        """Capture train and validation batches in `graphs`; None: run them eagerly."""
        self.graphs = self.validator.graphs = self.trainer.graphs = graphs
        if graphs is not None and self.buffers is not None:
            graphs.register_static(*self.buffers)

    def graph_report(self) -> GraphReport:
        """Report whether CUDA graphs are used, why, and how often they were replayed."""
        if self.graphs is None:
            return GraphReport(False, self._graphs_off_reason or "no graph cache")
        return self.graphs.report()

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        """Autocast context of the members."""
        return autocast(self.device, self.precision, cached=self.graphs is None)

    # ---- rounds ---------------------------------------------------------------------------

    def train(self, client: PolicyProtocol[Any], rounds: int) -> list[Rollout[Any]]:
        """Alternate rollouts and updates, without hooks or telemetry."""
        history = []
        for _ in range(rounds):
            rollout = self.run_rollout(client)
            client.update(rollout)
            history.append(rollout)
        return history

    def run_rollout(
        self,
        client: PolicyProtocol[Any],
        listener: EngineListener | None = None,
        ends_early: Callable[[int], bool] | None = None,
    ) -> Rollout[Any]:
        """One episode of all members, or its next `rollout_steps` steps where that is set.

        `listener`: notified of this rollout, after the engine's own. The return of a truncated
        rollout is bootstrapped with the value of the next observation, so the next step is already
        trained and observed here, and the next rollout starts with its `act`.

        `ends_early`: asked after each step with their number; True ends the episodes, likewise.
        """
        start = perf_counter()
        device_seconds = sum(self.timer.seconds.values())
        listeners = self._listeners if listener is None else (*self._listeners, listener)
        set_profile(self.config.profile, self.device)
        first, length = self.step, self.spec.episode_length
        last = min(length, first + (self.config.rollout_steps or length))
        try:
            with self.computing():
                if self.step == 0:
                    self.begin_episode(client)
                for each in listeners:
                    each.on_round_start(self.round, self.env.members)
                planned = self._plan(client, listeners) if self.step == 0 else 0
                record, train_accuracy_E, outcome = self._run_steps(
                    client, listeners, last, ends_early
                )
        except BaseException:
            self.step = 0  # an interrupted step cannot be resumed: restart the episode
            raise
        device_seconds = sum(self.timer.collect().values()) - device_seconds
        next_step, result, steps = self._next_step, record.result, self.step - first
        stopped, targets = self.step < last, result.truncated_bootstrap_targets
        if stopped:
            targets = bootstrap_targets(record.signals, record.governor.rolled_back_E)
        rollout = Rollout(
            round_index=self.round,
            steps=steps,
            ends_episode=stopped or next_step is None,
            outcome=outcome,
            truncated_bootstrap_targets=targets,
            final_signals=result.post_action_signals if next_step is None else next_step.signals,
            final_masks=result.post_action_masks if next_step is None else next_step.masks,
            final_state=self.env.lstm_hidden,
            train_accuracy_E=train_accuracy_E,
            steps_E=np.full(self.env.members, steps, dtype=np.int64),
            seconds=perf_counter() - start,
            device_seconds=device_seconds,
            plan_decisions=planned,
            round_context=self.context.round,
        )
        if stopped or self.step == length:
            self.end_episode()
        for each in listeners:
            each.on_round_end(rollout)
        return rollout

    def _run_steps(
        self,
        client: PolicyProtocol[Any],
        listeners: Sequence[EngineListener],
        last: int,
        ends_early: Callable[[int], bool] | None,
    ) -> tuple[StepRecord, Doubles, EpisodeOutcome]:
        """Run steps up to `last`; one that comes after it in the episode is observed."""
        length, early = self.spec.episode_length, False
        while self.step < last and not early:
            cut = self.step + 1 == last < length
            record, train_accuracy_E = self._step_env(client, cut, listeners)
            self.step += 1
            if self.step == last or ends_early is not None:
                outcome = self.outcome()
                self._next_step = self._observe_step() if self.step < length else None
            early = ends_early is not None and self.step < last and ends_early(self.step)
        return record, train_accuracy_E, outcome

    def step_members(
        self, client: PolicyProtocol[Any], listener: EngineListener | None = None
    ) -> StepRecord:
        """Run one step after `begin_episode`, for callers that time single steps."""
        with self.computing():
            record, _ = self._step_env(client, False, () if listener is None else (listener,))
        self.step += 1
        return record

    def observe_step(self) -> tuple[TrainingSignals, ActionMasks]:
        """Train and observe the next step ahead of `step_members`, which then only acts."""
        with self.computing():
            self._next_step = self._next_step or self._observe_step()
        return self._next_step.signals, self._next_step.masks

    def end_episode(self) -> None:
        """Count the round; the next one begins with fresh members."""
        self.round, self.step = self.round + 1, 0

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Context for device work: the engine's stream, and readable out-of-memory errors."""
        members, batch_size = self.config.members, self.spec.batch_size
        with explain_out_of_memory(self.device, members, batch_size), on_stream(self.env.stream):
            yield

    def outcome(self) -> EpisodeOutcome:
        """Outcome of the members after the last step."""
        env = self.env
        life, rollbacks_E = env.model.lifecycle, env.governor.rollbacks_E
        return self.episode.outcome(env.epoch_rewards, env.successes, rollbacks_E, life)

    def begin_episode(self, client: PolicyProtocol[Any]) -> None:
        """Reset members to fresh hosts and score them, as the baseline of the first reward.

        Called by `run_rollout`, and by benchmarks that place seeds before timing steps.
        """
        population, self._next_step = self.env.model, None
        self._measures_gradients = getattr(client, "reads_activation_gradients", False)
        if self.context.begin_round(self.config.seed, self.round):
            data = self.context.round_data()
            self.batches.replace_data(data, self.context.samples)
            self.validator.replace_data(data)
        self.env.governor.chance = self.context.chance.accuracy
        reset_env_state(self.env, self.round, client)
        self.batches.reset(self.round)
        self.observer.reset()
        self.slot_events.reset()
        self.episode.reset(population.slot_reports())
        self.env.governor.reset(self._score_fresh_members())

    def _score_fresh_members(self) -> Doubles:
        """Validate the members before the first step; returns their scores."""
        population = self.env.model
        with self.autocast():
            control = self.validator.run_control(population, None)
            scored = self.validator.run_score(population)
        control_rows, score_rows = fetch_rows(control, scored)
        validated = self._loss_and_accuracy(control_rows), self._loss_and_accuracy(score_rows)
        return self.episode.record_step(-1, population.slot_reports(), *validated)

    def _plan(self, client: PolicyProtocol[Any], listeners: Sequence[EngineListener]) -> int:
        """Run the plan phase, if the context has one; returns the number of its decisions."""
        phase = self.begin_plan()
        while phase is not None and not phase.done:
            phase.decide(client, listeners)
        return 0 if phase is None else phase.slot

    def begin_plan(self) -> PlanPhase | None:
        """The plan phase of an episode that has just begun; None if the context has none."""
        if not self.context.spec.plans:
            return None
        measured = None
        if self._measures_gradients:
            gradients_ES = self.trainer.activation_gradients(before_training=True)
            # SYNC: one copy an episode, before step 0.
            measured = None if gradients_ES is None else fetch({"": gradients_ES})[""]
        self._plan_gradients_ES = self._gradients(measured)
        frozen = dict(self.config.frozen_heads)
        rescore = self._score_fresh_members
        return PlanPhase(self.env, self._observe_plan, rescore, self.episode, frozen)

    def _observe_plan(self, slot: int) -> TrainingSignals:
        """The observation of a decision of the plan phase: the members before training."""
        env, episode = self.env, self.episode
        unknown_E = np.full(env.members, np.nan)
        metrics = StepMetrics(
            unknown_E,
            episode.loss_TE[0],
            episode.accuracy_TE[0],
            env.signal_tracker.current(),
            unknown_E,
            self._plan_gradients_ES,
        )
        return self.observer.observe(0, metrics, slot)

    def _gradients(self, measured_ES: Doubles | None) -> Floats:
        """Activation gradients for an observation; NaN if they were not measured."""
        shape = self.env.model.lifecycle.stage_ES.shape
        values = np.full(shape, np.nan) if measured_ES is None else measured_ES
        return values.astype(np.float32)

    # ---- one step -------------------------------------------------------------------------

    def _step_env(
        self, client: PolicyProtocol[Any], cut: bool, listeners: Sequence[EngineListener] = ()
    ) -> tuple[StepRecord, Doubles]:
        """Run one step of all members; returns its record and the train accuracy `[E]`.

        `cut`: the rollout is truncated after this step.
        """
        observed, self._next_step = self._next_step or self._observe_step(), None
        env, phases = self.env, observed.phases
        signals, masks, verdicts = observed.signals, observed.masks, observed.verdicts
        with timed_phase(phases, StepPhase.ACT):
            decision, env.lstm_hidden = checked_decision(client, signals, masks, env.lstm_hidden)
        with timed_phase(phases, StepPhase.EXECUTE):
            result = execute_actions(
                env.model,
                decision.actions,
                signals,
                verdicts.rolled_back_E,
                dict(self.config.frozen_heads),
                truncated=cut,
                context=self.context if self.context.spec != FIXED else None,
            )
            done_E = np.where(result.outcome.executed, decision.actions.op, int(LifecycleOp.WAIT))
            self.episode.settle_stops(self.step + 1, done_E == LifecycleOp.STOP)
            self.context.settle_restarts(self.step, done_E == LifecycleOp.RESTART)
            env.settle_restarts(done_E == LifecycleOp.RESTART)
            env.governor.after_actions(
                self.step, done_E == LifecycleOp.FOSSILIZE, self.episode.score_TE[self.step + 1]
            )
            env.record_actions(decision.actions, result.outcome)
            env.reset_lstm_hidden(client, verdicts.rolled_back_E)
            self.slot_events.collect_changes()
        with timed_phase(phases, StepPhase.STORE):
            inputs = self.episode.reward_inputs(
                signals, decision.actions, result.outcome, verdicts, truncated=cut
            )
            rewards = checked_rewards(client, inputs)
            env.epoch_rewards += rewards.total
        record = StepRecord(
            signals=signals,
            masks=masks,
            decision=decision,
            result=result,
            reward_inputs=inputs,
            rewards=rewards,
            counterfactuals=observed.counterfactuals,
            governor=verdicts,
            rows=observed.rows,
            phases=tuple(PhaseTime(phase, seconds) for phase, seconds in phases.items() if seconds),
        )
        with timed_phase(phases, StepPhase.LISTEN):
            self._notify(record, listeners)
        for phase, seconds in phases.items():
            self.phase_seconds[phase] += seconds
        return record, observed.train_accuracy_E

    def _observe_step(self) -> ObservedStep:
        """Train, validate, score, evaluate gates, govern, observe: a step until the policy acts."""
        env, phases = self.env, dict.fromkeys(StepPhase, 0.0)
        with timed_phase(phases, StepPhase.TRAIN), self.timer.span("train"):
            shadow_rows = self._train_pass()
            gradients_ES = self.trainer.activation_gradients() if self._measures_gradients else None
        with timed_phase(phases, StepPhase.VALIDATION), self.timer.span("validation"):
            plan, scored = self._validate()
        with timed_phase(phases, StepPhase.TRANSFER_1):
            measured = fetch_step(
                env.train, env.val, scored, finite_members(env.model), gradients_ES
            )
        with timed_phase(phases, StepPhase.ANALYSIS):
            verdicts, counterfactuals = self._review(measured, plan)
            signals, masks = self._observe(measured, verdicts)
        rows = plan.table.rows + shadow_rows
        return ObservedStep(
            signals, masks, verdicts, counterfactuals, measured.train.accuracy_E, rows, phases
        )

    def _train_pass(self) -> int:
        """Train all members on the batches of the step; returns the number of shadow rows."""
        self.env.model.begin_step()
        self.trainer.run(self.step)  # first: the rest overlaps with the device's work
        slots = self.slot_events.collect_changes()
        if self.context.clock is None:
            self.episode.add_training_flops(slots)
        return int((slots.stage_ES == SeedStage.TRAINING).sum())

    def _validate(self) -> tuple[CoalitionPlan, RowTotals]:
        """Validate members and coalitions on `val_control`, and members on `val_score`."""
        population, config = self.env.model, self.config
        plan = plan_coalitions(
            population, config.counterfactuals, config.seed, self.round, self.step
        )
        members_only = plan.table.rows == population.members
        with self.autocast():
            table = None if members_only else plan.table
            self.env.val = self.validator.run_control(population, table)
            return plan, self.validator.run_score(population)

    def _review(
        self, measured: StepMeasurements, plan: CoalitionPlan
    ) -> tuple[GovernorVerdicts, Counterfactuals]:
        """Score the step, evaluate the gates, and let the governor review the members."""
        env, train = self.env, self.episode.with_idle_members(self.step, measured.train)
        loss_E, accuracy_E = self._loss_and_accuracy(measured.control)
        validated = (loss_E, accuracy_E), self._loss_and_accuracy(measured.score)
        score_E = self.episode.record_step(
            self.step, env.model.slot_reports(), *validated, train.loss_E
        )
        healthy_E = healthy_members(
            env.model, train.host_grad_norm_E, train.grad_norm_ES, measured.finite_E
        )
        counterfactuals = self._evaluate_gates(measured.control, train, plan)
        verdicts = env.governor.review(
            self.step,
            train.loss_E.astype(np.float32),
            loss_E.astype(np.float32),
            accuracy_E.astype(np.float32),
            healthy_E,
            score_E,
        )
        self.slot_events.collect_changes(PruneCause.ROLLBACK)
        self.slot_events.collect_gate_results(env.model.lifecycle.signals)
        self.observer.update_contributions(counterfactuals)
        return verdicts, counterfactuals

    def _evaluate_gates(
        self, rows: RowMeasurements, train: TrainMeasurements, plan: CoalitionPlan
    ) -> Counterfactuals:
        """Attribute contributions to seeds, evaluate the gates and end the population's step."""
        population = self.env.model
        counterfactuals = attribute(
            plan,
            rows.merit_sum_R,
            rows.gain_sum_R,
            rows.gain_square_sum_R,
            rows.samples,
            rows.loss_sum_R,
        )
        gates = gate_signals(
            population.lifecycle.stage_ES,
            population.trainer.training(),
            train.loss_E,
            train.shadow_loss_ES,
            train.grad_norm_ES,
            counterfactuals.contribution_ES,
            counterfactuals.contribution_se_ES,
        )
        population.end_step(gates)
        self.slot_events.collect_changes(counted=True)
        return counterfactuals

    def _loss_and_accuracy(self, rows: RowMeasurements) -> tuple[Doubles, Doubles]:
        """Loss and accuracy `[E]` of the members."""
        members = self.env.members
        return rows.loss_R[:members], self.validator.accuracy(rows)[:members]

    def _observe(
        self, measured: StepMeasurements, verdicts: GovernorVerdicts
    ) -> tuple[TrainingSignals, ActionMasks]:
        """Build the policy's observation and action masks."""
        env, life = self.env, self.env.model.lifecycle
        train = self.episode.with_idle_members(self.step, measured.train)
        values = (train.loss_E, *self._loss_and_accuracy(measured.control))
        train32_E, loss32_E, accuracy32_E = (value.astype(np.float32) for value in values)
        tracked = env.signal_tracker.update(train32_E, loss32_E, accuracy32_E)
        env.signal_tracker.reset(verdicts.rolled_back_E)
        gradients_ES = self._gradients(measured.activation_grad_ES)
        metrics = StepMetrics(*values, tracked, train.accuracy_E, gradients_ES)
        signals = self.observer.observe(self.step, metrics)
        self.context.update_restartable(self.step)
        legal_ESO = life.legal_ops()
        if self.step == self.spec.episode_length - 1:  # the effect would never be scored
            legal_ESO[..., LifecycleOp.WAIT + 1 :] = False
        return signals, build_masks(legal_ESO, life.fits_ESK(), dict(self.config.frozen_heads))

    def _notify(self, record: StepRecord, listeners: Sequence[EngineListener]) -> None:
        self.slot_events.flush(
            [make_telemetry_callback(it, self.round, self.step) for it in listeners]
        )
        for listener in listeners:
            listener.on_step(record)

    # ---- results and state ----------------------------------------------------------------

    def test(self) -> Doubles:
        """Return the accuracy `[E]` on the task's test data; for the final report only."""
        with self.computing(), autocast(self.device, self.precision):
            totals = self.validator.run_test(self.env.model)
        (rows,) = fetch_rows(totals)
        return self.validator.accuracy(rows)

    def state_dict(self) -> dict[str, int | str]:
        """Return the state needed to resume between episodes, where members start fresh."""
        if self.step:
            raise EsperError(
                f"engine state in step {self.step} of {self.spec.episode_length}: the engine "
                f"cannot be saved within an episode; finish it first"
            )
        return {
            "version": STATE_VERSION,
            "task": self.spec.name,
            "members": self.config.members,
            "seed": self.config.seed,
            "episode_length": self.spec.episode_length,
            "round": self.round,
        }

    def load_state_dict(self, state: dict[str, int | str]) -> None:
        """Resume from `state_dict()`; raises if task, members, seed or episode length differ."""
        require_same_run(self.state_dict(), state)
        self.round = int(state["round"])
