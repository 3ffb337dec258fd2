"""A scripted engine: made-up records of any size, drawn from a seed, told in order."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from esper.leyline import (
    ActionMasks,
    ActionOutcome,
    ActionSpec,
    EngineListener,
    LifecycleOp,
    PolicyDecision,
    RewardComponentsTelemetry,
    RewardInputs,
    Rollout,
    SeedStage,
    StepRecord,
    TrainingSignals,
)
from esper.leyline.actions import NO_SLOT, SLOT_OPS
from esper.leyline.payloads import (
    EpisodeOutcome,
    PhaseTime,
    SeedFossilized,
    SeedGateEvaluated,
    SeedGerminated,
    SeedPruned,
    SeedStageChanged,
    StepPhase,
)
from esper.leyline.records import PlanRecord
from esper.leyline.signals import Counterfactuals, GovernorVerdicts
from payload_support import build

SLOT_PAYLOADS = (SeedGerminated, SeedStageChanged, SeedGateEvaluated, SeedFossilized, SeedPruned)


@dataclass(frozen=True)
class Script:
    """A run of made-up numbers; equal scripts tell the same run."""

    seed: int = 0
    rounds: int = 2
    steps: int = 3
    members: int = 4
    slots: int = 2
    blueprints: int = 3
    nan_share: float = 0.0
    """Share of measured numbers that are NaN."""
    seconds: float = 6.0
    """Of each round."""
    plans: bool = False
    """Rounds begin with a plan phase: one decision per slot."""

    def rng(self, *place: int) -> np.random.Generator:
        return np.random.default_rng((self.seed, *place))

    def numbers(self, rng: np.random.Generator, *shape: int, dtype=np.float64) -> np.ndarray:
        values = rng.normal(size=shape)
        values[rng.random(shape) < self.nan_share] = np.nan
        return values.astype(dtype)

    def masks(self, rng: np.random.Generator) -> ActionMasks:
        e, s, k = self.members, self.slots, self.blueprints
        slot_EOS = rng.random((e, len(LifecycleOp), s)) < 0.4
        op_EO = np.array(slot_EOS.any(axis=2))
        op_EO[:, LifecycleOp.WAIT] = True

        def some(*shape: int) -> np.ndarray:
            mask = rng.random(shape) < 0.5
            mask[..., 0] = True
            return mask

        of_heads = (some(e, s, k), some(3), some(3), some(3), some(4), some(5))
        return ActionMasks(op_EO, slot_EOS, *of_heads)

    def actions(self, rng: np.random.Generator, masks: ActionMasks) -> ActionSpec:
        """Legal ones; WAIT and STOP mean a slot that does not exist."""
        op = [rng.choice(np.flatnonzero(row)) for row in masks.op_EO]
        slot = [
            rng.choice(np.flatnonzero(masks.slot_EOS[e, o])) if o in SLOT_OPS else 99
            for e, o in enumerate(op)
        ]
        zeros = np.zeros(self.members, dtype=np.int64)
        blueprint = rng.integers(0, self.blueprints, self.members)
        return ActionSpec(np.array(op), np.array(slot), blueprint, *(zeros.copy() for _ in "smtac"))

    def outcome(self, rng: np.random.Generator, actions: ActionSpec) -> ActionOutcome:
        waits = ~np.isin(actions.op, list(SLOT_OPS))
        before = rng.integers(0, len(SeedStage), self.members)
        after = rng.integers(0, len(SeedStage), self.members)
        return ActionOutcome(
            veto=np.where(waits, 0, rng.integers(0, 3, self.members)).astype(np.int8),
            target_slot=np.where(waits, -1, actions.slot),
            stage_before=np.where(waits, -1, before).astype(np.int8),
            stage_after=np.where(waits, -1, after).astype(np.int8),
        )

    def signals(self, rng: np.random.Generator, round_index: int, step: int) -> TrainingSignals:
        e, s = self.members, self.slots
        measured = {
            name: self.numbers(rng, e, dtype=np.float32)
            for name in ("train_loss_E", "val_loss_E", "val_accuracy_E", "params_over_host_E")
        }
        place = {"round_index": round_index, "step": step, "episode_length": self.steps}
        stands = {
            "stage_ES": rng.integers(0, len(SeedStage), (e, s)).astype(np.int8),
            "blueprint_ES": rng.integers(-1, self.blueprints, (e, s)),
        }
        place |= {"plan_slot": NO_SLOT}
        return build(TrainingSignals, measured | place | stands, E=e, S=s, K=self.blueprints)

    def rewards(self, rng: np.random.Generator, step: int) -> RewardComponentsTelemetry:
        """One part is paid at the last step alone."""
        names = ("score", "upkeep", "end") if step == self.steps - 1 else ("score", "upkeep")
        parts = {name: self.numbers(rng, self.members) for name in names}
        return RewardComponentsTelemetry.of(parts, self.members)

    def counterfactuals(self, rng: np.random.Generator) -> Counterfactuals:
        e, s = self.members, self.slots
        found = {
            name: rng.normal(size=(e, s)).astype(np.float32)
            for name in ("contribution_se_ES", "shapley_ES", "interaction_ES")
        }
        found["contribution_ES"] = rng.normal(size=(e, s)).astype(np.float32)
        found["contribution_ES"][rng.random((e, s)) < 0.4] = np.nan
        found["coalitions_E"] = rng.integers(1, 9, e)
        found["exact_E"] = rng.random(e) < 0.5
        found["gap_E"] = np.maximum(0, rng.integers(-3, 4, e)).astype(np.int8)
        return build(Counterfactuals, found, E=e, S=s)

    def governor(self, rng: np.random.Generator) -> GovernorVerdicts:
        e = self.members
        panic_E = np.maximum(0, rng.integers(-8, 5, e)).astype(np.int8)
        found = {
            "panic_E": panic_E,
            "loss_limit_E": rng.normal(size=e).astype(np.float32),
            "strikes_E": rng.integers(0, 4, e),
            "rolled_back_E": (panic_E > 0) & (rng.random(e) < 0.5),
            "snapshot_step_E": rng.integers(0, 9, e),
            "snapshot_score_E": rng.normal(size=e),
            "seeds_pruned_E": rng.integers(0, 3, e),
        }
        return build(GovernorVerdicts, found, E=e)

    def record(self, round_index: int, step: int) -> StepRecord:
        """One step of all members."""
        rng, e, s = self.rng(round_index, step), self.members, self.slots
        signals, masks = self.signals(rng, round_index, step), self.masks(rng)
        actions = self.actions(rng, masks)
        chances_EO = rng.dirichlet(np.ones(len(LifecycleOp)), e).astype(np.float32)
        decision = build(PolicyDecision, {"actions": actions, "op_probability_EO": chances_EO}, E=e)
        governor = self.governor(rng)
        scores = {"score_E": self.numbers(rng, e), "score_before_E": rng.normal(size=e)}
        paid_for = {
            "step": step,
            "episode_length": self.steps,
            "rolled_back_E": governor.rolled_back_E,
            "planning": False,
            "snapshot_score_E": governor.snapshot_score_E,
        }
        parts = {
            "signals": signals,
            "masks": masks,
            "decision": decision,
            "post_action_signals": signals,
            "post_action_masks": masks,
            "outcome": self.outcome(rng, actions),
            "reward_inputs": build(RewardInputs, scores | paid_for, E=e, S=s),
            "rewards": self.rewards(rng, step),
            "counterfactuals": self.counterfactuals(rng),
            "governor": governor,
            "rows": int(rng.integers(e, 3 * e)),
            "phases": tuple(
                PhaseTime(phase, float(rng.random()))
                for phase in (StepPhase.TRAIN, StepPhase.VALIDATION, StepPhase.ACT)
            ),
        }
        return build(StepRecord, parts, E=e, S=s, K=self.blueprints)

    def plan_record(self, round_index: int, slot: int) -> PlanRecord:
        """One decision of the plan phase."""
        rng = self.rng(round_index, 10**7 + slot)
        signals, masks = self.signals(rng, round_index, 0), self.masks(rng)
        actions = self.actions(rng, masks)
        chances_EO = rng.dirichlet(np.ones(len(LifecycleOp)), self.members).astype(np.float32)
        decided = {"actions": actions, "op_probability_EO": chances_EO}
        return PlanRecord(
            signals=replace(signals, plan_slot=slot),
            masks=masks,
            decision=build(PolicyDecision, decided, E=self.members),
            outcome=self.outcome(rng, actions),
            rewards=RewardComponentsTelemetry.of(
                {"score": self.numbers(rng, self.members)}, self.members
            ),
        )

    def rollout(self, round_index: int) -> Rollout[None]:
        """How a round ended."""
        rng, e, s = self.rng(round_index, 10**6), self.members, self.slots
        ended = {
            name: self.numbers(rng, e)
            for name in ("episode_return_E", "score_E", "accuracy_E", "loss_E")
        }
        for name in ("added_params_E", "added_macs_E", "rollbacks_E"):
            ended[name] = rng.integers(0, 50, e)
        ended["blueprint_ES"] = rng.integers(-1, self.blueprints, (e, s))
        reported = {
            "round_index": round_index,
            "steps": self.steps,
            "ends_episode": True,
            "outcome": build(EpisodeOutcome, ended, E=e, S=s),
            "final_signals": self.signals(rng, round_index, self.steps - 1),
            "final_masks": self.masks(rng),
            "final_state": None,
            "train_accuracy_E": rng.random(e),
            "steps_E": np.full(e, self.steps),
            "seconds": self.seconds,
            "device_seconds": 0.75 * self.seconds,
        }
        return build(Rollout, reported, E=e, S=s, K=self.blueprints)

    def play_round(self, listener: EngineListener, round_index: int) -> None:
        """Tell a round: each kind of slot event once a step (the last ones empty)."""
        listener.on_round_start(round_index, self.members)
        for slot in range(self.slots) if self.plans else ():
            listener.on_plan(self.plan_record(round_index, slot))  # type: ignore[attr-defined]
        for step in range(self.steps):
            for at, payload in enumerate(SLOT_PAYLOADS):
                rows = 0 if step == self.steps - 1 and at > 2 else 1
                listener.on_slot_events(round_index, step, build(payload, N=rows))
            listener.on_step(self.record(round_index, step))
        listener.on_round_end(self.rollout(round_index))

    def play(self, listener: EngineListener, after: Callable[[int], None] | None = None) -> None:
        """Tell the run; `after` is called with each round's index at its end."""
        for round_index in range(self.rounds):
            self.play_round(listener, round_index)
            if after is not None:
                after(round_index)
