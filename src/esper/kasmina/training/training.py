"""Gradient clipping and optimiser steps of a population.

Hosts train at their learning rate, and so do permanent and planted seeds, which keep their
optimiser state; other seeds from TRAINING on train at theirs. Seeds that ramp down before removal
and rows without a seed are frozen.

Shape letters: E members, S slots.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

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
from esper.leyline.arrays import Bools, Floats
from esper.leyline.errors import EsperError
from esper.leyline.stage_masks import stage_mask
from esper.leyline.stages import BLENDED_STAGES, STATIC_STAGES, SeedStage

HOST_KEY = "host"
GATE_KEY = "blend_gate"
"""Optimiser keys: HOST_KEY, (slot, blueprint) for a bank, (slot, GATE_KEY) for gates."""

_TRAINS: Final = stage_mask({SeedStage.TRAINING, *BLENDED_STAGES})
_STATIC: Final = stage_mask(STATIC_STAGES)


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
class StoreRef:
    """A store of a population, and what belongs to it."""

    name: str
    """In saves."""
    key: Hashable
    """Of the optimiser's state."""
    store: ParameterStore
    optimizer: StackedOptimizer
    slot: int | None = None
    """None for the host."""
    blueprint: int | None = None
    """None for the host and for gates."""

    @property
    def state(self) -> dict[str, Tensor]:
        """The optimiser's state; empty before its first step."""
        return self.optimizer.state.get(self.key, {})


@dataclass(frozen=True, slots=True)
class _SlotUpdate:
    """Rows of one bank (or gate bank) that train."""

    key: Hashable
    store: ParameterStore
    slot: int
    active_E: Tensor
    static_E: Tensor


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
        for ref in self.stores():
            ref.store.begin_pass()

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
        for ref in self.stores():
            ref.optimizer.clear_rows(ref.key, index_N)
            if ref.slot is not None:
                ref.store.flat_EP.detach().index_fill_(0, index_N, 0.0)

    def training(self) -> Bools:
        """Return `[E, S]` where a seed trains, and so has a gradient."""
        return np.asarray(_TRAINS[self.life.stage_ES] & ~self.life.pruning_ES)

    def stores(self) -> list[StoreRef]:
        """Return the host, every bank and every gate bank."""
        network, seeds = self.network, self.seed_optimizer
        slots = [spec.slot_id for spec in network.slots]
        refs = [StoreRef("host", HOST_KEY, network.host, self.host_optimizer)]
        for (s, k), bank in network.banks.items():
            name = f"bank/{slots[s]}/{network.blueprints[k].name}"
            refs.append(StoreRef(name, (s, k), bank, seeds, s, k))
        for s, gates in network.gates.items():
            refs.append(StoreRef(f"gate/{slots[s]}", (s, GATE_KEY), gates, seeds, s))
        return refs

    def masks(self, shape: RowShape | None = None) -> TrainMasks:
        """Return who trains in each bank: banks with any trained row, or all banks of a shape."""
        life, network = self.life, self.network
        keys: list[tuple[int, int | str]]
        keys = [*network.banks, *((s, GATE_KEY) for s in network.gates)]
        if shape is not None:
            keys = _keys_of(shape)
        slot_M = np.array([slot for slot, _ in keys], dtype=np.int64)
        gated_ES = (life.style_ES == BlendStyle.GATE) & life.occupied()
        mine_ME = np.zeros((len(keys), life.members), dtype=np.bool_)
        for mine_E, (s, part) in zip(mine_ME, keys, strict=True):
            mine_E[:] = gated_ES[:, s] if part == GATE_KEY else life.blueprint_ES[:, s] == part
        active_ME = mine_ME & self.training().T[slot_M]
        static_ME = active_ME & _STATIC[life.stage_ES].T[slot_M]
        some = np.arange(len(keys)) if shape is not None else np.flatnonzero(active_ME.any(axis=1))
        known = tuple(keys[m] for m in some.tolist())
        return TrainMasks(known, slot_M[some], active_ME[some], static_ME[some])

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
        """Return the learning rates `[E]` of each bank: static seeds have the host's."""
        if not updates:
            return {}
        static_UE = torch.stack([update.static_E for update in updates])
        seeds = self.seed_lr_E
        if self.weight_norm_rates:
            seeds = torch.stack([self._seed_rates(update.store) for update in updates])
        rates_UE = torch.where(static_UE, self.host_lr_E, seeds)
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
            _SlotUpdate(ref.key, ref.store, ref.slot, *plan.masks[ref.key])
            for ref in self.stores()
            if ref.slot is not None and ref.key in plan.masks
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


def _keys_of(shape: RowShape) -> list[tuple[int, int | str]]:
    """Return the banks and gate banks that plans of a shape may have rows of."""
    keys: list[tuple[int, int | str]] = list(shape.group_of)
    for slot, groups in enumerate(shape.groups_S):
        if any(BlendStyle.GATE in group.present for group in groups):
            keys.append((slot, GATE_KEY))
    return keys
