"""Population of E members that train and grow in parallel, with stacked parameters.

    population = Population(CNNHost, ["r0c0", "r0c1"], ["conv_light"], members=8, seed=0)
    population.germinate([0, 3], "r0c1", "conv_light")
    population.begin_step()
    for x_EB, y_EB in batches:
        stats = population.train_batch(x_EB, y_EB)
    population.end_step(signals)

None of this loops over members in Python (with the vmap executor) or synchronises the device. A row
is one forward pass of one member with chosen alphas (rows.py).

Shape letters: E members, R rows, S slots, B batch, K blueprints.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from esper.device.branches import Branches
from esper.device.rng import derive_keys
from esper.device.selection import parse_device
from esper.device.shards import shards_for
from esper.device.streams import any_stream
from esper.device.upload import upload
from esper.kasmina.costs.probe import (
    HostProbe,
    probe_host,
    probe_seed,
    runs_channels_last,
    trace_shapes,
)
from esper.kasmina.costs.seed_costs import SeedSizes
from esper.kasmina.costs.slot_reporter import SlotReporter
from esper.kasmina.executors.base import check_input, check_tensor
from esper.kasmina.executors.choice import ExecutorChoice, choose_executor, seed_vmap_failure
from esper.kasmina.export.member import MorphogeneticModel
from esper.kasmina.layers.random_layers import row_keys
from esper.kasmina.lifecycle.arguments import IntLike, as_integers
from esper.kasmina.lifecycle.lifecycle import Lifecycle
from esper.kasmina.rows.padding import PlanBufferCache
from esper.kasmina.rows.rows import (
    RowPlan,
    RowTable,
    make_plan,
    member_rows,
    training_rows,
    whole_rows,
)
from esper.kasmina.saving.population_config import PopulationConfig as PopulationConfig
from esper.kasmina.saving.saving import load_population, save_population
from esper.kasmina.stacked.network import StackedNetwork
from esper.kasmina.training.losses import (
    RowLoss,
    check_labels,
    count_correct,
    cross_entropy,
    row_targets,
    scaled_loss,
)
from esper.kasmina.training.scaling import MemberScaler
from esper.kasmina.training.seed_draws import draw_seeds
from esper.kasmina.training.training import TrainBatch, Trainer
from esper.leyline.actions import ALPHA_SPEEDS, TEMPOS, AlphaCurve, BlendStyle
from esper.leyline.arrays import Floats, Ints
from esper.leyline.compute import ExecutorName
from esper.leyline.errors import EsperError, unknown_name
from esper.leyline.limits import MAX_MEMBERS, require_at_most
from esper.leyline.seeds import require_seed
from esper.leyline.signals import GateSignals, SlotReports
from esper.leyline.stages import SeedStage
from esper.leyline.streams import UInt64Array, stream_keys, text_number

logger = logging.getLogger(__name__)

InputKey = tuple[torch.Size, torch.dtype]
"""Shape and dtype of one sample, which determine the shapes of all activations."""

COUNTING_LANE: Final = 4
"""Lane of the branch that counts correct predictions, beside the update."""


@dataclass(frozen=True, slots=True)
class _EvalBatch:
    """Results of one validation batch per row; device tensors, not synchronised."""

    loss_R: Tensor
    correct_R: Tensor
    """Number of correct predictions, to be divided by the number of targets."""


class Population:
    """E hosts of one architecture, their slots and the seeds in them."""

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
                raise EsperError(f"{name}={number!r}: must be an integer")
        require_at_most("members=", members, MAX_MEMBERS)
        require_seed(int(seed), "seed")
        if members < 1:
            raise EsperError(f"members={members}: a population needs at least 1")
        self.config = config or PopulationConfig()
        self.seed = seed
        self.round = 0
        shards, self.device = shards_for(self.config.executor, parse_device(device))
        self.loss = loss
        self.count_correct: RowLoss = count_correct
        """Correct predictions of each row, for the train accuracy."""
        self.network = StackedNetwork(host_factory, slots, blueprints, members, self.device, shards)
        self.lifecycle = Lifecycle(members, self.slots, self.network.fits_SK, self.config.lifecycle)
        self.choice: ExecutorChoice | None = None
        """Executor and the reason for it; set by the first input."""
        self.trainer = Trainer(self.network, self.lifecycle, self.config.optim)
        self.trainer.weight_norm_rates = self.config.seed_lr_scaling == "weight_norm"
        self.set_rates(self.config.host_lr, self.config.seed_lr)
        self.probe: HostProbe | None = None
        self._output_shapes: dict[InputKey, tuple[int, ...]] = {}
        """Inputs probed so far -> output shape of one sample."""
        self.passes_E = torch.zeros(members, dtype=torch.int64, device=self.device)
        """Training passes in this episode; random layers draw new numbers in each."""
        self.member_ids: Ints = np.arange(members, dtype=np.int64)
        """Member numbers in the names of random streams; members with the same one start alike."""
        self._plans: dict[tuple[str, bool, bool, bool], tuple[int, RowPlan]] = {}
        self._plan_buffers = PlanBufferCache()
        self.seed_sizes = SeedSizes(self.network)
        self._reporter = SlotReporter(self.slots, self.blueprints, self.seed_sizes)
        self._draw_hosts()

    # ---- structure ------------------------------------------------------------------------

    @property
    def members(self) -> int:
        """E."""
        return self.network.members

    @property
    def slots(self) -> tuple[str, ...]:
        """Ids of the enabled slots in execution order: the order of every S axis."""
        return tuple(spec.slot_id for spec in self.network.slots)

    @property
    def blueprints(self) -> tuple[str, ...]:
        """Names of the enabled blueprints: the order of every K axis."""
        return tuple(b.name for b in self.network.blueprints)

    def member(self, index: int) -> MorphogeneticModel:
        """Return one member as a module whose parameters are views of the population's."""
        if np.ndim(index):
            raise EsperError(f"member {index!r}: give one index")
        self._members(index)
        reports = self.slot_reports()
        by_slot = {slot: reports.report(index, s) for s, slot in enumerate(self.slots)}
        host_macs = None if self.probe is None else self.probe.host_macs
        return MorphogeneticModel(self.network, index, by_slot, host_macs)

    def reset(self, round_index: int) -> None:
        """Start an episode: draw fresh hosts from the streams of that round, all slots dormant."""
        self.round = round_index
        self.passes_E.zero_()  # in place: captured graphs use this address
        self.lifecycle.reset()
        self.trainer.reset()
        self._draw_hosts()

    def _draw_hosts(self) -> None:
        everyone = np.arange(self.members)
        self.network.host.draw(self._keys(everyone, "host"), self._index(everyone))

    def _keys(self, members: Ints, *purpose: str | int | Ints) -> UInt64Array:
        names = self.member_ids[members]
        return stream_keys(self.seed, "round", self.round, "member", names, *purpose)

    def _members(self, members: npt.ArrayLike) -> Ints:
        """Validate member indices `[N]`."""
        wanted = as_integers("member", np.atleast_1d(members))
        bad = wanted[(wanted < 0) | (wanted >= self.members)]
        if bad.size:
            raise EsperError(f"member {bad[0]}: valid are 0 to {self.members - 1}")
        return wanted

    def _index(self, members: Ints) -> Tensor:
        return upload(members, self.device)

    # ---- saving ---------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the population to the folder `path`, replacing an existing save atomically."""
        save_population(self, path)

    @staticmethod
    def load(
        path: str | os.PathLike[str],
        host_factory: Callable[[], nn.Module],
        device: str | torch.device = "cpu",
        executor: ExecutorName | None = None,
        loss: RowLoss = cross_entropy,
    ) -> Population:
        """Load a population; training continues exactly as if it had not been interrupted.

        Factory and loss are code and not saved: pass the original ones. `executor` overrides the
        saved setting.
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
        """Return outputs `[R, B, ...]` of rows: members (default: all), each with its alphas.

        `x` is `[E, B, ...]`, or `[1, B, ...]` shared by all. Without `alpha_RS` the current alphas
        are used. A `RowTable` gives full control; a `RowPlan` is a precompiled one.
        """
        return self._run(x, self._plan_for(rows, alpha_RS), training)

    def evaluate(
        self,
        x: Tensor,
        target: Tensor,
        rows: npt.ArrayLike | RowTable | RowPlan | None = None,
        alpha_RS: npt.ArrayLike | None = None,
    ) -> _EvalBatch:
        """Return loss and correct predictions of rows on a batch, in eval mode."""
        with torch.no_grad():
            plan = self._plan_for(rows, alpha_RS)
            self._check_batch(x, target)
            logits = self._run(x, plan, training=False)
            target_R = row_targets(target, plan.member_R, plan.table.rows)
            return _EvalBatch(self.loss(logits, target_R), self.count_correct(logits, target_R))

    def train_batch(
        self, x: Tensor, target: Tensor, scaler: MemberScaler | None = None
    ) -> TrainBatch:
        """Train all members on one batch: hosts on main rows, seeds in TRAINING on shadow rows.

        `scaler`: loss scaler for fp16 under autocast.
        """
        return self.train_rows(self.train_plan(), x, target, scaler)

    def train_rows(
        self, plan: RowPlan, x: Tensor, target: Tensor, scaler: MemberScaler | None = None
    ) -> TrainBatch:
        """Train on one batch with a `train_plan`; does not read the lifecycle."""
        self._check_batch(x, target)
        with self.trainer.leaving_inactive(), any_stream():
            self.trainer.begin_pass()  # gradients may be left by the caller or by a failed batch
            target_R = row_targets(target, plan.member_R, plan.table.rows)
            scale_R = None if scaler is None else scaler.scales(plan.member_R)
            objective = partial(scaled_loss, self.loss, target_R, scale_R)
            assert self.choice is not None, "set by _check_batch"
            logits, loss_R = self.choice.executor.train(
                self.network, x, plan, objective, self._pass_keys(plan)
            )
        main = slice(self.members)
        given = logits[main], target_R[main]
        with Branches(self.device, COUNTING_LANE) as branches:
            correct_E = branches.run(partial(self.count_correct, *given), *given)
            return self.trainer.step(plan, loss_R, correct_E, scaler)

    def set_active(self, active_E: Tensor | None) -> None:
        """Train only the members of the mask from now on; None: all.

        The others keep parameters, moments, buffers and random streams. The mask is copied to a
        fixed address, so that it may change between replays of a captured graph.
        """
        self.trainer.set_active(active_E)

    def set_rates(self, host_lr: npt.ArrayLike, seed_lr: npt.ArrayLike) -> None:
        """Set the learning rates, one for all members or one each."""
        self.trainer.set_rates(host_lr, seed_lr)

    def train_plan(self, padded: bool = False) -> RowPlan:
        """Return the row plan of a train batch, valid until a stage or an alpha changes.

        `padded`: use static buffers, as captured graphs need (`padding.py`).
        """
        return self._cached_plan("train", training_rows, padded)

    def member_plan(self, padded: bool = False) -> RowPlan:
        """Return the plan with one row per member, valid until a stage or an alpha changes."""
        return self._cached_plan("members", member_rows, padded)

    def plan_rows(self, table: RowTable, padded: bool = False) -> RowPlan:
        """Compile a table; with `padded`, the previous padded plan becomes invalid."""
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
        """Return the cached plan of a standard table, rebuilt after a stage or an alpha changed."""
        key = (name, padded, self._loops, self.network.may_draw)
        version, plan = self._plans.get(key, (-1, None))
        if plan is None or version != self.lifecycle.version:
            plan = self._make_plan(name, rows(self.lifecycle), padded)
            self._plans[key] = (self.lifecycle.version, plan)
        return plan

    def _make_plan(self, name: str, table: RowTable, padded: bool) -> RowPlan:
        training, detach = name == "train", self.config.detach_seed_input
        find = self._plan_buffers.find_exact if self._loops else self._plan_buffers.find
        buffers = find(name, table, self.lifecycle, training, detach) if padded else None
        masks = self.trainer.masks(None if buffers is None else buffers.shape) if training else None
        keys = self._plan_keys if training else None
        return make_plan(table, self.lifecycle, self.device, detach, masks, buffers, keys)

    @property
    def _loops(self) -> bool:
        """Whether the loop executor was chosen, or the sharded one, which loops too."""
        return self.choice is not None and self.choice.executor.name != "vmap"

    def _plan_keys(self, table: RowTable) -> Ints:
        """Keys for a train plan, which has room for them; 0 while nothing draws."""
        draws = self.network.may_draw
        return self._row_keys(table) if draws else np.zeros(table.rows, dtype=np.int64)

    def _row_keys(self, table: RowTable) -> Ints:
        return row_keys(self.seed, self.round, table, self.member_ids)

    def _run(self, x: Tensor, plan: RowPlan, training: bool) -> Tensor:
        self._probe_input(x)
        assert self.choice is not None, "set by _probe_input"
        key_R = self._pass_keys(plan) if training else None
        return self.choice.executor.run(self.network, x, plan, training, key_R)

    def _pass_keys(self, plan: RowPlan) -> Tensor | None:
        """Count a training pass; return its random stream keys, if any part is random."""
        key_R = None
        if self.network.draws:
            base_R = plan.key_R
            if base_R is None:  # not a train batch: nothing is captured
                base_R = upload(self._row_keys(plan.table), self.device)
            pass_R = self.passes_E
            if plan.member_R is not None:
                pass_R = pass_R.index_select(0, plan.member_R)
            key_R = derive_keys(base_R, pass_R)
        active_E = self.trainer.active_E
        self.passes_E.add_(1 if active_E is None else active_E)
        return key_R

    def _probe_input(self, x: Tensor) -> tuple[int, ...]:
        """Probe inputs of a new shape or dtype before computing; return the output shape.

        The first input also verifies the host's chain, finds random layers and picks the executor.
        """
        check_input(self.network, x)
        key = x.shape[2:], x.dtype
        if key not in self._output_shapes:
            trace = trace_shapes(self.network, x[0])
            probe = self.probe or probe_host(self.network, x[0], trace)
            for slot, kind in self._banks_in_use():
                template = self.network.bank(slot, kind).template
                probe_seed(self.network, template, trace.slot_shapes[slot], slot, kind)
            if self.network.sites is None:
                self.network.find_sites(torch.cat([x[0, :1], x[0, -1:]]))  # norms need two
            ends = torch.cat([x[0, :1], x[0, -1:]])
            self.network.layout_trial = partial(runs_channels_last, x=ends)
            if self.network.shards is not None:
                _ = self.network.any_layout  # tried while the template has values
            self.network.host.release_template()
            self.choice = self.choice or self._choose_executor(x)
            self.probe = probe
            self._output_shapes[key] = tuple(trace.output.shape[1:])
        return self._output_shapes[key]

    def _choose_executor(self, x: Tensor) -> ExecutorChoice:
        with torch.enable_grad():
            choice = choose_executor(self.config.executor, self.network, self.lifecycle, x)
        if self.config.executor == "auto" and choice.executor.name == "loop":
            logger.warning("executor loop, member by member: %s", choice.reason)
        return choice

    def _banks_in_use(self) -> list[tuple[int, int]]:
        """Return the (slot, blueprint) pairs that hold any seed."""
        kinds_ES = self.lifecycle.blueprint_ES
        return [(s, k) for s, k in self.network.banks if (kinds_ES[:, s] == k).any()]

    def _check_batch(self, x: Tensor, target: Tensor) -> None:
        """Raise if the targets do not match the inputs, before computing anything."""
        first = not self._output_shapes
        output_shape = self._probe_input(x)
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
        """Call before the train batches of a step: starts training of new seeds, moves ramps."""
        self.lifecycle.begin_step()

    def end_step(self, signals: GateSignals) -> None:
        """Call after the validation of a step: updates counters, cooldowns and gates."""
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
        """Germinate a fresh seed in a dormant slot of each member."""
        members, slots, kinds = self._seed_indices(members, slot, blueprint)
        styles = np.broadcast_to(np.asarray(style), members.shape)
        choices = (kinds, styles, tempo, alpha_target, curve)
        at = self.lifecycle.check_germinate(members, slots, *choices)
        for pair in np.unique(slots * len(self.blueprints) + kinds):
            self._allocate_bank(*divmod(int(pair), len(self.blueprints)))
        self.lifecycle.apply_germinate(at, *choices)
        self._draw_seeds(members, slots, kinds, styles)

    def plant(
        self,
        members: IntLike,
        slot: int | str | Ints,
        blueprint: int | str | Ints,
        style: IntLike = BlendStyle.ADD,
        prunable: bool = False,
    ) -> None:
        """Add a seed to the network at the start of an episode, as in a static one.

        `prunable`: it may be pruned later; otherwise it is permanent.
        """
        self.germinate(members, slot, blueprint, style)
        stage = SeedStage.PLANTED if prunable else SeedStage.FOSSILIZED
        self.lifecycle.make_static(members, self._slot(slot), stage)

    def advance(self, members: IntLike, slot: int | str | Ints) -> None:
        """Advance seeds to the next stage; the gate must pass."""
        self.lifecycle.advance(members, self._slot(slot))

    def set_alpha_target(
        self,
        members: IntLike,
        slot: int | str | Ints,
        target: float | Floats,
        speed: IntLike = ALPHA_SPEEDS[1],
        curve: IntLike = AlphaCurve.LINEAR,
    ) -> None:
        """Start an alpha ramp of blended seeds to a new target."""
        self.lifecycle.set_alpha_target(members, self._slot(slot), target, speed, curve)

    def prune(
        self,
        members: IntLike,
        slot: int | str | Ints,
        speed: IntLike = 0,
        curve: IntLike = AlphaCurve.LINEAR,
    ) -> None:
        """Remove seeds; blended ones ramp down over `speed` steps first."""
        self.lifecycle.prune(members, self._slot(slot), speed, curve)

    def fossilize(self, members: IntLike, slot: int | str | Ints) -> None:
        """Make seeds permanent."""
        self.lifecycle.fossilize(members, self._slot(slot))

    def restart(self, members: IntLike) -> None:
        """Begin members anew: a fresh host, empty slots, no moments; all others stay as they are.

        The k-th restart of a member draws from the stream of (seed, round, member, k).
        """
        e = self.lifecycle.restart(members)
        index_N = self._index(e)
        keys = self._keys(e, "host", "restart", self.lifecycle.restarts_E[e])
        self.network.host.draw(keys, index_N)
        self.trainer.restart_rows(index_N)

    def _allocate_bank(self, slot: int, kind: int) -> None:
        """Allocate a bank at its first use, after checking that its seeds can be computed."""
        fresh = (slot, kind) not in self.network.banks
        self.network.bank(slot, kind)
        try:
            if fresh:
                self._require_vmap(slot, kind)
            self.seed_sizes.macs(slot, kind, self.probe)  # runs it at its slot's actual size
        except EsperError:
            if fresh:
                del self.network.banks[slot, kind]
            raise

    def check_user_blueprints(self) -> None:
        """Run every user blueprint in every slot it fits; raises if one fails.

        Germination checks this too, but in a run that may be hours later.
        """
        for slot, kind in np.argwhere(self.network.fits_SK).tolist():
            new = (slot, kind) not in self.network.banks
            if new and not self.network.blueprints[kind].built_in:
                self._allocate_bank(slot, kind)
                del self.network.banks[slot, kind]

    def _require_vmap(self, slot: int, kind: int) -> None:
        running = self.choice.executor.name if self.choice else self.config.executor
        vmaps = running in ("auto", "vmap")
        problem = seed_vmap_failure(self.network, slot, kind) if vmaps else None
        if problem is not None:
            raise EsperError(
                f"blueprint {self.blueprints[kind]!r} cannot be vmapped ({problem}): "
                f"use executor 'loop'"
            )

    def _slot(self, slot: int | str | Ints) -> int | Ints:
        return self.network.slot_index(slot) if isinstance(slot, int | str) else slot

    def _seed_indices(
        self, members: IntLike, slot: int | str | Ints, blueprint: int | str | Ints
    ) -> tuple[Ints, Ints, Ints]:
        """Return index arrays `[N]` of members, slots and blueprints; raises on a misfit."""
        kinds: npt.ArrayLike = blueprint
        if isinstance(blueprint, str):
            if blueprint not in self.blueprints:
                raise unknown_name("blueprint", blueprint, self.blueprints, "in this population")
            kinds = self.blueprints.index(blueprint)
        places = np.broadcast_arrays(self._members(members), self._slot(slot), kinds)
        if not self.network.all_fit(places[1], places[2]):
            for s, k in np.unique(np.stack(places[1:]), axis=1).T:
                self.network.check_fit(int(s), int(k))
        return places[0], places[1], places[2]

    def _draw_seeds(
        self, members: Ints, slots: Ints, kinds: Ints, styles: npt.NDArray[np.generic]
    ) -> None:
        """Initialise new seeds from the streams of (seed, round, member, slot, birth)."""
        names_S = np.array([text_number(slot) for slot in self.slots])
        birth_N = self.lifecycle.births_ES[members, slots]
        keys = self._keys(members, "slot", names_S[slots], "birth", birth_N)
        draw_seeds(self.network, self.trainer, keys, members, slots, kinds, styles)

    # ---- costs ----------------------------------------------------------------------------

    def slot_reports(self) -> SlotReports:
        """Return the state of every slot of every member; read-only."""
        return self._reporter.reports(self.lifecycle, self.probe)

    def parameters_E(self) -> Ints:
        """Parameter count `[E]` of each member's export: host and blended seeds."""
        blended = np.where(self.lifecycle.alpha_ES > 0, self.slot_reports().params_ES, 0)
        return np.asarray(self.network.host.parameters_per_member + blended.sum(axis=1))

    def macs_E(self) -> Ints:
        """Multiply-accumulates per sample `[E]` of each member's export."""
        if self.probe is None:
            raise EsperError("MACs are known after the first batch: they depend on the input size")
        blended = np.where(self.lifecycle.alpha_ES > 0, self.slot_reports().macs_ES, 0)
        return np.asarray(self.probe.host_macs + blended.sum(axis=1))
