"""Parameter groups, gradient clipping and optimiser steps of a population.

Every parameter belongs to exactly one group: the host's to HOST; a seed's to SEED, FOSSIL or FROZEN
depending on its stage; rows without a seed to FROZEN.

Shape letters: E members, S slots.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache, partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from esper.device.branches import Branches
from esper.device.packing import PackedArrays
from esper.kasmina.lifecycle.lifecycle import Lifecycle
from esper.kasmina.ops.kernel_scope import kernel_scope
from esper.kasmina.rows.plan_layout import RowShape
from esper.kasmina.rows.rows import RowPlan, TrainMasks
from esper.kasmina.stacked.network import StackedNetwork
from esper.kasmina.stacked.store import ParameterStore
from esper.kasmina.training.optim import OptimConfig, StackedOptimizer, gradient_norm
from esper.kasmina.training.scaling import MemberScaler
from esper.leyline.actions import BlendStyle
from esper.leyline.arrays import Bools, Codes, Floats, Ints
from esper.leyline.errors import EsperError
from esper.leyline.signals import NO_BLUEPRINT
from esper.leyline.stages import SeedStage

HOST_KEY = "host"
GATE_KEY = "blend_gate"
"""Optimiser keys: HOST_KEY, (slot, blueprint) for a bank, (slot, GATE_KEY) for gates."""


class ParameterGroup(IntEnum):
    """How a parameter is trained."""

    FROZEN = 0
    """Not trained."""
    HOST = 1
    """At the host's learning rate."""
    SEED = 2
    """At the seed's learning rate."""
    FOSSIL = 3
    """Permanent or planted seed, at the host's learning rate; keeps its optimiser state."""


_GROUP_OF_STAGE = np.array(
    [
        {
            SeedStage.TRAINING: ParameterGroup.SEED,
            SeedStage.BLENDING: ParameterGroup.SEED,
            SeedStage.HOLDING: ParameterGroup.SEED,
            SeedStage.FOSSILIZED: ParameterGroup.FOSSIL,
            SeedStage.PLANTED: ParameterGroup.FOSSIL,
        }.get(stage, ParameterGroup.FROZEN)
        for stage in SeedStage
    ],
    dtype=np.int8,
)
_FROZEN, _FOSSIL = int(ParameterGroup.FROZEN), int(ParameterGroup.FOSSIL)


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """Results of one train batch; device tensors, not synchronised. NaN: does not apply."""

    loss_E: Tensor
    """Loss of the main rows."""
    correct_E: Tensor
    """Correct predictions of the main rows."""
    shadow_loss_ES: Tensor
    """Loss with the seed of that slot enabled, while it is in TRAINING."""
    host_grad_norm_E: Tensor
    """Before clipping."""
    grad_norm_ES: Tensor
    """Before clipping; only for seeds that train."""


@dataclass(frozen=True, slots=True)
class _SlotUpdate:
    """Rows of one bank (or gate bank) that train."""

    key: Hashable
    store: ParameterStore
    slot: int
    active_E: Tensor
    fossil_E: Tensor


class Trainer:
    """Applies gradients to the host and every bank."""

    def __init__(self, network: StackedNetwork, life: Lifecycle, config: OptimConfig) -> None:
        self.network = network
        self.life = life
        self.host_optimizer = StackedOptimizer(config)
        self.seed_optimizer = StackedOptimizer(config)
        self.weight_norm_rates = False
        """Multiply a seed's rate by its RMS weight relative to the host's."""
        self.active_E: Tensor | None = None
        """Members that train; None: all."""
        self._active_buffer: Tensor | None = None
        zeros_E = np.zeros(network.members, dtype=np.float32)
        self._rates = PackedArrays({"host": zeros_E, "seed": zeros_E}, network.device)
        self.host_lr_E, self.seed_lr_E = self._rates.tensors["host"], self._rates.tensors["seed"]

    def set_rates(self, host_lr: npt.ArrayLike, seed_lr: npt.ArrayLike) -> None:
        """Set the learning rates, `[E]` or one for all."""
        # In place: captured graphs use these addresses.
        self._rates.fill(
            {"host": self._checked("host_lr", host_lr), "seed": self._checked("seed_lr", seed_lr)}
        )

    def _checked(self, name: str, rates: npt.ArrayLike) -> Floats:
        values = np.asarray(rates, dtype=np.float32)
        if values.ndim > 1 or values.size not in (1, self.network.members):
            raise EsperError(
                f"{name} has shape {values.shape}: give one rate, or {self.network.members}"
            )
        if not np.isfinite(values).all() or (values < 0).any():
            raise EsperError(f"{name}={values.tolist()}: rates must be finite and 0 or more")
        return np.broadcast_to(values, (self.network.members,))

    def set_active(self, active_E: Tensor | None) -> None:
        """Train only these members (bool `[E]`, on the device); None: all."""
        if active_E is None:
            self.active_E = None
            return
        if self._active_buffer is None:
            self._active_buffer = torch.empty_like(active_E)
        self.active_E = self._active_buffer.copy_(active_E)

    @contextlib.contextmanager
    def leaving_inactive(self) -> Iterator[None]:
        """Compute no rows of inactive members where kernels can skip them, and undo what the body
        does to their buffers (running statistics).

        The body includes the backward pass, which may read them.
        """
        if self.active_E is None:
            yield
            return
        stores = (self.network.host, *self.network.banks.values())
        before = [(value, value.clone()) for store in stores for value in store.fixed.values()]
        with kernel_scope(active_E=self.active_E):
            yield
        for value, old in before:
            active = self.active_E.view(-1, *([1] * (value.ndim - 1)))
            value.copy_(torch.where(active, value, old))

    def begin_pass(self) -> None:
        """Before a forward pass: remove the gradients of all parameters (`store.begin_pass`)."""
        network = self.network
        for store in (network.host, *network.banks.values(), *network.gates.values()):
            store.begin_pass()

    def reset(self) -> None:
        """Reset all optimiser state, as at the start of an episode."""
        self.host_optimizer.reset()
        self.seed_optimizer.reset()

    def clear_rows(self, key: Hashable, index_N: Tensor) -> None:
        """Reset the optimiser state of new seeds."""
        self.seed_optimizer.clear_rows(key, index_N)

    def restart_rows(self, index_N: Tensor) -> None:
        """Reset the optimiser state of members, and zero their seeds, which are gone.

        Unused rows may be computed beside others; non-finite values would reach their gradients.
        """
        self.host_optimizer.clear_rows(HOST_KEY, index_N)
        for key, store, _ in self._stores():
            store.flat_EP.detach().index_fill_(0, index_N, 0.0)
            self.seed_optimizer.clear_rows(key, index_N)

    def seed_groups(self) -> Codes:
        """Return `[E, S]` the group of the seed in each slot."""
        groups = _GROUP_OF_STAGE[self.life.stage_ES]
        return np.where(self.life.pruning_ES, np.int8(_FROZEN), groups)

    def training(self) -> Bools:
        """Return `[E, S]` where a seed trains, and so has a gradient."""
        return np.asarray(self.seed_groups() != ParameterGroup.FROZEN)

    def groups(self) -> dict[tuple[str, str], Codes]:
        """Return (owner, parameter) -> group `[E]` of every parameter, for inspection."""
        host = np.full(self.network.members, ParameterGroup.HOST, dtype=np.int8)
        out = {("host", name): host for name in self.network.host.shapes}
        for key, store, slot, mine in self._seed_stores():
            owner = f"{self.network.slots[slot].slot_id}/{self._owner_name(key)}"
            group = np.where(mine, self.seed_groups()[:, slot], np.int8(ParameterGroup.FROZEN))
            out |= {(owner, name): group for name in store.shapes}
        return out

    def _owner_name(self, key: tuple[int, int | str]) -> str:
        part = key[1]
        return part if isinstance(part, str) else self.network.blueprints[part].name

    def _stores(self) -> list[tuple[tuple[int, int | str], ParameterStore, int]]:
        """Return key, store and slot of every bank and gate bank."""
        banks: list[tuple[tuple[int, int | str], ParameterStore, int]] = [
            ((s, k), store, s) for (s, k), store in self.network.banks.items()
        ]
        return banks + [((s, GATE_KEY), store, s) for s, store in self.network.gates.items()]

    def _seed_stores(self) -> list[tuple[tuple[int, int | str], ParameterStore, int, Bools]]:
        """Return key, store, slot and owning members of every bank and gate bank."""
        life = self.life
        gated_ES = (life.style_ES == BlendStyle.GATE) & life.occupied()
        found = []
        for key, store, s in self._stores():
            mine_E = gated_ES[:, s] if key[1] == GATE_KEY else life.blueprint_ES[:, s] == key[1]
            found.append((key, store, s, np.asarray(mine_E)))
        return found

    def masks(self, shape: RowShape | None = None) -> TrainMasks:
        """Return who trains in each bank: banks with any trained row, or all banks of a shape."""
        life, groups_SE = self.life, self.seed_groups().T
        if shape is None:
            banks = _banks(tuple(key for key, _, _ in self._stores()))
        else:
            banks = _banks_of(shape)
        gated_SE = ((life.style_ES == BlendStyle.GATE) & life.occupied()).T
        slot_M = banks.slot_M
        mine_ME = np.where(
            banks.gate_M1, gated_SE[slot_M], life.blueprint_ES.T[slot_M] == banks.kind_M1
        )
        group_ME = groups_SE[slot_M]
        active_ME, fossil_ME = mine_ME & (group_ME != _FROZEN), mine_ME & (group_ME == _FOSSIL)
        if shape is not None:
            return TrainMasks(banks.keys, slot_M, active_ME, fossil_ME)
        some = np.flatnonzero(active_ME.any(axis=1))
        keys = tuple(banks.keys[m] for m in some.tolist())
        return TrainMasks(keys, slot_M[some], active_ME[some], fossil_ME[some])

    def step(
        self, plan: RowPlan, loss_R: Tensor, correct_E: Tensor, scaler: MemberScaler | None = None
    ) -> TrainBatch:
        """Clip and apply the gradients of one backward pass."""
        network, slots = self.network, len(self.network.slots)
        updates = self._slot_updates(plan)
        if scaler is not None:
            self._unscale(scaler, updates)
        host_norm_E = gradient_norm(network.host)
        sound_E, retry_E = self.active_E, None
        slot_norms: dict[int, Tensor] = {}
        if scaler is not None:  # needs all norms before any update
            slot_norms = _slot_norms(updates, self.host_lr_E.device)
            overflow_E = self._overflow(host_norm_E, slot_norms, updates)
            retry_E, sound_E = scaler.recoverable(overflow_E), ~overflow_E
            if self.active_E is not None:
                sound_E = sound_E & self.active_E
            scaler.update(overflow_E, self.active_E)
        rates, found = self._bank_rates(updates), {}
        with Branches(self.host_lr_E.device) as branches:
            for slot, mine in _by_slot(updates).items():
                given = (slot_norms.get(slot), sound_E, retry_E)
                reads = (*given, *(rates[u.key] for u in mine), *_gradients(mine))
                found[slot] = branches.run(partial(self._update, mine, rates, *given), *reads)
            self.host_optimizer.step(HOST_KEY, network.host, self.host_lr_E, host_norm_E, sound_E)
            shadow_ES = self._shadow_losses(plan, loss_R)
        self._drop_seed_gradients()
        if retry_E is not None and host_norm_E is not None:
            host_norm_E = host_norm_E.masked_fill(retry_E, 0.0)
        none_E = loss_R.new_full((network.members,), torch.nan)
        norms = [none_E if norm is None else norm for norm in map(found.get, range(slots))]
        main = slice(network.members)
        return TrainBatch(
            loss_E=loss_R[main],
            correct_E=correct_E,
            shadow_loss_ES=shadow_ES,
            host_grad_norm_E=torch.zeros_like(loss_R[main]) if host_norm_E is None else host_norm_E,
            grad_norm_ES=torch.stack(norms, dim=1) if norms else none_E[:, None][:, :0],
        )

    def _update(
        self,
        updates: Sequence[_SlotUpdate],
        rates: Mapping[Hashable, Tensor],
        norm_E: Tensor | None,
        sound_E: Tensor | None,
        retry_E: Tensor | None,
    ) -> Tensor | None:
        """Update the banks of a slot; return its gradient norms, NaN where nothing trains.

        `norm_E`: norms, if known already; `retry_E`: members whose norms are no use.
        """
        if norm_E is None:
            norm_E = gradient_norm(*(update.store for update in updates))
        for update in updates:
            active_E = update.active_E if sound_E is None else update.active_E & sound_E
            self.seed_optimizer.step(update.key, update.store, rates[update.key], norm_E, active_E)
        if norm_E is None:
            return None
        norm_E = norm_E if retry_E is None else norm_E.masked_fill(retry_E, 0.0)
        trains_E = torch.stack([update.active_E for update in updates]).any(dim=0)
        return torch.where(trains_E, norm_E, torch.nan)

    def _bank_rates(self, updates: Sequence[_SlotUpdate]) -> dict[Hashable, Tensor]:
        """Return the learning rates `[E]` of each bank: fossils have the host's."""
        if not updates:
            return {}
        fossil_UE = torch.stack([update.fossil_E for update in updates])
        seeds = self.seed_lr_E
        if self.weight_norm_rates:
            seeds = torch.stack([self._seed_rates(update.store) for update in updates])
        rates_UE = torch.where(fossil_UE, self.host_lr_E, seeds)
        return dict(zip((update.key for update in updates), rates_UE, strict=True))

    def _unscale(self, scaler: MemberScaler, updates: Sequence[_SlotUpdate]) -> None:
        for store in (self.network.host, *(update.store for update in updates)):
            if store.flat_EP.grad is not None:
                scaler.unscale_(store.flat_EP.grad)

    def _overflow(
        self,
        host_norm_E: Tensor | None,
        slot_norms: dict[int, Tensor],
        updates: Sequence[_SlotUpdate],
    ) -> Tensor:
        """Return `[E]` members with a non-finite gradient among those used."""
        overflow_E = torch.zeros_like(self.host_lr_E, dtype=torch.bool)
        if host_norm_E is not None:
            overflow_E |= ~torch.isfinite(host_norm_E)
        for update in updates:
            if update.slot in slot_norms:
                overflow_E |= update.active_E & ~torch.isfinite(slot_norms[update.slot])
        return overflow_E

    def _drop_seed_gradients(self) -> None:
        """Drop the gradients of frozen seeds, so that they do not reach their successor."""
        for store in (*self.network.banks.values(), *self.network.gates.values()):
            store.flat_EP.grad = None

    def _slot_updates(self, plan: RowPlan) -> list[_SlotUpdate]:
        """Return the banks that a train batch may update."""
        return [
            _SlotUpdate(key, store, slot, *plan.masks[key])
            for key, store, slot in self._stores()
            if key in plan.masks
        ]

    def _seed_rates(self, store: ParameterStore) -> Tensor:
        with torch.no_grad():
            new, old = store.mean_square(), self.network.host.mean_square()
            return self.seed_lr_E * (new / old.clamp(min=1e-12)).sqrt()

    def _shadow_losses(self, plan: RowPlan, loss_R: Tensor) -> Tensor:
        """Return `[E, S]` the losses of shadow rows, NaN elsewhere."""
        members, slots = self.network.members, len(self.network.slots)
        shadow = loss_R.new_full((members * slots + 1,), torch.nan)  # last entry: padding rows
        if plan.shadow_index is not None:
            shadow[plan.shadow_index] = loss_R[members:]
        return shadow[:-1].view(members, slots)


def _by_slot(updates: Sequence[_SlotUpdate]) -> dict[int, list[_SlotUpdate]]:
    found: dict[int, list[_SlotUpdate]] = {}
    for update in updates:
        found.setdefault(update.slot, []).append(update)
    return found


def _gradients(updates: Sequence[_SlotUpdate]) -> list[Tensor | None]:
    return [update.store.flat_EP.grad for update in updates]


def _slot_norms(updates: Sequence[_SlotUpdate], device: torch.device) -> dict[int, Tensor]:
    """Return slot -> gradient norm `[E]` of its seed, gate included."""
    norms: dict[int, Tensor | None] = {}
    with Branches(device) as branches:
        for slot, mine in _by_slot(updates).items():
            work = partial(gradient_norm, *(update.store for update in mine))
            norms[slot] = branches.run(work, *_gradients(mine))
    return {slot: norm for slot, norm in norms.items() if norm is not None}


@dataclass(frozen=True, slots=True, eq=False)
class _Banks:
    """Keys of M banks and gate banks, and the same as arrays."""

    keys: tuple[tuple[int, int | str], ...]
    slot_M: Ints
    kind_M1: Ints
    gate_M1: Bools


def _banks(keys: tuple[tuple[int, int | str], ...]) -> _Banks:
    kinds = [NO_BLUEPRINT if isinstance(part, str) else part for _, part in keys]
    return _Banks(
        keys,
        np.array([slot for slot, _ in keys], dtype=np.int64),
        np.array(kinds, dtype=np.int64)[:, None],
        np.array([part == GATE_KEY for _, part in keys], dtype=np.bool_)[:, None],
    )


@lru_cache(maxsize=256)
def _banks_of(shape: RowShape) -> _Banks:
    """Return the banks and gate banks that plans of a shape may have rows of."""
    keys: list[tuple[int, int | str]] = list(shape.group_of)
    for slot, groups in enumerate(shape.groups_S):
        if any(BlendStyle.GATE in group.present for group in groups):
            keys.append((slot, GATE_KEY))
    return _banks(tuple(keys))
