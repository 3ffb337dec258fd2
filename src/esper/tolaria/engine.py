"""How a population runs: train, validate, observe, act, pay; step after step, all members at once.

    engine = VectorizedEngine(get_task_spec("digits_impaired"), EngineConfig(members=8))
    rollout = engine.run_rollout(client)

The engine drives whatever satisfies `PolicyProtocol` and tells an `EngineListener` what happened;
it knows neither who learns nor what is recorded.

Shape letters: E members, S slots, R rows, T steps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

import numpy as np
import torch

from esper.device.graphs import GraphCache, GraphReport
from esper.device.transfer import fetch
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
from esper.tolaria.batch_ops import process_train_batch
from esper.tolaria.counterfactual_eval import CoalitionPlan, attribute, plan_coalitions
from esper.tolaria.engine_config import EngineConfig
from esper.tolaria.env_factory import create_env_state, make_telemetry_callback, reset_env_state
from esper.tolaria.episode import EpisodeBook
from esper.tolaria.governor import sound_members
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
from esper.tolaria.validation import (
    RowMeasurements,
    Validator,
    measured_rows,
    tensors_of,
)

STATE_VERSION: Final = 1


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """What a step brought before the policy acts in it."""

    signals: TrainingSignals
    masks: ActionMasks
    verdicts: GovernorVerdicts
    counterfactuals: Counterfactuals
    rows: int
    phases: dict[StepPhase, float]
    """Host seconds so far; what follows is added."""


class VectorizedEngine:
    """Runs E members of a task under a policy."""

    def __init__(
        self,
        spec: TaskSpec,
        config: EngineConfig | None = None,
        listener: EngineListener | None = None,
        data: TaskData | None = None,
    ) -> None:
        """`data`: the task's, where the caller has loaded it already."""
        self.spec = spec
        self.config = config or EngineConfig()
        self.listener = listener
        self.device = parse_device(self.config.device)
        self.precision = choose_precision(self.config.precision, self.device)
        self.round = 0
        """Episodes begun before the next one."""
        self.step = 0
        """Steps done of the episode under way; 0 between episodes."""
        self._ahead: _Seen | None = None
        """The next step as far as it was computed when a rollout was cut."""
        self.timer = CUDATimer(self.device)
        """Device time of training and validation, for benchmarks."""
        self.phase_seconds = dict.fromkeys(StepPhase, 0.0)
        """Host wall time of each phase so far."""
        set_profile(self.config.profile, self.device)
        with self._memory_guard():
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
        )
        population, device, precision = self.env.model, self.device, self.precision
        self.batches = train_batches(spec, data, config, population, device, precision)
        self._buffers = batch_buffers(self.batches, device)
        batch_size = config.val_batch_size or default_val_batch(config.members, device)
        limit = config.counterfactuals.images
        self.validator = Validator(spec, data, device, batch_size, limit)
        choice = settle_executor(
            spec, self.env, self.batches, self._buffers, config, device, precision
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
        if graphs is not None and self._buffers is not None:
            graphs.register_static(*self._buffers)

    def graph_report(self) -> GraphReport:
        """Whether batches are replayed, why, and how often."""
        if self.graphs is None:
            return GraphReport(False, self._no_graphs or "none were given")
        return self.graphs.report()

    def _precision(self) -> contextlib.AbstractContextManager[None]:
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

    def run_rollout(self, client: PolicyProtocol[Any]) -> Rollout[Any]:
        """One episode of all members, or the next part of one where rollouts are shorter.

        A return that is cut goes on with the value of what `act` would see next. So the next step
        is trained and measured here already, and the next rollout begins with its `act`.
        """
        start = perf_counter()
        set_profile(self.config.profile, self.device)
        length = self.spec.episode_length
        begun = self.step
        last = min(length, begun + (self.config.rollout_steps or length))
        try:
            with self._memory_guard(), self._stream():
                if self.step == 0:
                    self.begin_episode(client)
                if self.listener is not None:
                    self.listener.on_round_start(self.round, self.env.members)
                while self.step < last:
                    record = self._step_env(client, cut=self.step + 1 == last < length)
                    self.step += 1
                outcome = self._outcome()
                if last < length:
                    self._ahead = self._see()
        except BaseException:
            self.step = 0  # half a step cannot be gone on from: the episode begins again
            raise
        self.timer.collect()
        rollout = self._rollout(record, outcome, last - begun, perf_counter() - start)
        if self.step == length:
            self.round, self.step = self.round + 1, 0
        if self.listener is not None:
            self.listener.on_round_end(rollout)
        return rollout

    def _outcome(self) -> EpisodeOutcome:
        """How the members stand after the step that was done last."""
        env = self.env
        life, rollbacks_E = env.model.lifecycle, env.governor.rollbacks_E
        return self.book.outcome(env.epoch_rewards, env.successes, rollbacks_E, life)

    def _rollout(
        self, record: StepRecord, outcome: EpisodeOutcome, steps: int, seconds: float
    ) -> Rollout[Any]:
        result, ahead = record.result, self._ahead
        return Rollout(
            round_index=self.round,
            steps=steps,
            ends_episode=ahead is None,
            outcome=outcome,
            truncated_bootstrap_targets=result.truncated_bootstrap_targets,
            final_signals=result.post_action_signals if ahead is None else ahead.signals,
            final_masks=result.post_action_masks if ahead is None else ahead.masks,
            final_state=self.env.lstm_hidden,
            seconds=seconds,
        )

    def begin_episode(self, client: PolicyProtocol[Any]) -> None:
        """Fresh hosts, scored before they train: where the first reward starts from.

        `run_rollout` calls it; a benchmark may, to put seeds in place before it times steps.
        """
        population, self._ahead = self.env.model, None
        reset_env_state(self.env, self.round, client)
        self.batches.reset(self.round)
        self.observer.reset()
        self.watch.reset()
        slots = population.slot_reports()
        self.book.begin(slots)
        self._rates = (-1.0, -1.0)
        with self._precision():
            control = self.validator.run_control(population, None)
            scored = self.validator.run_score(population)
        host = fetch(tensors_of(control, "control") | tensors_of(scored, "score"))
        rows = measured_rows(host, "control", control.samples)
        score_rows = measured_rows(host, "score", scored.samples)
        first_E = self.book.note(-1, slots, self._judged(rows), self._judged(score_rows))
        self.env.governor.reset(first_E)

    # ---- one step -------------------------------------------------------------------------

    def _step_env(self, client: PolicyProtocol[Any], cut: bool) -> StepRecord:
        """One step of all members, in the order of the design; `cut`: the rollout ends with it."""
        seen, self._ahead = self._ahead or self._see(), None
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
            self._tell(record)
        for phase, seconds in phases.items():
            self.phase_seconds[phase] += seconds
        return record

    def _see(self) -> _Seen:
        """Train and measure: all of the next step up to where the policy acts."""
        env, phases = self.env, dict.fromkeys(StepPhase, 0.0)
        with _clock(phases, StepPhase.TRAIN), self.timer.span("train"):
            self._train_pass()
        with _clock(phases, StepPhase.VALIDATION), self.timer.span("validation"):
            plan = self._validate()
        with _clock(phases, StepPhase.TRANSFER_1):
            host = self._transfer()
        with _clock(phases, StepPhase.ANALYSIS):
            rows = measured_rows(host, "control", env.val.samples)
            verdicts, found = self._judge(host, rows, plan)
            signals, masks = self._observe(host, rows)
        computed = plan.table.rows + self._shadow_rows
        return _Seen(signals, masks, verdicts, found, computed, phases)

    def _train_pass(self) -> None:
        """Batches outermost, members inside."""
        env, population = self.env, self.env.model
        population.begin_step()
        rates = self.spec.optim.rates_at(self.step, self.spec.episode_length)
        if rates != self._rates:
            population.set_rates(*rates)
            self._rates = rates
        slots = self.watch.look()
        self._shadow_rows = int((slots.stage_ES == SeedStage.TRAINING).sum())
        self.book.count_training(slots)
        env.train.zero_()
        for x_EB, target_EB in self.batches.step(self.step, self._buffers):
            with self._precision():
                process_train_batch(population, x_EB, target_EB, env.train, env.scaler, self.graphs)

    def _validate(self) -> CoalitionPlan:
        """Members and coalitions of their seeds on `val_control`, members on `val_score`."""
        population, config = self.env.model, self.config
        plan = plan_coalitions(
            population, config.counterfactuals, config.seed, self.round, self.step
        )
        alone = plan.table.rows == population.members
        with self._precision():
            self.env.val = self.validator.run_control(population, None if alone else plan.table)
            self._scored = self.validator.run_score(population)
        return plan

    def _transfer(self) -> dict[str, Doubles]:
        """Everything the host needs to know of this step, in one copy."""
        train = self.env.train
        parts = {
            "train/loss_E": train.loss_E,
            "train/shadow_loss_ES": train.shadow_loss_ES,
            "train/host_grad_norm_E": train.host_grad_norm_E,
            "train/grad_norm_ES": train.grad_norm_ES,
        }
        parts |= tensors_of(self.env.val, "control") | tensors_of(self._scored, "score")
        parts["finite_E"] = finite_members(self.env.model)
        host = fetch(parts)
        for name in parts:
            if name.startswith("train/"):
                host[name] = host[name] / train.batches
        return host

    def _judge(
        self, host: dict[str, Doubles], rows: RowMeasurements, plan: CoalitionPlan
    ) -> tuple[GovernorVerdicts, Counterfactuals]:
        """Score, gates, governor: what the measurements mean for members and their seeds."""
        env, life = self.env, self.env.model.lifecycle
        loss_E, accuracy_E = self._judged(rows)
        score_rows = measured_rows(host, "score", self._scored.samples)
        train_loss_E = host["train/loss_E"]
        slots = env.model.slot_reports()
        judged = (loss_E, accuracy_E), self._judged(score_rows)
        score_E = self.book.note(self.step, slots, *judged, train_loss_E)
        sound_E = sound_members(
            env.model, host["train/host_grad_norm_E"], host["train/grad_norm_ES"], host["finite_E"]
        )
        found = self._pass_gates(host, plan, rows.samples)
        verdicts = env.governor.review(
            self.step,
            train_loss_E.astype(np.float32),
            loss_E.astype(np.float32),
            accuracy_E.astype(np.float32),
            sound_E,
            score_E,
        )
        self.watch.look(PruneCause.ROLLBACK)
        self.watch.judge(life.signals)
        self.observer.note(found)
        self._verdicts = verdicts
        return verdicts, found

    def _pass_gates(
        self, host: dict[str, Doubles], plan: CoalitionPlan, samples: int
    ) -> Counterfactuals:
        """What seeds are worth; what may move on moves on, and the step is counted."""
        population = self.env.model
        found = attribute(
            plan,
            host["control/merit_R"],
            host["control/gain_R"],
            host["control/gain_square_R"],
            samples,
            host["control/loss_R"],
        )
        gates = gate_signals(
            population.lifecycle.stage_ES,
            population.trainer.training(),
            host["train/loss_E"],
            host["train/shadow_loss_ES"],
            host["train/grad_norm_ES"],
            found.contribution_ES,
            found.contribution_se_ES,
        )
        population.end_step(gates)
        self.watch.look(counted=True)
        return found

    def _judged(self, rows: RowMeasurements) -> tuple[Doubles, Doubles]:
        """(loss, accuracy) of the members as they stand."""
        members = self.env.members
        return rows.loss_R[:members], self.validator.accuracy(rows)[:members]

    def _observe(
        self, host: dict[str, Doubles], rows: RowMeasurements
    ) -> tuple[TrainingSignals, ActionMasks]:
        """What the policy sees and may do."""
        env, life = self.env, self.env.model.lifecycle
        loss_E, accuracy_E = self._judged(rows)
        values = (host["train/loss_E"], loss_E, accuracy_E)
        train32_E, loss32_E, accuracy32_E = (value.astype(np.float32) for value in values)
        tracked = env.signal_tracker.update(train32_E, loss32_E, accuracy32_E)
        env.signal_tracker.reset(self._verdicts.rolled_back_E)
        standing = Standing(
            env.last_action,
            env.last_outcome,
            env.governor.strikes_E.copy(),
            env.governor.rollbacks_E.copy(),
            env.governor.steps_since_snapshot(self.step),
        )
        signals = self.observer.observe(self.step, Measured(*values, tracked), standing)
        legal_ESO = life.legal_ops()
        if self.step == self.spec.episode_length - 1:  # what came now would never be scored
            legal_ESO[..., LifecycleOp.WAIT + 1 :] = False
        return signals, build_masks(legal_ESO, life.fits_SK, dict(self.config.frozen_heads))

    def _tell(self, record: StepRecord) -> None:
        if self.listener is None:
            self.watch.tell(_nobody)
            return
        self.watch.tell(make_telemetry_callback(self.listener, self.round, self.step))
        self.listener.on_step(record)

    # ---- results and state ----------------------------------------------------------------

    def test(self) -> Doubles:
        """Accuracy `[E]` of the members on the task's test data: for the last line of a report."""
        with self._memory_guard(), autocast(self.device, self.precision):
            totals = self.validator.run_test(self.env.model)
        host = fetch(tensors_of(totals, "test"))
        return self.validator.accuracy(measured_rows(host, "test", totals.samples))

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
    def _memory_guard(self) -> Iterator[None]:
        with explain_out_of_memory(self.device, self.config.members, self.spec.batch_size):
            yield

    def _stream(self) -> contextlib.AbstractContextManager[Any]:
        stream = self.env.stream
        return contextlib.nullcontext() if stream is None else torch.cuda.stream(stream)


def _nobody(payload: object) -> None:
    """Where no one listens."""


@contextlib.contextmanager
def _clock(phases: dict[StepPhase, float], phase: StepPhase) -> Iterator[None]:
    start = perf_counter()
    yield
    phases[phase] += perf_counter() - start
