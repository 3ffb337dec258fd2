"""E members that train and grow side by side: stacked parameters, one lifecycle, two optimisers.

    population = Population(CNNHost, ["r0c0", "r0c1"], ["conv_light"], members=8, seed=0)
    population.germinate([0, 3], "r0c1", "conv_light")
    population.begin_step()
    for x_EB, y_EB in batches:
        stats = population.train_batch(x_EB, y_EB)
    population.end_step(signals)

Nothing on this path loops over members in Python (under the vmap executor) or waits for a device.

Shape letters: E members, R rows, S slots, B batch, K blueprints.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from esper.device.rng import derive_keys
from esper.device.selection import parse_device
from esper.device.upload import upload
from esper.kasmina.executors.base import check_input, check_tensor
from esper.kasmina.executors.choice import (
    ExecutorChoice,
    ExecutorName,
    choose_executor,
    why_seed_not_vmap,
)
from esper.kasmina.lifecycle import IntLike, Lifecycle, whole_numbers
from esper.kasmina.losses import RowLoss, check_labels, count_correct, cross_entropy
from esper.kasmina.member import MorphogeneticModel
from esper.kasmina.network import StackedNetwork
from esper.kasmina.padding import PlanRooms
from esper.kasmina.population_config import PopulationConfig as PopulationConfig
from esper.kasmina.probe import HostProbe, probe_host, probe_seed, trace_shapes
from esper.kasmina.random_layers import row_keys
from esper.kasmina.rows import RowPlan, RowTable, make_plan, member_rows, training_rows, whole_rows
from esper.kasmina.saving import load_population, save_population
from esper.kasmina.scaling import MemberScaler
from esper.kasmina.training import GATE_KEY, TrainBatch, Trainer
from esper.leyline.actions import ALPHA_SPEEDS, TEMPOS, AlphaCurve, BlendStyle
from esper.leyline.arrays import Floats, Ints
from esper.leyline.errors import EsperError, unknown_name
from esper.leyline.limits import MAX_MEMBERS, require_at_most
from esper.leyline.seeds import require_seed
from esper.leyline.signals import NO_BLUEPRINT, GateSignals, SlotReports
from esper.leyline.streams import UInt64Array, stream_keys

logger = logging.getLogger(__name__)

InputKey = tuple[torch.Size, torch.dtype]
"""What decides the shapes of all activations: shape and type of one sample."""


@dataclass(frozen=True, slots=True)
class EvalBatch:
    """What one validation batch tells about each row; device tensors, nothing waited for."""

    loss_R: Tensor
    correct_R: Tensor
    """Right predictions, to be divided by the number of targets."""


class Population:
    """E hosts of one kind, their slots and the seeds in them."""

    def __init__(
        self,
        host_factory: Callable[[], nn.Module],
        slots: Sequence[str],
        blueprints: Sequence[str],
        members: int,
        seed: int = 0,
        device: str | torch.device = "cpu",
        config: PopulationConfig | None = None,
        loss: RowLoss = cross_entropy,
    ) -> None:
        for name, number in (("members", members), ("seed", seed)):
            if isinstance(number, bool) or not isinstance(number, int | np.integer):
                raise EsperError(f"{name}={number!r}: give a whole number")
        require_at_most("members=", members, MAX_MEMBERS)
        require_seed(int(seed), "seed")
        if members < 1:
            raise EsperError(f"members={members}: a population needs at least 1")
        self.config = config or PopulationConfig()
        self.seed = seed
        self.round = 0
        self.device = parse_device(device)
        self.loss = loss
        self.network = StackedNetwork(host_factory, slots, blueprints, members, self.device)
        self.lifecycle = Lifecycle(members, self.slots, self.network.fits_SK, self.config.lifecycle)
        self.choice: ExecutorChoice | None = None
        """The executor and why, known from the first input on."""
        self.trainer = Trainer(self.network, self.lifecycle, self.config.optim)
        self.trainer.weight_norm_rates = self.config.seed_lr_scaling == "weight_norm"
        self.set_rates(self.config.host_lr, self.config.seed_lr)
        self.probe: HostProbe | None = None
        self._known: dict[InputKey, tuple[int, ...]] = {}
        """Inputs tried so far, and the output of one sample of such."""
        self.passes = torch.zeros((), dtype=torch.int64, device=self.device)
        """Passes in training mode in this episode: random layers draw other numbers in each."""
        self._plans: dict[tuple[str, bool], tuple[int, RowPlan]] = {}
        self._rooms = PlanRooms()
        self._seed_macs: dict[tuple[int, int], int] = {}
        self._draw_hosts()

    # ---- what it is -----------------------------------------------------------------------

    @property
    def members(self) -> int:
        """E."""
        return self.network.members

    @property
    def slots(self) -> tuple[str, ...]:
        """Slot ids in execution order: the order of every S axis."""
        return tuple(spec.slot_id for spec in self.network.slots)

    @property
    def blueprints(self) -> tuple[str, ...]:
        """Names of the enabled blueprints: the order of every K axis."""
        return tuple(b.name for b in self.network.blueprints)

    def member(self, index: int) -> MorphogeneticModel:
        """One member as a plain module; its parameters are views of the population's."""
        if np.ndim(index):
            raise EsperError(f"member {index!r}: give one index")
        self._members(index)
        reports = self.slot_reports()
        by_slot = {slot: reports.report(index, s) for s, slot in enumerate(self.slots)}
        host_macs = None if self.probe is None else self.probe.host_macs
        return MorphogeneticModel(self.network, index, by_slot, host_macs)

    def reset(self, round_index: int) -> None:
        """Start an episode: fresh hosts from the streams of that round, all slots dormant."""
        self.round = round_index
        self.passes.zero_()  # in place: a captured batch reads and counts it where it is
        self.lifecycle.reset()
        self.trainer.forget()
        self._draw_hosts()

    def _draw_hosts(self) -> None:
        everyone = np.arange(self.members)
        self.network.host.draw(self._keys(everyone, "host"), self._index(everyone))

    def _keys(self, members: Ints, *purpose: str | int | Ints) -> UInt64Array:
        return stream_keys(self.seed, "round", self.round, "member", members, *purpose)

    def _members(self, members: npt.ArrayLike) -> Ints:
        """Member indices `[N]`, checked."""
        wanted = whole_numbers("member", np.atleast_1d(members))
        bad = wanted[(wanted < 0) | (wanted >= self.members)]
        if bad.size:
            raise EsperError(f"member {bad[0]}: valid are 0 to {self.members - 1}")
        return wanted

    def _index(self, members: Ints) -> Tensor:
        return upload(members, self.device)

    # ---- keeping --------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything into the folder `path`; a save that is there is replaced at once."""
        save_population(self, path)

    @staticmethod
    def load(
        path: str | os.PathLike[str],
        host_factory: Callable[[], nn.Module],
        device: str | torch.device = "cpu",
        executor: ExecutorName | None = None,
        loss: RowLoss = cross_entropy,
    ) -> Population:
        """The population saved in `path`, to go on as if it had never stopped.

        Factory and loss are code, not in the save: give those it was made with. `executor`: in
        place of the saved setting.
        """
        return load_population(Population, path, host_factory, device, executor, loss)

    # ---- computing ------------------------------------------------------------------------

    def forward(
        self,
        x: Tensor,
        rows: npt.ArrayLike | RowTable | RowPlan | None = None,
        alpha_RS: npt.ArrayLike | None = None,
        training: bool = False,
    ) -> Tensor:
        """Outputs `[R, B, ...]` of rows: members (default: all), each with its row of alphas.

        `x` is `[E, B, ...]`, or `[1, B, ...]` shared by all. Without `alpha_RS` members are taken
        as they stand. A `RowTable` gives full control; a `RowPlan` is one made ready before.
        """
        return self._run(x, self._plan_for(rows, alpha_RS), training)

    def evaluate(
        self,
        x: Tensor,
        target: Tensor,
        rows: npt.ArrayLike | RowTable | RowPlan | None = None,
        alpha_RS: npt.ArrayLike | None = None,
    ) -> EvalBatch:
        """Loss and right predictions of rows on a batch, without training."""
        with torch.no_grad():
            plan = self._plan_for(rows, alpha_RS)
            self._check_batch(x, target)
            logits = self._run(x, plan, training=False)
            target_R = _row_targets(target, plan)
            return EvalBatch(self.loss(logits, target_R), count_correct(logits, target_R))

    def train_batch(
        self, x: Tensor, target: Tensor, scaler: MemberScaler | None = None
    ) -> TrainBatch:
        """One batch for all members: hosts on their main rows, incubating seeds on shadow rows.

        `scaler`: for training in fp16, under autocast.
        """
        return self.train_rows(self.train_plan(), x, target, scaler)

    def train_rows(
        self, plan: RowPlan, x: Tensor, target: Tensor, scaler: MemberScaler | None = None
    ) -> TrainBatch:
        """One batch for all members by a `train_plan`; reads nothing of the lifecycle."""
        self._check_batch(x, target)
        logits = self._run(x, plan, training=True)
        self.trainer.drop_gradients()  # a caller's own or a failed batch may have left some
        target_R = _row_targets(target, plan)
        loss_R = self.loss(logits, target_R)
        scaled_R = loss_R if scaler is None else scaler.scale(loss_R, plan.member_R)
        if scaled_R.requires_grad:  # not where the host is frozen and no seed is live
            scaled_R.sum().backward()  # type: ignore[no-untyped-call]
        main = slice(self.members)
        correct_E = count_correct(logits[main].detach(), target_R[main])
        return self.trainer.step(plan, loss_R.detach(), correct_E, scaler)

    def set_rates(self, host_lr: npt.ArrayLike, seed_lr: npt.ArrayLike) -> None:
        """Learning rates, one for all members or one each; a schedule calls this every step."""
        self.trainer.set_rates(host_lr, seed_lr)

    def train_plan(self, padded: bool = False) -> RowPlan:
        """The rows of a train batch, good until a stage or an alpha changes.

        `padded`: in room that other plans of its shape share; takes the vmap executor.
        """
        return self._cached_plan("train", training_rows, padded)

    def member_plan(self, padded: bool = False) -> RowPlan:
        """One row per member as it stands, good until a stage or an alpha changes."""
        return self._cached_plan("members", member_rows, padded)

    def plan_rows(self, table: RowTable, padded: bool = False) -> RowPlan:
        """The rows of a table; with `padded`, those of the last such table are no longer good."""
        return self._make_plan("rows", table, padded)

    def _plan_for(
        self, rows: npt.ArrayLike | RowTable | RowPlan | None, alpha_RS: npt.ArrayLike | None
    ) -> RowPlan:
        if isinstance(rows, RowPlan):
            return rows
        if rows is None and alpha_RS is None:
            return self.member_plan()
        if isinstance(rows, RowTable):
            return self.plan_rows(rows)
        member_R = np.arange(self.members) if rows is None else self._members(rows)
        alphas = self.lifecycle.alpha_ES[member_R] if alpha_RS is None else alpha_RS
        return self.plan_rows(whole_rows(member_R, np.asarray(alphas, dtype=np.float32)))

    def _cached_plan(
        self, name: str, rows: Callable[[Lifecycle], RowTable], padded: bool
    ) -> RowPlan:
        """The plan of a standard set of rows, rebuilt only after a stage or an alpha changed."""
        version, plan = self._plans.get((name, padded), (-1, None))
        if plan is None or version != self.lifecycle.version:
            plan = self._make_plan(name, rows(self.lifecycle), padded)
            self._plans[name, padded] = (self.lifecycle.version, plan)
        return plan

    def _make_plan(self, name: str, table: RowTable, padded: bool) -> RowPlan:
        training, detach = name == "train", self.config.detach_seed_input
        room = self._rooms.find(name, table, self.lifecycle, training) if padded else None
        masks = self.trainer.masks(None if room is None else room.shape) if training else None
        keys = self._row_keys if training else None
        return make_plan(table, self.lifecycle, self.device, detach, masks, room, keys)

    def _row_keys(self, table: RowTable) -> Ints:
        return row_keys(self.seed, self.round, table)

    def _run(self, x: Tensor, plan: RowPlan, training: bool) -> Tensor:
        self._meet(x)
        assert self.choice is not None, "made when the first input came"
        key_R = self._pass_keys(plan) if training else None
        return self.choice.executor.run(self.network, x, plan, training, key_R)

    def _pass_keys(self, plan: RowPlan) -> Tensor | None:
        """Count a pass in training mode; the streams its rows draw from, if anything draws."""
        key_R = None
        if self.network.draws:
            base_R = plan.key_R
            if base_R is None:  # not a train batch: nothing is captured
                base_R = upload(self._row_keys(plan.table), self.device)
            key_R = derive_keys(base_R, self.passes)
        self.passes.add_(1)
        return key_R

    def _meet(self, x: Tensor) -> tuple[int, ...]:
        """Try inputs of a new size or type before anything is computed; the output of one sample.

        The first ones also tell whether the host's chain holds, what draws random numbers, and who
        can run it.
        """
        check_input(self.network, x)
        key = x.shape[2:], x.dtype
        if key not in self._known:
            trace = trace_shapes(self.network, x[0])
            probe = self.probe or probe_host(self.network, x[0], trace)
            for slot, kind in self._standing():
                probe_seed(self.network, trace.slot_shapes, slot, kind)
            if self.network.sites is None:
                self.network.find_sites(torch.cat([x[0, :1], x[0, -1:]]))  # two: norms need them
            self.choice = self.choice or self._choose(x)
            self.probe = probe
            self._known[key] = tuple(trace.output.shape[1:])
        return self._known[key]

    def _choose(self, x: Tensor) -> ExecutorChoice:
        with torch.enable_grad():
            choice = choose_executor(self.config.executor, self.network, self.lifecycle, x)
        if self.config.executor == "auto" and choice.executor.name == "loop":
            logger.warning("executor loop, member by member: %s", choice.reason)
        return choice

    def _standing(self) -> list[tuple[int, int]]:
        """(slot, blueprint) of all seeds that stand anywhere."""
        kinds_ES = self.lifecycle.blueprint_ES
        return [(s, k) for s, k in self.network.banks if (kinds_ES[:, s] == k).any()]

    def _check_batch(self, x: Tensor, target: Tensor) -> None:
        """Refuse targets that do not belong to the inputs, before anything is computed."""
        first = not self._known
        output_shape = self._meet(x)
        check_tensor("targets", target, x.device)
        members, batch = self.members, x.shape[1]
        if target.ndim < 2 or target.shape[0] not in (1, members) or target.shape[1] != batch:
            raise EsperError(
                f"targets of shape {tuple(target.shape)}: expected [{members} members, or 1, "
                f"{batch} samples, ...]"
            )
        if self.loss is cross_entropy:
            check_labels(target, batch, output_shape, first or target.device.type == "cpu")

    # ---- growing --------------------------------------------------------------------------

    def begin_step(self) -> None:
        """Before the train batches of a step: incubation starts, ramps move."""
        self.lifecycle.begin_step()

    def end_step(self, signals: GateSignals) -> None:
        """After the validation of a step: counters, cooldown, gates."""
        self.lifecycle.end_step(signals)

    def germinate(
        self,
        members: IntLike,
        slot: int | str | Ints,
        blueprint: int | str | Ints,
        style: IntLike = BlendStyle.ADD,
        tempo: IntLike = TEMPOS[0],
        alpha_target: float | Floats = 1.0,
        curve: IntLike = AlphaCurve.LINEAR,
    ) -> None:
        """Put a fresh seed into a dormant slot of each member."""
        members, slots, kinds = self._seed_places(members, slot, blueprint)
        styles = np.broadcast_to(np.asarray(style), members.shape)
        choices = (members, slots, kinds, styles, tempo, alpha_target, curve)
        self.lifecycle.check_germinate(*choices)
        for s, k in np.unique(np.stack([slots, kinds]), axis=1).T:
            self._open_bank(int(s), int(k))
        self.lifecycle.germinate(*choices)
        self._draw_seeds(members, slots, kinds, styles)

    def plant(
        self,
        members: IntLike,
        slot: int | str | Ints,
        blueprint: int | str | Ints,
        style: IntLike = BlendStyle.ADD,
    ) -> None:
        """Make a seed part of the member from the start, permanent at once (static baselines)."""
        self.germinate(members, slot, blueprint, style)
        self.lifecycle.make_native(members, self._slot(slot))

    def advance(self, members: IntLike, slot: int | str | Ints) -> None:
        """Move seeds on to the next stage, through its gate."""
        self.lifecycle.advance(members, self._slot(slot))

    def set_alpha_target(
        self,
        members: IntLike,
        slot: int | str | Ints,
        target: float | Floats,
        speed: IntLike = ALPHA_SPEEDS[1],
        curve: IntLike = AlphaCurve.LINEAR,
    ) -> None:
        """Send the alpha of blended seeds to a new target."""
        self.lifecycle.set_alpha_target(members, self._slot(slot), target, speed, curve)

    def prune(
        self,
        members: IntLike,
        slot: int | str | Ints,
        speed: IntLike = 0,
        curve: IntLike = AlphaCurve.LINEAR,
    ) -> None:
        """Remove seeds, blended ones by a ramp of `speed` steps."""
        self.lifecycle.prune(members, self._slot(slot), speed, curve)

    def fossilize(self, members: IntLike, slot: int | str | Ints) -> None:
        """Make seeds permanent."""
        self.lifecycle.fossilize(members, self._slot(slot))

    def _open_bank(self, slot: int, kind: int) -> None:
        """Allocate a bank at its first use, unless its seeds could not be computed."""
        fresh = (slot, kind) not in self.network.banks
        self.network.bank(slot, kind)
        try:
            if fresh:
                self._require_vmap(slot, kind)
            self._macs_of(slot, kind, False)  # which tries a seed at its slot's own size
        except EsperError:
            if fresh:
                del self.network.banks[slot, kind]
            raise

    def try_blueprints(self) -> None:
        """Refuse a user's blueprint that would fail in a slot it fits, before a run depends on it.

        Germination tries them too; a run may germinate after hours.
        """
        for slot, kind in np.argwhere(self.network.fits_SK).tolist():
            new = (slot, kind) not in self.network.banks
            if new and not self.network.blueprints[kind].ours:
                self._open_bank(slot, kind)
                del self.network.banks[slot, kind]

    def _require_vmap(self, slot: int, kind: int) -> None:
        running = self.choice.executor.name if self.choice else self.config.executor
        problem = None if running == "loop" else why_seed_not_vmap(self.network, slot, kind)
        if problem is not None:
            raise EsperError(
                f"blueprint {self.blueprints[kind]!r} cannot be vmapped ({problem}): "
                f"use executor 'loop'"
            )

    def _slot(self, slot: int | str | Ints) -> int | Ints:
        return self.network.slot_index(slot) if isinstance(slot, int | str) else slot

    def _seed_places(
        self, members: IntLike, slot: int | str | Ints, blueprint: int | str | Ints
    ) -> tuple[Ints, Ints, Ints]:
        """Index arrays `[N]` of members, slots and blueprints that fit."""
        kinds: npt.ArrayLike = blueprint
        if isinstance(blueprint, str):
            if blueprint not in self.blueprints:
                raise unknown_name("blueprint", blueprint, self.blueprints, "in this population")
            kinds = self.blueprints.index(blueprint)
        places = np.broadcast_arrays(self._members(members), self._slot(slot), kinds)
        for s, k in np.unique(np.stack(places[1:]), axis=1).T:
            self.network.check_fit(int(s), int(k))
        return places[0], places[1], places[2]

    def _draw_seeds(
        self, members: Ints, slots: Ints, kinds: Ints, styles: npt.NDArray[np.generic]
    ) -> None:
        """Fresh values for new seeds, from (seed, round, member, slot, birth): E plays no part."""
        for s, k in np.unique(np.stack([slots, kinds]), axis=1).T:
            at = (slots == s) & (kinds == k)
            birth_N = self.lifecycle.births_ES[members[at], s]
            keys = self._keys(members[at], "slot", self.slots[s], "birth", birth_N)
            self.network.bank(int(s), int(k)).draw(keys, self._index(members[at]))
            self.trainer.clear_rows((int(s), int(k)), self._index(members[at]))
            # A gate is reborn with every seed, whatever its style: a dead one must not stay beside.
            if int(s) in self.network.gates or (styles[at] == BlendStyle.GATE).any():
                index = self._index(members[at])
                self.network.gate(int(s)).draw(keys, index)
                self.trainer.clear_rows((int(s), GATE_KEY), index)

    # ---- what it costs --------------------------------------------------------------------

    def slot_reports(self) -> SlotReports:
        """What stands in every slot of every member."""
        life = self.lifecycle
        return SlotReports(
            slot_ids=self.slots,
            blueprints=self.blueprints,
            stage_ES=life.stage_ES.copy(),
            blueprint_ES=life.blueprint_ES.copy(),
            style_ES=life.style_ES.copy(),
            alpha_ES=life.alpha_ES.copy(),
            alpha_target_ES=life.target_ES.copy(),
            alpha_mode_ES=life.mode_ES.copy(),
            ramp_steps_left_ES=life.ramp_steps_left(),
            steps_in_stage_ES=life.steps_in_stage_ES.copy(),
            age_ES=life.age_ES.copy(),
            pruning_ES=life.pruning_ES.copy(),
            cooldown_left_ES=life.cooldown_left(),
            params_ES=self._per_seed(self._seed_params),
            macs_ES=self._per_seed(self._macs_of),
            contribution_ES=life.signals.contribution_ES.copy(),
            contribution_se_ES=life.signals.contribution_se_ES.copy(),
        )

    def parameters_E(self) -> Ints:
        """Parameters of each member as it would be exported now: host and blended seeds."""
        blended = np.where(self.lifecycle.alpha_ES > 0, self._per_seed(self._seed_params), 0)
        return np.asarray(self.network.host.parameters_per_member + blended.sum(axis=1))

    def macs_E(self) -> Ints:
        """Multiply-accumulates per sample of each member as it would be exported now."""
        if self.probe is None:
            raise EsperError("MACs are known after the first batch: the input's size decides them")
        blended = np.where(self.lifecycle.alpha_ES > 0, self._per_seed(self._macs_of), 0)
        return np.asarray(self.probe.host_macs + blended.sum(axis=1))

    def _seed_params(self, slot: int, blueprint: int, gated: bool) -> int:
        gate = self.network.gate(slot).parameters_per_member if gated else 0
        return self.network.bank(slot, blueprint).parameters_per_member + gate

    def _macs_of(self, slot: int, blueprint: int, gated: bool) -> int:
        """0 until an input has been seen; a gate has element-wise work only."""
        if self.probe is None:
            return 0
        if (slot, blueprint) not in self._seed_macs:
            shapes = self.probe.slot_shapes
            self._seed_macs[slot, blueprint] = probe_seed(self.network, shapes, slot, blueprint)
        return self._seed_macs[slot, blueprint]

    def _per_seed(self, count: Callable[[int, int, bool], int]) -> Ints:
        """`[E, S]`: a count of the seed that stands there, 0 where none does."""
        life = self.lifecycle
        gated_ES = life.style_ES == BlendStyle.GATE
        out = np.zeros_like(life.blueprint_ES)
        for s, k in self.network.banks:
            here = life.blueprint_ES[:, s] == k
            for gated in (False, True):
                rows = here & (gated_ES[:, s] == gated)
                if rows.any():
                    out[rows, s] = count(s, k, gated)
        return np.where(life.blueprint_ES == NO_BLUEPRINT, 0, out)


def _row_targets(target: Tensor, plan: RowPlan) -> Tensor:
    """The targets of each row, from `[E, B, ...]` or `[1, B, ...]`."""
    if target.shape[0] == 1:
        return target.expand(plan.table.rows, *target.shape[1:])
    return target if plan.member_R is None else target.index_select(0, plan.member_R)
