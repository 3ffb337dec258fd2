"""How a population runs: train, validate, observe, act, pay; step after step, all members at once.

    engine = VectorizedEngine(get_task_spec("digits_impaired"), EngineConfig(members=8))
    rollout = engine.run_rollout(client)

The engine drives whatever satisfies `PolicyProtocol` and tells an `EngineListener` what happened;
it knows neither who learns nor what is recorded.

Shape letters: E members, S slots, R rows, T steps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

import numpy as np

from esper.device.graphs import GraphCache, GraphReport
from esper.device.streams import new_stream, on_stream
from esper.kasmina.gates import gate_signals
from esper.kasmina.snapshot import finite_members
from esper.leyline.actions import LifecycleOp
from esper.leyline.arrays import Doubles
from esper.leyline.errors import EsperError
from esper.leyline.masks import ActionMasks
from esper.leyline.payloads import EpisodeOutcome, PhaseTime, PruneCause, StepPhase
from esper.leyline.protocols import EngineListener, PolicyProtocol
from esper.leyline.records import Rollout, StepRecord
from esper.leyline.signals import Counterfactuals, GovernorVerdicts, TrainingSignals
from esper.leyline.stages import SeedStage
from esper.tamiyo.masks import build_masks
from esper.tasks.scoring import suffix_macs
from esper.tasks.spec import TaskData, TaskSpec
from esper.tolaria.action_execution import execute_actions
from esper.tolaria.batch_ops import RowTotals, process_train_batch
from esper.tolaria.counterfactual_eval import CoalitionPlan, attribute, plan_coalitions
from esper.tolaria.engine_config import EngineConfig
from esper.tolaria.env_factory import create_env_state, make_telemetry_callback, reset_env_state
from esper.tolaria.episode import EpisodeBook
from esper.tolaria.governor import sound_members
from esper.tolaria.measurements import (
    RowMeasurements,
    StepMeasurements,
    fetch_rows,
    fetch_step,
)
from esper.tolaria.memory_need import require_memory
from esper.tolaria.observation import Measured, Observer, Standing
from esper.tolaria.policy_checks import checked_decision, checked_rewards
from esper.tolaria.runtime import (
    CUDATimer,
    autocast,
    choose_precision,
    explain_out_of_memory,
    parse_device,
    set_profile,
)
from esper.tolaria.setup import (
    batch_buffers,
    default_val_batch,
    settle_executor,
    settle_graphs,
    train_batches,
)
from esper.tolaria.slot_events import SlotWatch
from esper.tolaria.validation import Validator

STATE_VERSION: Final = 1


@dataclass(frozen=True, slots=True, eq=False)
class _Observation:
    """A step up to where the policy acts."""

    signals: TrainingSignals
    masks: ActionMasks
    verdicts: GovernorVerdicts
    counterfactuals: Counterfactuals
    train_accuracy_E: Doubles
    rows: int
    """Rows computed: validation rows and shadow rows of training."""
    phases: dict[StepPhase, float]
    """Host seconds so far; the rest of the step adds its own."""


class VectorizedEngine:
    """Runs E members of a task under a policy."""

    def __init__(
        self,
        spec: TaskSpec,
        config: EngineConfig | None = None,
        listener: EngineListener | None = None,
        data: TaskData | None = None,
    ) -> None:
        """`listener` hears every rollout; `data`: the task's, where they are loaded already."""
        self.spec = spec
        self.config = config or EngineConfig()
        self._listeners = () if listener is None else (listener,)
        self.device = parse_device(self.config.device)
        self.precision = choose_precision(self.config.precision, self.device)
        self.round = 0
        """Index of the current episode, or of the next one between episodes."""
        self.step = 0
        """Steps done of the current episode; 0 between episodes."""
        self._ahead: _Observation | None = None
        """The next step, observed already because the last rollout was cut before it."""
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
        )
        population, device, precision = self.env.model, self.device, self.precision
        self.batches = train_batches(spec, data, config, population, device, precision)
        self.buffers = batch_buffers(self.batches, device)
        batch_size = config.val_batch_size or default_val_batch(config.members, device)
        limit = config.counterfactuals.images
        self.validator = Validator(spec, data, device, batch_size, limit)
        choice = settle_executor(
            spec, self.env, self.batches, self.buffers, config, device, precision
        )
        name = choice.executor.name
        graphs, self._no_graphs = settle_graphs(config.graphs, device, name)
        self.use_graphs(graphs)
        suffix_S = suffix_macs(population, self.validator.control.sample)
        self.book = EpisodeBook(spec, population, suffix_S)
        self.observer = Observer(population, spec.episode_length)
        life, frozen = population.lifecycle, dict(config.frozen_heads)
        build_masks(life.legal_ops(), life.fits_SK, frozen)  # bad ones are refused before a run
        self.watch = SlotWatch(population)

    def use_graphs(self, graphs: GraphCache | None) -> None:
        """Capture train and validation batches there from now on; None: run them eagerly."""
        self.graphs = self.validator.graphs = graphs
        if graphs is not None and self.buffers is not None:
            graphs.register_static(*self.buffers)

    def graph_report(self) -> GraphReport:
        """Whether batches are replayed, why, and how often."""
        if self.graphs is None:
            return GraphReport(False, self._no_graphs or "none were given")
        return self.graphs.report()

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        """The precision members are computed in."""
        return autocast(self.device, self.precision, cached=self.graphs is None)

    # ---- rounds ---------------------------------------------------------------------------

    def train(self, client: PolicyProtocol[Any], rounds: int) -> list[Rollout[Any]]:
        """Rollouts and updates, one after the other: the bare loop."""
        history = []
        for _ in range(rounds):
            rollout = self.run_rollout(client)
            client.update(rollout)
            history.append(rollout)
        return history

    def run_rollout(
        self, client: PolicyProtocol[Any], listener: EngineListener | None = None
    ) -> Rollout[Any]:
        """One episode of all members, or the next part of one where rollouts are shorter.

        `listener` hears this rollout, after the engine's own. The return of a rollout that is cut
        is bootstrapped with the value of what `act` would see next. So the next step is trained
        and observed here already, and the next rollout starts with its `act`.
        """
        start = perf_counter()
        device_seconds = sum(self.timer.seconds.values())
        listeners = self._listeners if listener is None else (*self._listeners, listener)
        set_profile(self.config.profile, self.device)
        length = self.spec.episode_length
        first = self.step
        last = min(length, first + (self.config.rollout_steps or length))
        try:
            with self.computing():
                if self.step == 0:
                    self.begin_episode(client)
                for each in listeners:
                    each.on_round_start(self.round, self.env.members)
                while self.step < last:
                    cut = self.step + 1 == last < length
                    record, train_accuracy_E = self._step_env(client, cut, listeners)
                    self.step += 1
                outcome = self._outcome()
                if last < length:
                    self._ahead = self._observe_step()
        except BaseException:
            self.step = 0  # half a step cannot be continued: the episode starts over
            raise
        device_seconds = sum(self.timer.collect().values()) - device_seconds
        ahead, result = self._ahead, record.result
        rollout = Rollout(
            round_index=self.round,
            steps=last - first,
            ends_episode=ahead is None,
            outcome=outcome,
            truncated_bootstrap_targets=result.truncated_bootstrap_targets,
            final_signals=result.post_action_signals if ahead is None else ahead.signals,
            final_masks=result.post_action_masks if ahead is None else ahead.masks,
            final_state=self.env.lstm_hidden,
            train_accuracy_E=train_accuracy_E,
            seconds=perf_counter() - start,
            device_seconds=device_seconds,
        )
        if self.step == length:
            self.round, self.step = self.round + 1, 0
        for each in listeners:
            each.on_round_end(rollout)
        return rollout

    def step_members(
        self, client: PolicyProtocol[Any], listener: EngineListener | None = None
    ) -> StepRecord:
        """One step of an episode that `begin_episode` began, for callers that time single steps."""
        with self.computing():
            record, _ = self._step_env(client, False, () if listener is None else (listener,))
        self.step += 1
        return record

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Queue work on the engine's stream; a failed allocation becomes one clear line."""
        members, batch_size = self.config.members, self.spec.batch_size
        with explain_out_of_memory(self.device, members, batch_size), on_stream(self.env.stream):
            yield

    def _outcome(self) -> EpisodeOutcome:
        """The state of the members after the last step."""
        env = self.env
        life, rollbacks_E = env.model.lifecycle, env.governor.rollbacks_E
        return self.book.outcome(env.epoch_rewards, env.successes, rollbacks_E, life)

    def begin_episode(self, client: PolicyProtocol[Any]) -> None:
        """Reset members to fresh hosts and score them untrained: the first reward's baseline.

        `run_rollout` calls it; a benchmark may, to put seeds in place before it times steps.
        """
        population, self._ahead = self.env.model, None
        reset_env_state(self.env, self.round, client)
        self.batches.reset(self.round)
        self.observer.reset()
        self.watch.reset()
        slots = population.slot_reports()
        self.book.begin(slots)
        with self.autocast():
            control = self.validator.run_control(population, None)
            scored = self.validator.run_score(population)
        control_rows, score_rows = fetch_rows(control, scored)
        judged = self._loss_and_accuracy(control_rows), self._loss_and_accuracy(score_rows)
        self.env.governor.reset(self.book.note(-1, slots, *judged))

    # ---- one step -------------------------------------------------------------------------

    def _step_env(
        self, client: PolicyProtocol[Any], cut: bool, listeners: Sequence[EngineListener] = ()
    ) -> tuple[StepRecord, Doubles]:
        """One step of all members, and their train accuracy `[E]`; `cut`: the rollout ends here."""
        seen, self._ahead = self._ahead or self._observe_step(), None
        env, phases = self.env, seen.phases
        signals, masks, verdicts = seen.signals, seen.masks, seen.verdicts
        with _clock(phases, StepPhase.ACT):
            decision, env.lstm_hidden = checked_decision(client, signals, masks, env.lstm_hidden)
        with _clock(phases, StepPhase.EXECUTE):
            result = execute_actions(
                env.model,
                decision.actions,
                signals,
                verdicts.rolled_back_E,
                dict(self.config.frozen_heads),
                truncated=cut,
            )
            fossilized_E = (decision.actions.op == LifecycleOp.FOSSILIZE) & result.outcome.executed
            env.governor.after_actions(self.step, fossilized_E, self.book.score_TE[self.step + 1])
            env.note_actions(decision.actions, result.outcome)
            env.reset_lstm_hidden(client, verdicts.rolled_back_E)
            self.watch.look()
        with _clock(phases, StepPhase.STORE):
            inputs = self.book.reward_inputs(
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
            counterfactuals=seen.counterfactuals,
            governor=verdicts,
            rows=seen.rows,
            phases=tuple(PhaseTime(phase, seconds) for phase, seconds in phases.items() if seconds),
        )
        with _clock(phases, StepPhase.LISTEN):
            self._notify(record, listeners)
        for phase, seconds in phases.items():
            self.phase_seconds[phase] += seconds
        return record, seen.train_accuracy_E

    def _observe_step(self) -> _Observation:
        """Train, validate, review: all of the next step up to where the policy acts."""
        env, phases = self.env, dict.fromkeys(StepPhase, 0.0)
        with _clock(phases, StepPhase.TRAIN), self.timer.span("train"):
            shadow_rows = self._train_pass()
        with _clock(phases, StepPhase.VALIDATION), self.timer.span("validation"):
            plan, scored = self._validate()
        with _clock(phases, StepPhase.TRANSFER_1):
            measured = fetch_step(env.train, env.val, scored, finite_members(env.model))
        with _clock(phases, StepPhase.ANALYSIS):
            verdicts, found = self._review(measured, plan)
            signals, masks = self._observe(measured, verdicts)
        rows = plan.table.rows + shadow_rows
        return _Observation(
            signals, masks, verdicts, found, measured.train.accuracy_E, rows, phases
        )

    def _train_pass(self) -> int:
        """All train batches of the step, every member in each; the number of shadow rows."""
        env, population = self.env, self.env.model
        population.begin_step()
        self._set_rates()
        slots = self.watch.look()
        self.book.count_training(slots)
        env.train.zero_()
        for x_EB, target_EB in self.batches.step(self.step, self.buffers):
            with self.autocast():
                process_train_batch(population, x_EB, target_EB, env.train, env.scaler, self.graphs)
        return int((slots.stage_ES == SeedStage.TRAINING).sum())

    def _set_rates(self) -> None:
        """Learning rates of this step; uploaded only where the schedule changes them."""
        optim, length = self.spec.optim, self.spec.episode_length
        rates = optim.rates_at(self.step, length)
        if self.step == 0 or rates != optim.rates_at(self.step - 1, length):
            self.env.model.set_rates(*rates)

    def _validate(self) -> tuple[CoalitionPlan, RowTotals]:
        """Members and coalitions of their seeds on `val_control`, members on `val_score`."""
        population, config = self.env.model, self.config
        plan = plan_coalitions(
            population, config.counterfactuals, config.seed, self.round, self.step
        )
        alone = plan.table.rows == population.members
        with self.autocast():
            self.env.val = self.validator.run_control(population, None if alone else plan.table)
            return plan, self.validator.run_score(population)

    def _review(
        self, measured: StepMeasurements, plan: CoalitionPlan
    ) -> tuple[GovernorVerdicts, Counterfactuals]:
        """Score, gates, governor: what the measurements mean for members and their seeds."""
        env, train = self.env, measured.train
        loss_E, accuracy_E = self._loss_and_accuracy(measured.control)
        judged = (loss_E, accuracy_E), self._loss_and_accuracy(measured.score)
        score_E = self.book.note(self.step, env.model.slot_reports(), *judged, train.loss_E)
        sound_E = sound_members(
            env.model, train.host_grad_norm_E, train.grad_norm_ES, measured.finite_E
        )
        found = self._pass_gates(measured, plan)
        verdicts = env.governor.review(
            self.step,
            train.loss_E.astype(np.float32),
            loss_E.astype(np.float32),
            accuracy_E.astype(np.float32),
            sound_E,
            score_E,
        )
        self.watch.look(PruneCause.ROLLBACK)
        self.watch.judge(env.model.lifecycle.signals)
        self.observer.note(found)
        return verdicts, found

    def _pass_gates(self, measured: StepMeasurements, plan: CoalitionPlan) -> Counterfactuals:
        """Attribute contributions to seeds; advance what passes its gate, and count the step."""
        population, rows, train = self.env.model, measured.control, measured.train
        found = attribute(
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
            found.contribution_ES,
            found.contribution_se_ES,
        )
        population.end_step(gates)
        self.watch.look(counted=True)
        return found

    def _loss_and_accuracy(self, rows: RowMeasurements) -> tuple[Doubles, Doubles]:
        """(loss, accuracy) `[E]` of the members with all their seeds."""
        members = self.env.members
        return rows.loss_R[:members], self.validator.accuracy(rows)[:members]

    def _observe(
        self, measured: StepMeasurements, verdicts: GovernorVerdicts
    ) -> tuple[TrainingSignals, ActionMasks]:
        """What the policy sees, and its action masks."""
        env, life = self.env, self.env.model.lifecycle
        values = (measured.train.loss_E, *self._loss_and_accuracy(measured.control))
        train32_E, loss32_E, accuracy32_E = (value.astype(np.float32) for value in values)
        tracked = env.signal_tracker.update(train32_E, loss32_E, accuracy32_E)
        env.signal_tracker.reset(verdicts.rolled_back_E)
        standing = Standing(
            env.last_action,
            env.last_outcome,
            env.governor.strikes_E.copy(),
            env.governor.rollbacks_E.copy(),
            env.governor.steps_since_snapshot(self.step),
        )
        signals = self.observer.observe(self.step, Measured(*values, tracked), standing)
        legal_ESO = life.legal_ops()
        if self.step == self.spec.episode_length - 1:  # the effect would never be scored
            legal_ESO[..., LifecycleOp.WAIT + 1 :] = False
        return signals, build_masks(legal_ESO, life.fits_SK, dict(self.config.frozen_heads))

    def _notify(self, record: StepRecord, listeners: Sequence[EngineListener]) -> None:
        self.watch.flush([make_telemetry_callback(it, self.round, self.step) for it in listeners])
        for listener in listeners:
            listener.on_step(record)

    # ---- results and state ----------------------------------------------------------------

    def test(self) -> Doubles:
        """Accuracy `[E]` of the members on the task's test data: for the last line of a report."""
        with self.computing(), autocast(self.device, self.precision):
            totals = self.validator.run_test(self.env.model)
        (rows,) = fetch_rows(totals)
        return self.validator.accuracy(rows)

    def state_dict(self) -> dict[str, int | str]:
        """All it takes to go on between two episodes: members start afresh, from named streams."""
        if self.step:
            raise EsperError(
                f"engine state in step {self.step} of {self.spec.episode_length}: an episode is "
                f"not saved in the middle; finish it first"
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
        """Go on where `state` was taken; another task, size or seed is refused by name."""
        mine = self.state_dict()
        if set(state) != set(mine):
            raise EsperError(f"engine state has {sorted(state)}, expected {sorted(mine)}")
        for name, value in mine.items():
            if name != "round" and state[name] != value:
                raise EsperError(
                    f"engine state: {name} is {state[name]!r} there and {value!r} here; "
                    f"resume with the same {name}"
                )
        self.round = int(state["round"])


@contextlib.contextmanager
def _clock(phases: dict[StepPhase, float], phase: StepPhase) -> Iterator[None]:
    start = perf_counter()
    yield
    phases[phase] += perf_counter() - start
