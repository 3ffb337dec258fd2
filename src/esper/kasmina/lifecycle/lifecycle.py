"""Lifecycle of seeds: stages, legal operations and alpha ramps, as host arrays `[E, S]`.

A step calls `begin_step` before its train batches and `end_step` after its validation; actions
come after that. So a seed germinated at the end of step t starts training in step t+1, and a ramp
of n steps started at the end of step t is complete in step t+n.

Shape letters: E members, S slots, N (member, slot) pairs of a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from esper.kasmina.lifecycle.alpha import ramp_alpha
from esper.kasmina.lifecycle.arguments import IntLike, as_floats, as_integers, as_ints
from esper.kasmina.lifecycle.caps import Caps
from esper.kasmina.lifecycle.gates import GateConfig, fully_blended, ready_to_blend, worth_keeping
from esper.kasmina.lifecycle.legality import VetoTable
from esper.leyline.actions import (
    ALPHA_SPEEDS,
    ALPHA_TARGETS,
    TEMPOS,
    ActionSpace,
    AlphaCurve,
    AlphaMode,
    BlendStyle,
    LifecycleOp,
    VetoReason,
)
from esper.leyline.arrays import Bools, Codes, Floats, Ints
from esper.leyline.errors import EsperError, IllegalActionError
from esper.leyline.signals import NO_BLUEPRINT, GateSignals
from esper.leyline.stage_masks import IS_OCCUPIED, stage_mask
from esper.leyline.stages import (
    ADVANCE_TO,
    COOLDOWN_CHAIN,
    PRUNABLE_STAGES,
    STATIC_STAGES,
    TRANSITIONS,
    Gate,
    SeedStage,
)

_LEGAL_MOVE: Bools = np.array([[b in TRANSITIONS[a] for b in SeedStage] for a in SeedStage])
_PRUNABLE: Bools = stage_mask(PRUNABLE_STAGES)
_SIGNALS: tuple[str, ...] = tuple(f.name for f in fields(GateSignals))


@dataclass(frozen=True, slots=True)
class LifecycleConfig:
    """Lifecycle rules of seeds."""

    gates: GateConfig = field(default_factory=GateConfig)
    """Conditions of the gates."""
    auto_forward_g1: bool = True
    """Start training automatically, at the step after germination."""
    auto_forward_g2: bool = False
    """Start blending automatically as soon as G2 passes."""
    auto_forward_g3: bool = True
    """Enter HOLDING automatically once alpha is 1."""
    min_prune_age: int = 1
    """Minimum age in steps before a seed may be pruned."""
    seed_budget: int | None = None
    """Maximum number of seeds per member, permanent ones included; None: one per slot."""
    pruned_steps: int = 1
    """Steps a slot stays PRUNED."""
    embargoed_steps: int = 5
    """Steps a slot stays EMBARGOED."""
    resetting_steps: int = 1
    """Steps a slot stays RESETTING."""

    def __post_init__(self) -> None:
        if self.seed_budget is not None and self.seed_budget < 0:
            raise EsperError(f"seed_budget={self.seed_budget}: must be 0 or more, or None")
        if min(self.pruned_steps, self.embargoed_steps, self.resetting_steps) < 1:
            raise EsperError(
                "cooldown steps must be 1 or more in each of PRUNED, EMBARGOED, RESETTING"
            )

    def cooldown_steps(self, stage: SeedStage) -> int:
        """Return the number of steps of a cooldown stage."""
        steps = (self.pruned_steps, self.embargoed_steps, self.resetting_steps)
        return steps[COOLDOWN_CHAIN.index(stage)]


class Lifecycle:
    """Stages and alphas of all slots of all members."""

    def __init__(
        self, members: int, slots: Sequence[str], fits_SK: Bools, config: LifecycleConfig
    ) -> None:
        """`fits_SK[s, k]`: blueprint k fits slot s."""
        self.config = config
        self.slots = tuple(slots)
        self.fits_SK = fits_SK
        self.caps: Caps | None = None
        """Limits on the size of members; None: none."""
        self.action_space: ActionSpace = "grow"
        """Operations that exist (`OFFERED_OPS`)."""
        self.planning = False
        """In the plan phase, where PLANT is the only operation besides WAIT."""
        self.version = 0
        """Increases whenever a stage or an alpha changes; used to invalidate caches."""
        self._vetoes = VetoTable()
        self._allocate(members)

    def _allocate(self, members: int) -> None:
        shape = (members, len(self.slots))
        self.stage_ES: Codes = np.full(shape, SeedStage.DORMANT, dtype=np.int8)
        self.blueprint_ES: Ints = np.full(shape, NO_BLUEPRINT, dtype=np.int64)
        self.style_ES: Codes = np.zeros(shape, dtype=np.int8)
        self.steps_in_stage_ES: Ints = np.zeros(shape, dtype=np.int64)
        self.age_ES: Ints = np.zeros(shape, dtype=np.int64)
        self.births_ES: Ints = np.zeros(shape, dtype=np.int64)
        """Seeds germinated in the slot so far."""
        self.pruning_ES: Bools = np.zeros(shape, dtype=np.bool_)
        """Alpha is ramping to 0; the seed is frozen and will be removed."""
        self.closed_ES: Bools = np.zeros(shape, dtype=np.bool_)
        """Slots in which nothing may grow for the rest of the episode."""
        self.stopped_E: Bools = np.zeros(members, dtype=np.bool_)
        """Members that have stopped training: their slots stay as they are."""
        self.trained_E: Bools = np.zeros(members, dtype=np.bool_)
        """Members that trained on at least one batch since they began."""
        self.restartable_E: Bools = np.zeros(members, dtype=np.bool_)
        """Members with enough compute left to begin anew; set by the engine."""
        self.restarts_E: Ints = np.zeros(members, dtype=np.int64)
        """Restarts in this episode."""
        self.alpha_ES: Floats = np.zeros(shape, dtype=np.float32)
        self.mode_ES: Codes = np.full(shape, AlphaMode.HOLD, dtype=np.int8)
        self.ramp_start_ES: Floats = np.zeros(shape, dtype=np.float32)
        self.target_ES: Floats = np.zeros(shape, dtype=np.float32)
        self.ramp_done_ES: Ints = np.zeros(shape, dtype=np.int64)
        self.ramp_total_ES: Ints = np.zeros(shape, dtype=np.int64)
        self.curve_ES: Codes = np.zeros(shape, dtype=np.int8)
        self.tempo_ES: Ints = np.zeros(shape, dtype=np.int64)
        """Steps of the first blend."""
        self.signals = GateSignals.unmeasured(*shape)

    @property
    def members(self) -> int:
        """E."""
        return int(self.stage_ES.shape[0])

    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return all mutable arrays by name; not copies, so that a load can write into them."""
        own = {name: value for name, value in vars(self).items() if name.endswith(("_ES", "_E"))}
        return own | {name: getattr(self.signals, name) for name in _SIGNALS}

    def content(self) -> tuple[object, ...]:
        """Return everything that rules and reports read, to be compared.

        By content, because callers write into the arrays.
        """
        settings = (self.planning, self.action_space, self.caps, self.config)
        own = [value.tobytes() for value in vars(self).values() if isinstance(value, np.ndarray)]
        return (*settings, *own, *[getattr(self.signals, name).tobytes() for name in _SIGNALS])

    def copy(self) -> Lifecycle:
        """Return a copy that later steps of this one do not change."""
        other = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray):
                setattr(other, name, value.copy())
        other._vetoes = VetoTable()
        return other

    def reset(self) -> None:
        """Reset all slots to dormant, as at the start of an episode."""
        self._allocate(self.members)
        self.planning = False
        self.version += 1

    # ---- steps ----------------------------------------------------------------------------

    def begin_step(self) -> None:
        """Before the train batches: start training of new seeds, advance ramps by one step."""
        if self.config.auto_forward_g1:
            self._enter(self._running(SeedStage.GERMINATED), SeedStage.TRAINING)
        self._move_ramps()

    def end_step(self, signals: GateSignals) -> None:
        """After validation: update counters, cooldowns, signals and automatic transitions."""
        self._store_signals(signals)
        running_ES = ~self.stopped_E[:, None]
        self.steps_in_stage_ES += running_ES
        self.age_ES[self.occupied() & running_ES] += 1
        for stage, after in zip(COOLDOWN_CHAIN[-2::-1], COOLDOWN_CHAIN[:0:-1], strict=True):
            rested = self.steps_in_stage_ES >= self.config.cooldown_steps(stage)
            self._enter(self._running(stage) & rested, after)
        if self.config.auto_forward_g3:
            blended_ES = self._running(SeedStage.BLENDING) & self.gate_open(Gate.G3)
            self._enter(blended_ES, SeedStage.HOLDING)
        if self.config.auto_forward_g2:
            self._start_blend(self._running(SeedStage.TRAINING) & self.gate_open(Gate.G2))

    def _store_signals(self, signals: GateSignals) -> None:
        """Store the newest measured value of each signal (NaN: not measured this time)."""

        def newer(old: Floats, new: Floats) -> Floats:
            return np.where(np.isnan(new), old, new).astype(np.float32)

        self.signals = replace(  # copies, so that callers cannot change them
            signals,
            host_loss_E=np.array(signals.host_loss_E, dtype=np.float32),
            shadow_loss_ES=np.array(signals.shadow_loss_ES, dtype=np.float32),
            grad_norm_ES=np.array(signals.grad_norm_ES, dtype=np.float32),
            contribution_ES=newer(self.signals.contribution_ES, signals.contribution_ES),
            contribution_se_ES=newer(self.signals.contribution_se_ES, signals.contribution_se_ES),
        )

    def _move_ramps(self) -> None:
        ramping = (self.mode_ES != AlphaMode.HOLD) & ~self.stopped_E[:, None]
        if not ramping.any():
            return
        self.ramp_done_ES[ramping] += 1
        moved = ramp_alpha(
            self.ramp_start_ES, self.target_ES, self.curve_ES, self.ramp_done_ES, self.ramp_total_ES
        )
        self.alpha_ES = np.where(ramping, moved, self.alpha_ES).astype(np.float32)
        done = ramping & (self.ramp_done_ES >= self.ramp_total_ES)
        self.mode_ES[done] = AlphaMode.HOLD
        self.version += 1
        self._remove(done & self.pruning_ES)

    # ---- legality -------------------------------------------------------------------------

    def occupied(self) -> Bools:
        """Slots that hold a seed, permanent ones included."""
        return IS_OCCUPIED[self.stage_ES]

    def ramp_steps_left(self) -> Ints:
        """Steps until alpha reaches its target."""
        ramping = self.mode_ES != AlphaMode.HOLD
        return np.where(ramping, self.ramp_total_ES - self.ramp_done_ES, 0)

    def cooldown_left(self) -> Ints:
        """Steps until a cooling slot is dormant again."""
        steps_Z = np.zeros(len(SeedStage), dtype=np.int64)
        for stage, after in pairwise((SeedStage.DORMANT, *COOLDOWN_CHAIN[-2::-1])):
            steps_Z[after] = steps_Z[stage] + self.config.cooldown_steps(after)
        whole_ES = steps_Z[self.stage_ES]
        return np.where(whole_ES > 0, whole_ES - self.steps_in_stage_ES, 0)

    def budget_left(self) -> Ints:
        """Return `[E]` how many seeds each member may still germinate."""
        budget = self.config.seed_budget
        limit = len(self.slots) if budget is None else budget
        return np.asarray(limit - self.occupied().sum(axis=1), dtype=np.int64)

    def fits_ESK(self) -> Bools:
        """Return where a blueprint fits the slot and the member's caps."""
        fits_ESK = np.broadcast_to(self.fits_SK, (self.members, *self.fits_SK.shape))
        if self.caps is None:
            return fits_ESK
        return np.asarray(fits_ESK & self.caps.fits(self.blueprint_ES, self.style_ES))

    def gate_open(self, gate: Gate) -> Bools:
        """Return where a gate's conditions hold, regardless of the stage."""
        if gate is Gate.G0:
            return np.asarray(self.veto(LifecycleOp.GERMINATE) == VetoReason.NONE)
        if gate is Gate.G1:
            return np.asarray(self.age_ES >= 1)
        if gate is Gate.G2:
            return ready_to_blend(self.config.gates, self.steps_in_stage_ES, self.signals)
        if gate is Gate.G3:
            return np.asarray(fully_blended(self.alpha_ES) & (self.mode_ES == AlphaMode.HOLD))
        return worth_keeping(self.config.gates, self.signals)

    def veto(self, op: LifecycleOp) -> Codes:
        """Return `[E, S]` the first `VetoReason` against `op`, read-only; NONE where legal."""
        return self._vetoes.reasons(self, op)

    def vetoes(self) -> Codes:
        """Return `[op, E, S]` the first `VetoReason` against each operation."""
        return self._vetoes.all_reasons(self)

    def legal_ops(self) -> Bools:
        """Return `[E, S, op]` which operations are legal, gates included. WAIT always is."""
        return np.ascontiguousarray((self.vetoes() == VetoReason.NONE).transpose(1, 2, 0))

    # ---- operations on arrays of members --------------------------------------------------

    def germinate(
        self,
        members: IntLike,
        slots: IntLike,
        blueprints: IntLike,
        style: IntLike = BlendStyle.ADD,
        tempo: IntLike = TEMPOS[0],
        alpha_target: float | Floats = 1.0,
        curve: IntLike = AlphaCurve.LINEAR,
    ) -> None:
        """DORMANT -> GERMINATED. `tempo`, `alpha_target`, `curve` describe the first blend."""
        at = self.check_germinate(members, slots, blueprints, style, tempo, alpha_target, curve)
        self.apply_germinate(at, blueprints, style, tempo, alpha_target, curve)

    def apply_germinate(
        self,
        at: tuple[Ints, Ints],
        blueprints: IntLike,
        style: IntLike,
        tempo: IntLike,
        alpha_target: float | Floats,
        curve: IntLike,
    ) -> None:
        """Germinate at the pairs that `check_germinate` returned."""
        self._enter(self._mask(at), SeedStage.GERMINATED)
        self.blueprint_ES[at] = blueprints
        self.style_ES[at] = style
        self.tempo_ES[at] = tempo
        self.target_ES[at] = alpha_target
        self.curve_ES[at] = curve
        self.age_ES[at] = 0
        self.births_ES[at] += 1
        self._clear_signals(at)

    def check_germinate(
        self,
        members: IntLike,
        slots: IntLike,
        blueprints: IntLike,
        style: IntLike,
        tempo: IntLike,
        alpha_target: float | Floats,
        curve: IntLike,
    ) -> tuple[Ints, Ints]:
        """Validate the arguments of `germinate`; return the (member, slot) pairs."""
        at = self._pairs(members, slots)
        kind = as_ints("blueprint", blueprints, at)
        self._check_choice("blueprint", kind, range(self.fits_SK.shape[1]))
        self._check_choice("style", as_ints("style", style, at), range(len(BlendStyle)))
        self._check_choice("tempo", as_ints("tempo", tempo, at), TEMPOS)
        targets = as_floats("alpha_target", alpha_target, at)
        self._check_choice("alpha_target", targets, ALPHA_TARGETS)
        self._check_choice("curve", as_ints("curve", curve, at), range(len(AlphaCurve)))
        self._check_legal(LifecycleOp.PLANT if self.planning else LifecycleOp.GERMINATE, at)
        self._check_fit(at, kind)
        self._check_budget(at[0])
        return at

    def make_static(self, members: IntLike, slots: IntLike, stage: SeedStage) -> None:
        """Make seeds part of the network: germinated ones before the first step, or blended ones.

        `stage`: FOSSILIZED or PLANTED.
        """
        assert stage in STATIC_STAGES
        at = self._pairs(members, slots)
        self.stage_ES[at] = stage
        self.alpha_ES[at] = 1.0
        self.version += 1

    def stop(self, members: IntLike) -> None:
        """Stop members for the rest of the episode: no training, no transitions, no ramps."""
        e = self._pairs(members, 0)[0]
        self._check_legal(LifecycleOp.STOP, (e, np.zeros_like(e)))
        self.stopped_E[e] = True
        self.version += 1

    def restart(self, members: IntLike) -> Ints:
        """Empty all slots of members, whatever their stage; closed ones stay closed.

        Returns the members. Births are counted on, so that the next seeds are new ones.
        """
        e = self._pairs(members, 0)[0]
        self._check_legal(LifecycleOp.RESTART, (e, np.zeros_like(e)))
        empty = copy(self)
        empty._allocate(1)
        for name, values in vars(self).items():
            if name.endswith("_ES") and name not in ("births_ES", "closed_ES"):
                values[e] = vars(empty)[name]
        self._clear_signals((e,))
        self.trained_E[e] = False
        self.restarts_E[e] += 1
        self.version += 1
        return e

    def close(self, members: IntLike, slots: IntLike) -> None:
        """Close empty slots for the rest of the episode."""
        at = self._pairs(members, slots)
        self._check_legal(LifecycleOp.CLOSE, at)
        self.closed_ES[at] = True

    def advance(self, members: IntLike, slots: IntLike) -> None:
        """Advance to TRAINING, BLENDING or HOLDING, whichever is next; the gate must pass."""
        at = self._pairs(members, slots)
        self._check_legal(LifecycleOp.ADVANCE, at)
        mask = self._mask(at)
        moves = {stage: mask & self._at(stage) for stage in ADVANCE_TO}
        self._enter(moves[SeedStage.GERMINATED], SeedStage.TRAINING)
        self._enter(moves[SeedStage.BLENDING], SeedStage.HOLDING)
        self._start_blend(moves[SeedStage.TRAINING])

    def set_alpha_target(
        self,
        members: IntLike,
        slots: IntLike,
        target: float | Floats,
        speed: IntLike = ALPHA_SPEEDS[1],
        curve: IntLike = AlphaCurve.LINEAR,
    ) -> None:
        """Start a ramp to a new target; below 1 a HOLDING seed returns to BLENDING."""
        at = self._pairs(members, slots)
        self._check_choice("alpha_target", as_floats("alpha_target", target, at), ALPHA_TARGETS)
        self._check_choice("alpha_speed", as_ints("alpha_speed", speed, at), ALPHA_SPEEDS)
        self._check_choice("curve", as_ints("curve", curve, at), range(len(AlphaCurve)))
        self._check_legal(LifecycleOp.SET_ALPHA_TARGET, at)
        self.target_ES[at] = target
        below = self._mask(at) & (self.target_ES < 1.0) & self._at(SeedStage.HOLDING)
        self._enter(below, SeedStage.BLENDING)
        self._start_ramp(at, self.target_ES[at], speed, curve)

    def prune(
        self,
        members: IntLike,
        slots: IntLike,
        speed: IntLike = 0,
        curve: IntLike = AlphaCurve.LINEAR,
    ) -> None:
        """Remove seeds; blended ones are frozen and ramp to 0 first (`speed` steps, 0: at once)."""
        at = self._pairs(members, slots)
        steps = as_ints("alpha_speed", speed, at)
        self._check_choice("alpha_speed", steps, ALPHA_SPEEDS)
        self._check_choice("curve", as_ints("curve", curve, at), range(len(AlphaCurve)))
        self._check_legal(LifecycleOp.PRUNE, at)
        speed_ES = np.zeros_like(self.age_ES)
        speed_ES[at] = steps
        ramped = self._mask(at) & (self.alpha_ES > 0) & (speed_ES > 0)
        settled_ES = self._at(SeedStage.HOLDING) | self._at(SeedStage.PLANTED)
        self._enter(ramped & settled_ES, SeedStage.BLENDING)
        where = np.nonzero(ramped)
        curve_ES = np.zeros_like(self.curve_ES)
        curve_ES[at] = curve
        self.pruning_ES |= ramped
        self._start_ramp(
            where, np.zeros(len(where[0]), np.float32), speed_ES[where], curve_ES[where]
        )
        self._remove(self._mask(at) & ~ramped)

    def fossilize(self, members: IntLike, slots: IntLike) -> None:
        """HOLDING -> FOSSILIZED: the seed is permanent."""
        at = self._pairs(members, slots)
        self._check_legal(LifecycleOp.FOSSILIZE, at)
        self._enter(self._mask(at), SeedStage.FOSSILIZED)

    def force_remove(self, mask_ES: Bools) -> None:
        """Remove live seeds at once, bypassing all rules (rollback); the full cooldown follows."""
        self._remove(mask_ES & _PRUNABLE[self.stage_ES])

    # ---- helpers --------------------------------------------------------------------------

    def _at(self, stage: SeedStage) -> Bools:
        return np.asarray(self.stage_ES == stage)

    def _running(self, stage: SeedStage) -> Bools:
        return self._at(stage) & ~self.stopped_E[:, None]

    def _enter(self, mask: Bools, stage: SeedStage) -> None:
        """Move masked slots into a stage; raises unless the transition table allows it."""
        if not mask.any():
            return
        if not _LEGAL_MOVE[self.stage_ES[mask], stage].all():
            e, s = np.argwhere(mask & ~_LEGAL_MOVE[self.stage_ES, stage])[0]
            now = SeedStage(self.stage_ES[e, s])
            after = ", ".join(sorted(x.name for x in TRANSITIONS[now])) or "nothing"
            raise IllegalActionError(
                f"member {e} slot {self.slots[s]}: {now.name} -> {stage.name} is not a transition; "
                f"{now.name} may be followed by {after}"
            )
        self.stage_ES[mask] = stage
        self.steps_in_stage_ES[mask] = 0
        self.version += 1

    def _start_blend(self, mask: Bools) -> None:
        """TRAINING -> BLENDING with the ramp given at germination."""
        self._enter(mask, SeedStage.BLENDING)
        at = np.nonzero(mask)
        self._start_ramp(at, self.target_ES[at], self.tempo_ES[at], self.curve_ES[at])

    def _start_ramp(
        self, at: tuple[Ints, ...], target: Floats, steps: IntLike, curve: IntLike | Codes
    ) -> None:
        now = self.alpha_ES[at]
        total = np.broadcast_to(np.asarray(steps, dtype=np.int64), now.shape)
        moving = (target != now) & (total > 0)
        up = np.where(target > now, AlphaMode.UP, AlphaMode.DOWN)
        self.ramp_start_ES[at] = now
        self.target_ES[at] = target
        self.curve_ES[at] = curve
        self.ramp_done_ES[at] = 0
        self.ramp_total_ES[at] = total
        self.mode_ES[at] = np.where(moving, up, AlphaMode.HOLD)
        self.alpha_ES[at] = np.where(moving, now, target)
        self.version += 1

    def _remove(self, mask: Bools) -> None:
        """Remove seeds and start the cooldown."""
        if not mask.any():
            return
        self._enter(mask, SeedStage.PRUNED)
        self.blueprint_ES[mask] = NO_BLUEPRINT
        self.pruning_ES[mask] = False
        self.alpha_ES[mask] = 0.0
        self.target_ES[mask] = 0.0
        self.mode_ES[mask] = AlphaMode.HOLD
        self.ramp_done_ES[mask] = self.ramp_total_ES[mask] = 0
        self.age_ES[mask] = 0
        self._clear_signals(np.nonzero(mask))

    def _clear_signals(self, at: tuple[Ints, ...]) -> None:
        """Clear the measurements of earlier seeds."""
        per_slot = ("shadow_loss_ES", "grad_norm_ES", "contribution_ES", "contribution_se_ES")
        fresh = {name: getattr(self.signals, name).copy() for name in per_slot}
        for values in fresh.values():
            values[at] = np.nan
        self.signals = replace(self.signals, **fresh)

    def _pairs(self, members: IntLike, slots: IntLike) -> tuple[Ints, Ints]:
        """Return validated (member, slot) index arrays `[N]`: in range, without duplicates."""
        e, s = np.broadcast_arrays(
            as_integers("member", np.atleast_1d(members)),
            as_integers("slot", np.atleast_1d(slots)),
        )
        for name, values, limit in (("member", e, self.members), ("slot", s, len(self.slots))):
            bad = values[(values < 0) | (values >= limit)]
            if bad.size:
                raise EsperError(f"{name} {bad[0]}: valid are 0 to {limit - 1}")
        times = np.bincount(e * len(self.slots) + s)
        if (times > 1).any():
            twice_e, twice_s = divmod(int(np.argmax(times > 1)), len(self.slots))
            raise EsperError(
                f"member {twice_e} slot {self.slots[twice_s]} appears twice in one call"
            )
        return e, s

    def _mask(self, at: tuple[Ints, ...]) -> Bools:
        mask = np.zeros_like(self.pruning_ES)
        mask[at] = True
        return mask

    def _check_choice(self, name: str, values: Ints | Floats, valid: Sequence[float]) -> None:
        known = (values[:, None] == np.asarray(valid, dtype=values.dtype)).any(axis=1)
        if not known.all():
            bad = values[~known]
            listed = ", ".join(f"{choice:g}" if choice % 1 else str(choice) for choice in valid)
            raise EsperError(f"{name} {float(bad[0]):g}: choose from {listed}")

    def _check_legal(self, op: LifecycleOp, at: tuple[Ints, Ints]) -> None:
        veto_N = self.veto(op)[at]
        refused = veto_N != VetoReason.NONE
        if refused.any():
            e, s = at[0][refused][0], at[1][refused][0]
            legal_O = self.legal_ops()[e, s]
            choices = ", ".join(o.name for o in LifecycleOp if legal_O[o])
            raise IllegalActionError(
                f"{op.name} of member {e} slot {self.slots[s]} is not legal: "
                f"{VetoReason(veto_N[refused][0]).name} "
                f"({self._describe_slot(int(e), int(s))}); legal there now: {choices}"
            )

    def _describe_slot(self, e: int, s: int) -> str:
        """Describe the state of one slot for an error message."""
        return (
            f"{SeedStage(self.stage_ES[e, s]).name} for {self.steps_in_stage_ES[e, s]} steps, "
            f"age {self.age_ES[e, s]}, alpha {self.alpha_ES[e, s]:g} "
            f"{AlphaMode(self.mode_ES[e, s]).name}, budget left {self.budget_left()[e]}"
        )

    def _check_fit(self, at: tuple[Ints, Ints], kind: Ints) -> None:
        misfit = ~self.fits_SK[at[1], kind]
        if misfit.any():
            slot = self.slots[at[1][misfit][0]]
            valid = np.flatnonzero(self.fits_SK[at[1][misfit][0]]).tolist()
            raise EsperError(f"blueprint {kind[misfit][0]} does not fit slot {slot}: valid {valid}")

    def _check_budget(self, members: Ints) -> None:
        wanted = np.bincount(members, minlength=self.members)
        left = self.budget_left()
        if (wanted > left).any():
            e = int(np.flatnonzero(wanted > left)[0])
            raise IllegalActionError(
                f"member {e}: {wanted[e]} seeds requested, budget left {left[e]}; prune one first"
            )
