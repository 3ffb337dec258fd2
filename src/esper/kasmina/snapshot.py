"""Snapshots of members to roll back to, kept on the device.

A member's snapshot holds its host and its permanent and planted seeds (parameters, buffers, gates,
optimiser state) and the lifecycle arrays of these seeds. Live seeds are not included: a rollback
removes them, and undoes fossilisations and prunes of planted seeds after the snapshot. Counters are
not rolled back: births (so that the next seed is a new one), ages, and cooldowns.

Shape letters: E members, S slots, N members chosen.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from esper.device.upload import upload
from esper.kasmina.population import Population
from esper.kasmina.stacked.store import ParameterStore
from esper.kasmina.training.training import StoreRef
from esper.leyline.actions import BlendStyle
from esper.leyline.arrays import Bools, Ints
from esper.leyline.errors import EsperError
from esper.leyline.stage_masks import IS_LIVE, stage_mask
from esper.leyline.stages import STATIC_STAGES, SeedStage

_STATIC: Final = stage_mask(STATIC_STAGES)
_CLOCKS: Final = ("births_ES", "age_ES", "steps_in_stage_ES")
"""Lifecycle arrays that are not restored."""

Arrays = dict[str, npt.NDArray[np.generic]]


def _owners_E(ref: StoreRef, permanent_ES: Bools, arrays: Arrays) -> Bools:
    """Return the members with a permanent seed in a store (all, for the host)."""
    if ref.slot is None:
        return np.ones(len(permanent_ES), dtype=np.bool_)
    if ref.blueprint is None:
        here = arrays["style_ES"][:, ref.slot] == BlendStyle.GATE
    else:
        here = arrays["blueprint_ES"][:, ref.slot] == ref.blueprint
    return np.asarray(permanent_ES[:, ref.slot] & here)


@dataclass(slots=True)
class _StoreCopy:
    """Saved rows of one store; 0 for members without a snapshot."""

    values_EP: Tensor
    fixed: dict[str, Tensor]
    moments: dict[str, Tensor] = field(default_factory=dict)
    """Empty if the optimiser had taken no step, which is equivalent to zeros."""

    @classmethod
    def zeros(cls, store: ParameterStore) -> _StoreCopy:
        """Allocate a copy for a store."""
        fixed = {name: torch.zeros_like(value) for name, value in store.fixed.items()}
        return cls(torch.zeros_like(store.flat_EP.detach()), fixed)

    def take(self, ref: StoreRef, index_N: Tensor) -> None:
        """Copy rows from the store."""
        _copy_rows(self.values_EP, ref.store.flat_EP.detach(), index_N)
        for name, value in ref.store.fixed.items():
            _copy_rows(self.fixed[name], value, index_N)
        current = ref.state
        for name, value in current.items():
            if name not in self.moments:
                self.moments[name] = torch.zeros_like(value)
            _copy_rows(self.moments[name], value, index_N)
        for name in self.moments.keys() - current.keys():
            self.moments[name].index_fill_(0, index_N, 0)

    def restore(self, ref: StoreRef, index_N: Tensor) -> None:
        """Copy rows back into the store."""
        _copy_rows(ref.store.flat_EP.detach(), self.values_EP, index_N)
        for name, value in ref.store.fixed.items():
            _copy_rows(value, self.fixed[name], index_N)
        if not self.moments:
            ref.optimizer.clear_rows(ref.key, index_N)
            return
        current = ref.optimizer.moments(ref.key, ref.store.flat_EP.detach())
        for name, value in current.items():
            _copy_rows(value, self.moments[name], index_N)


def _copy_rows(into: Tensor, source: Tensor, index_N: Tensor) -> None:
    into.index_copy_(0, index_N, source.index_select(0, index_N))


class MemberSnapshots:
    """The latest snapshot of every member of a population."""

    def __init__(self, population: Population) -> None:
        self.population = population
        self.clear()

    def clear(self) -> None:
        """Discard all snapshots."""
        shape = self.population.lifecycle.stage_ES.shape
        self.taken_E: Bools = np.zeros(shape[0], dtype=np.bool_)
        """Members that have a snapshot."""
        self.permanent_ES: Bools = np.zeros(shape, dtype=np.bool_)
        """Seeds included in it."""
        self._arrays: Arrays = {name: now.copy() for name, now in self._arrays_now().items()}
        self._copies: dict[str, _StoreCopy] = {}
        """By name of the store; banks are added when they hold a permanent seed."""

    def take(self, mask_E: Bools) -> None:
        """Take a new snapshot of the masked members, replacing their last one."""
        if not mask_E.any():
            return
        life = self.population.lifecycle
        self.taken_E |= mask_E
        self.permanent_ES[mask_E] = _STATIC[life.stage_ES[mask_E]]
        for name, now in self._arrays_now().items():
            self._arrays[name][mask_E] = now[mask_E]
        for ref in self.population.trainer.stores():
            rows_E = mask_E & _owners_E(ref, self.permanent_ES, self._arrays)
            if rows_E.any():
                if ref.name not in self._copies:
                    self._copies[ref.name] = _StoreCopy.zeros(ref.store)
                self._copies[ref.name].take(ref, self._index(rows_E))

    def restore(self, mask_E: Bools) -> Ints:
        """Restore the masked members; return `[E]` the number of live seeds removed.

        Other members are unchanged. Call between steps, so that removed seeds get the full
        cooldown.
        """
        if not mask_E.any():
            return np.zeros(len(mask_E), dtype=np.int64)
        if (mask_E & ~self.taken_E).any():
            member = int(np.flatnonzero(mask_E & ~self.taken_E)[0])
            raise EsperError(f"member {member} has no snapshot to restore: take one first")
        uprooted_ES = self._restore_lifecycle(mask_E)
        all_gone = self._index(mask_E)  # of most banks: one upload for them
        for ref in self.population.trainer.stores():
            kept_E = mask_E & _owners_E(ref, self.permanent_ES, self._arrays)
            gone_E = mask_E & ~kept_E
            if kept_E.any():
                self._copies[ref.name].restore(ref, self._index(kept_E))
            if gone_E.any():
                # Unused rows may still be computed beside others (a gate, for seeds of another
                # style), and
                # non-finite values in them would turn up in gradients.
                gone = all_gone if np.array_equal(gone_E, mask_E) else self._index(gone_E)
                ref.store.flat_EP.detach().index_fill_(0, gone, 0.0)
                ref.optimizer.clear_rows(ref.key, gone)
        return np.asarray(uprooted_ES.sum(axis=1), dtype=np.int64)

    def _restore_lifecycle(self, mask_E: Bools) -> Bools:
        """Remove seeds that are not in the snapshots, restore the others; return the former."""
        life = self.population.lifecycle
        kept_ES = mask_E[:, None] & self.permanent_ES
        permanent_ES = life.stage_ES == SeedStage.FOSSILIZED
        # An undone fossilisation makes the seed HOLDING again, so that it is removed with the
        # others.
        life.stage_ES[mask_E[:, None] & permanent_ES & ~kept_ES] = SeedStage.HOLDING
        uprooted_ES = mask_E[:, None] & ~kept_ES & IS_LIVE[life.stage_ES]
        life.force_remove(uprooted_ES)
        for name, now in life.arrays().items():
            if name in vars(life) and name in self._arrays:
                now[kept_ES] = self._arrays[name][kept_ES]
        signals = {  # copies: the old arrays may have been returned to callers
            f.name: np.where(kept_ES, self._arrays[f.name], getattr(life.signals, f.name))
            for f in fields(life.signals)
            if f.name in self._arrays
        }
        life.signals = replace(life.signals, **signals)
        life.version += 1
        return np.asarray(uprooted_ES)

    def _arrays_now(self) -> Arrays:
        """Return the lifecycle arrays to restore; not copies."""
        arrays = self.population.lifecycle.arrays()
        return {n: a for n, a in arrays.items() if n.endswith("_ES") and n not in _CLOCKS}

    def _index(self, mask_E: Bools) -> Tensor:
        return upload(np.flatnonzero(mask_E), self.population.device)


def finite_members(population: Population) -> Tensor:
    """Return `[E]` on the device whether all values of a snapshot would be finite; no synchronise.

    A loss can be finite despite a non-finite weight (an embedding no sample used), and such a
    member must not be snapshotted.
    """
    arrays = population.lifecycle.arrays()
    permanent_ES = _STATIC[population.lifecycle.stage_ES]
    largest, owned = [], []
    for ref in population.trainer.stores():
        owners_E = _owners_E(ref, permanent_ES, arrays)
        if not owners_E.any():
            continue
        moments = ref.state.values()
        for tensor in (ref.store.flat_EP.detach(), *ref.store.fixed.values(), *moments):
            if tensor.numel() and (tensor.is_floating_point() or tensor.is_complex()):
                each = tensor.reshape(population.members, -1)
                # One kernel; NaN and infinity show in the largest absolute value.
                largest.append(torch.linalg.vector_norm(each, torch.inf, dim=1))
                owned.append(owners_E)
    finite_E = torch.ones(population.members, dtype=torch.bool, device=population.device)
    if largest:
        others = upload(~np.stack(owned), population.device)
        finite_E = (torch.isfinite(torch.stack(largest)) | others).all(dim=0)
    return population.network.host.everywhere(finite_E)  # once: all stores are cut alike
