"""What members can be set back to: the last snapshot of each, kept on the device.

A snapshot of a member holds its host and its permanent seeds (values, buffers, gates, optimiser
state) and the lifecycle facts of these seeds. Seeds on trial are in no snapshot: going back uproots
them, and undoes a fossilisation the snapshot does not know of. Clocks go on: births (so that the
next seed is a new one), ages, and the cooldown of slots that rest.

Shape letters: E members, S slots, N members chosen.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from esper.device.upload import upload
from esper.kasmina.optim import StackedOptimizer
from esper.kasmina.population import Population
from esper.kasmina.store import ParameterStore
from esper.kasmina.training import GATE_KEY, HOST_KEY
from esper.leyline.actions import BlendStyle
from esper.leyline.arrays import Bools, Ints
from esper.leyline.errors import EsperError
from esper.leyline.stages import LIVE_STAGES, SeedStage

_LIVE: Final[Bools] = np.array([stage in LIVE_STAGES for stage in SeedStage])
_CLOCKS: Final = ("births_ES", "age_ES", "steps_in_stage_ES")
"""Lifecycle arrays that are not set back."""

Facts = dict[str, npt.NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class _Place:
    """One store of a population, and whose permanent parameters are in it."""

    name: str
    key: Hashable
    store: ParameterStore
    optimizer: StackedOptimizer
    slot: int | None
    """None for the host."""
    blueprint: int | None
    """None for the host and for gates."""

    def mine_E(self, permanent_ES: Bools, facts: Mapping[str, npt.NDArray[np.generic]]) -> Bools:
        """Members with a permanent seed in this store (the host: all), by the facts given."""
        if self.slot is None:
            return np.ones(len(permanent_ES), dtype=np.bool_)
        if self.blueprint is None:
            here = facts["style_ES"][:, self.slot] == BlendStyle.GATE
        else:
            here = facts["blueprint_ES"][:, self.slot] == self.blueprint
        return np.asarray(permanent_ES[:, self.slot] & here)


def _places(population: Population) -> list[_Place]:
    """The host, every bank and every gate bank there is."""
    network, trainer = population.network, population.trainer
    seeds, slots, names = trainer.seed_optimizer, population.slots, population.blueprints
    places = [_Place("host", HOST_KEY, network.host, trainer.host_optimizer, None, None)]
    for (s, k), bank in network.banks.items():
        places.append(_Place(f"bank/{slots[s]}/{names[k]}", (s, k), bank, seeds, s, k))
    for s, gates in network.gates.items():
        places.append(_Place(f"gate/{slots[s]}", (s, GATE_KEY), gates, seeds, s, None))
    return places


@dataclass(slots=True)
class _StoreCopy:
    """Rows of one store as they were; rows no one has a snapshot in are 0."""

    values_EP: Tensor
    fixed: dict[str, Tensor]
    moments: dict[str, Tensor] = field(default_factory=dict)
    """None at all: the optimiser had taken no step, which is as good as zeros."""

    @classmethod
    def zeros(cls, store: ParameterStore) -> _StoreCopy:
        """Room for the rows of a store."""
        fixed = {name: torch.zeros_like(value) for name, value in store.fixed.items()}
        return cls(torch.zeros_like(store.flat_EP.detach()), fixed)

    def take(self, place: _Place, index_N: Tensor) -> None:
        """Copy rows out of the store."""
        _copy_rows(self.values_EP, place.store.flat_EP.detach(), index_N)
        for name, value in place.store.fixed.items():
            _copy_rows(self.fixed[name], value, index_N)
        current = place.optimizer.state.get(place.key, {})
        for name, value in current.items():
            if name not in self.moments:
                self.moments[name] = torch.zeros_like(value)
            _copy_rows(self.moments[name], value, index_N)
        for name in self.moments.keys() - current.keys():
            self.moments[name].index_fill_(0, index_N, 0)

    def restore(self, place: _Place, index_N: Tensor) -> None:
        """Copy rows back into the store."""
        _copy_rows(place.store.flat_EP.detach(), self.values_EP, index_N)
        for name, value in place.store.fixed.items():
            _copy_rows(value, self.fixed[name], index_N)
        if not self.moments:
            place.optimizer.clear_rows(place.key, index_N)
            return
        current = place.optimizer.moments(place.key, place.store.flat_EP.detach())
        for name, value in current.items():
            _copy_rows(value, self.moments[name], index_N)

    def tensors(self) -> dict[str, Tensor]:
        """Everything in it, by name; not copies."""
        fixed = {f"fixed/{name}": value for name, value in self.fixed.items()}
        moments = {f"optimizer/{name}": value for name, value in self.moments.items()}
        return {"values": self.values_EP} | fixed | moments


def _copy_rows(into: Tensor, source: Tensor, index_N: Tensor) -> None:
    into.index_copy_(0, index_N, source.index_select(0, index_N))


class MemberSnapshots:
    """The last snapshot of every member of a population."""

    def __init__(self, population: Population) -> None:
        self.population = population
        self.forget()

    def forget(self) -> None:
        """No member has a snapshot."""
        shape = self.population.lifecycle.stage_ES.shape
        self.taken_E: Bools = np.zeros(shape[0], dtype=np.bool_)
        """Members that have one."""
        self.permanent_ES: Bools = np.zeros(shape, dtype=np.bool_)
        """Seeds that are in it."""
        self._facts: Facts = {name: now.copy() for name, now in self._facts_now().items()}
        self._copies: dict[str, _StoreCopy] = {}
        """By the name of a store; banks only once a permanent seed is in them."""

    def take(self, mask_E: Bools) -> None:
        """A new snapshot of the masked members, in place of their last one."""
        if not mask_E.any():
            return
        life = self.population.lifecycle
        self.taken_E |= mask_E
        self.permanent_ES[mask_E] = life.stage_ES[mask_E] == SeedStage.FOSSILIZED
        for name, now in self._facts_now().items():
            self._facts[name][mask_E] = now[mask_E]
        for place in _places(self.population):
            rows_E = mask_E & place.mine_E(self.permanent_ES, self._facts)
            if rows_E.any():
                if place.name not in self._copies:
                    self._copies[place.name] = _StoreCopy.zeros(place.store)
                self._copies[place.name].take(place, self._index(rows_E))

    def restore(self, mask_E: Bools) -> Ints:
        """Set the masked members back; `[E]`: seeds that were uprooted for it.

        No other member is touched. Called between steps, so that removed seeds serve the full
        cooldown.
        """
        if not mask_E.any():
            return np.zeros(len(mask_E), dtype=np.int64)
        if (mask_E & ~self.taken_E).any():
            member = int(np.flatnonzero(mask_E & ~self.taken_E)[0])
            raise EsperError(f"member {member} has no snapshot to go back to: take one first")
        uprooted_ES = self._set_back_lifecycle(mask_E)
        for place in _places(self.population):
            kept_E = mask_E & place.mine_E(self.permanent_ES, self._facts)
            gone_E = mask_E & ~kept_E
            if kept_E.any():
                self._copies[place.name].restore(place, self._index(kept_E))
            if gone_E.any():
                # Rows no seed is in may still be computed beside others (a gate, for seeds of
                # another style), and what is not finite in them would come back as gradients.
                place.store.flat_EP.detach().index_fill_(0, self._index(gone_E), 0.0)
                place.optimizer.clear_rows(place.key, self._index(gone_E))
        return np.asarray(uprooted_ES.sum(axis=1), dtype=np.int64)

    def _set_back_lifecycle(self, mask_E: Bools) -> Bools:
        """Uproot what the snapshots do not hold; permanent seeds as they were. Who was uprooted."""
        life = self.population.lifecycle
        kept_ES = mask_E[:, None] & self.permanent_ES
        permanent_ES = life.stage_ES == SeedStage.FOSSILIZED
        # A fossilisation that is undone puts the seed on probation again, to go with the others.
        life.stage_ES[mask_E[:, None] & permanent_ES & ~kept_ES] = SeedStage.HOLDING
        uprooted_ES = mask_E[:, None] & ~kept_ES & _LIVE[life.stage_ES]
        life.uproot(uprooted_ES)
        for name, now in life.arrays().items():
            if name in vars(life) and name in self._facts:
                now[kept_ES] = self._facts[name][kept_ES]
        signals = {  # copies: the old arrays may have been handed out
            f.name: np.where(kept_ES, self._facts[f.name], getattr(life.signals, f.name))
            for f in fields(life.signals)
            if f.name in self._facts
        }
        life.signals = replace(life.signals, **signals)
        life.version += 1
        return np.asarray(uprooted_ES)

    def _facts_now(self) -> Facts:
        """What is known of the seeds, clocks left out; not copies."""
        arrays = self.population.lifecycle.arrays()
        return {n: a for n, a in arrays.items() if n.endswith("_ES") and n not in _CLOCKS}

    def _index(self, mask_E: Bools) -> Tensor:
        return upload(np.flatnonzero(mask_E), self.population.device)

    # ---- keeping --------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """All snapshots, by name; copies on the host."""
        out = {"taken_E": torch.from_numpy(self.taken_E.copy())}
        out["permanent_ES"] = torch.from_numpy(self.permanent_ES.copy())
        for name, fact in self._facts.items():
            out[f"facts/{name}"] = torch.from_numpy(fact.copy())
        for name, kept in self._copies.items():
            for part, tensor in kept.tensors().items():
                # SYNC: a checkpoint is written between rounds, never in a step.
                out[f"{name}/{part}"] = tensor.detach().to("cpu", copy=True)
        return out

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """The snapshots of `state`, which a population of the same kind and size gave."""
        self.forget()
        places = {place.name: place for place in _places(self.population)}
        own: dict[str, npt.NDArray[np.generic]] = {
            "taken_E": self.taken_E,
            "permanent_ES": self.permanent_ES,
        }
        own |= {f"facts/{name}": fact for name, fact in self._facts.items()}
        for name, array in own.items():
            if name not in state or tuple(state[name].shape) != array.shape:
                found = tuple(state[name].shape) if name in state else "nothing"
                raise EsperError(f"snapshot {name!r}: {found} given, expected {array.shape}")
            array[...] = state[name].numpy()
        for name in state.keys() - own.keys():
            self._load_tensor(name, state[name], places)

    def _load_tensor(self, name: str, tensor: Tensor, places: Mapping[str, _Place]) -> None:
        """One tensor of a store's copy, into its place."""
        owner = next((n for n in places if name.startswith(f"{n}/")), None)
        if owner is None:
            raise EsperError(
                f"snapshot {name!r}: this population has no such store; load the population saved "
                f"with the snapshots first"
            )
        place = places[owner]
        kept = self._copies.setdefault(owner, _StoreCopy.zeros(place.store))
        part = name.removeprefix(f"{owner}/")
        if part.startswith("optimizer/"):
            fresh = StackedOptimizer(place.optimizer.config)  # the live one stays as it is
            moments = fresh.moments(place.key, kept.values_EP)
            moment = part.removeprefix("optimizer/")
            if moment in moments:
                kept.moments[moment] = moments[moment]
        into = kept.tensors().get(part)
        if into is None or into.shape != tensor.shape or into.dtype != tensor.dtype:
            expected = "nothing" if into is None else f"{tuple(into.shape)} {into.dtype}"
            raise EsperError(
                f"snapshot {name!r}: {tuple(tensor.shape)} {tensor.dtype} given, "
                f"expected {expected}"
            )
        into.copy_(tensor)


def finite_members(population: Population) -> Tensor:
    """`[E]` on the device: whether all that a snapshot would hold is finite; nothing is waited for.

    A loss can be finite beside a weight that is not (an embedding no sample used); a snapshot of
    such a member would be no way out.
    """
    life = population.lifecycle
    permanent_ES = np.asarray(life.stage_ES == SeedStage.FOSSILIZED)
    finite_E = torch.ones(population.members, dtype=torch.bool, device=population.device)
    for place in _places(population):
        mine_E = place.mine_E(permanent_ES, life.arrays())
        if not mine_E.any():
            continue
        tensors = [place.store.flat_EP.detach(), *place.store.fixed.values()]
        tensors += place.optimizer.state.get(place.key, {}).values()
        sound_E = finite_E
        for tensor in tensors:
            each = tensor.reshape(population.members, tensor[0].numel())
            sound_E = sound_E & torch.isfinite(each).all(dim=1)
        finite_E = torch.where(upload(mine_E, population.device), sound_E, finite_E)
    return finite_E
