"""Sizes and training costs of seeds in every slot, counted on templates.

Sizes are parameters and multiply-accumulates (MACs) of a forward pass. Training costs are those of
forward and backward passes as torch computes them: a layer whose input needs no gradient computes
none, and a layer that does not train computes no weight gradient.

Shape letters: E members, S slots, K blueprints.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from esper.kasmina.costs.probe import HostProbe, probe_seed
from esper.kasmina.layers.counting import count_parameters, flop_counter
from esper.kasmina.layers.modes import in_mode
from esper.kasmina.lifecycle.caps import SeedCosts
from esper.kasmina.stacked.network import StackedNetwork
from esper.leyline.actions import BlendStyle
from esper.leyline.arrays import Bools, Codes, Doubles, Floats, Ints
from esper.leyline.signals import NO_BLUEPRINT

_Counts = dict[Hashable, int]
_KNOWN_PARAMS: _Counts = {}
_KNOWN_MACS: _Counts = {}
_KNOWN_FIELDS: _Counts = {}
_KNOWN_TRAINING: dict[Hashable, tuple[int, int, int]] = {}
"""Counts of built-in blueprints, which depend on nothing but width and activation shape."""


class SeedSizes:
    """Parameters and MACs of seeds, counted at first use."""

    def __init__(self, network: StackedNetwork) -> None:
        self.network = network
        self._params: _Counts = {}
        self._macs: _Counts = {}
        self._fields: _Counts = {}
        self._counted_with: HostProbe | None = None
        slots, blueprints = network.fits_SK.shape
        self._params_SK: Ints = np.full((slots, blueprints + 1), -1, dtype=np.int64)
        """Of the seeds that `per_slot` has counted with that probe; -1: none yet. The last column
        is that of NO_BLUEPRINT (-1)."""
        self._macs_SK: Ints = np.zeros_like(self._params_SK)
        widths = [spec.channels for spec in network.slots]
        self._gate_params_S: Ints = 2 * np.array(widths, dtype=np.int64)
        """Parameters that blend style GATE adds: a weight and a bias per channel."""

    def _cache(
        self, slot: int, blueprint: int, own: _Counts, known: _Counts
    ) -> tuple[_Counts, Hashable]:
        """The cache for counts of a seed, and its key there, without the activation's shape."""
        recipe = self.network.blueprints[blueprint]
        if recipe.built_in and not recipe.from_host:
            return known, (recipe.factory, self.network.slots[slot].channels)
        return own, (slot, blueprint)

    def params(self, slot: int, blueprint: int) -> int:
        """Parameters of a seed, without a gate."""
        cache, key = self._cache(slot, blueprint, self._params, _KNOWN_PARAMS)
        if key not in cache:
            cache[key] = count_parameters(self.network.seed_template(slot, blueprint))
        return cache[key]

    def macs(self, slot: int, blueprint: int, probe: HostProbe | None) -> int:
        """MACs of a seed per sample; 0 before the first input."""
        if probe is None:
            return 0
        shape = probe.slot_shapes[slot]
        cache, kind = self._cache(slot, blueprint, self._macs, _KNOWN_MACS)
        key = (kind, shape)
        if key not in cache:
            template = self.network.seed_template(slot, blueprint)
            cache[key] = probe_seed(self.network, template, shape, slot, blueprint)
        return cache[key]

    def per_slot(
        self, blueprint_ES: Ints, style_ES: Codes, probe: HostProbe | None
    ) -> tuple[Ints, Ints]:
        """Parameters and MACs `[E, S]` of the seed in each slot, gate included; 0 if empty."""
        held_ES = blueprint_ES != NO_BLUEPRINT
        at = (np.arange(blueprint_ES.shape[1]), blueprint_ES)
        self._count(held_ES, blueprint_ES, probe)
        gate_ES = np.where(style_ES == BlendStyle.GATE, self._gate_params_S, 0)
        params_ES = np.where(held_ES, self._params_SK[at] + gate_ES, 0)
        return params_ES, np.where(held_ES, self._macs_SK[at], 0)

    def _count(self, held_ES: Bools, blueprint_ES: Ints, probe: HostProbe | None) -> None:
        """Count the seeds in the slots that were not counted before, with this probe."""
        if probe is not self._counted_with:
            self._counted_with = probe
            self._params_SK.fill(-1)
        slot_N, kind_N = np.nonzero(held_ES)[1], blueprint_ES[held_ES]
        new_N = self._params_SK[slot_N, kind_N] < 0
        if not new_N.any():
            return
        kinds = self._params_SK.shape[1]
        for pair in np.unique(slot_N[new_N] * kinds + kind_N[new_N]):
            slot, kind = divmod(int(pair), kinds)
            self._params_SK[slot, kind] = self.params(slot, kind)
            self._macs_SK[slot, kind] = self.macs(slot, kind, probe)

    def table(self, probe: HostProbe) -> SeedCosts:
        """Sizes of every blueprint in every slot it fits."""
        network = self.network
        params_SK = np.zeros(network.fits_SK.shape, dtype=np.int64)
        macs_SK = np.zeros_like(params_SK)
        for slot, kind in np.argwhere(network.fits_SK):
            params_SK[slot, kind] = self.params(int(slot), int(kind))
            macs_SK[slot, kind] = self.macs(int(slot), int(kind), probe)
        return SeedCosts(
            host_params=network.host.parameters_per_member,
            host_macs=probe.host_macs,
            params_SK=params_SK,
            macs_SK=macs_SK,
            gate_params_S=self._gate_params_S.copy(),
        )

    def receptive_fields(self) -> Floats:
        """`[S, K]`: positions by which a seed widens the receptive field along one axis."""
        network = self.network
        out = np.zeros(network.fits_SK.shape, dtype=np.float32)
        for slot, kind in np.argwhere(network.fits_SK):
            cache, key = self._cache(int(slot), int(kind), self._fields, _KNOWN_FIELDS)
            if key not in cache:
                cache[key] = _receptive_gain(network.seed_template(int(slot), int(kind)))
            out[slot, kind] = cache[key]
        return out


def _receptive_gain(module: nn.Module) -> int:
    """Sum over convolutions of (kernel - 1) * dilation along the last axis.

    >>> _receptive_gain(nn.Sequential(nn.Conv2d(1, 1, 3), nn.Conv2d(1, 1, 5, dilation=2)))
    10
    """
    total = 0
    for part in module.modules():
        kernel, dilation = getattr(part, "kernel_size", 1), getattr(part, "dilation", 1)
        kernel = kernel[-1] if isinstance(kernel, tuple) else kernel
        dilation = dilation[-1] if isinstance(dilation, tuple) else dilation
        if isinstance(kernel, int) and isinstance(dilation, int):
            total += (kernel - 1) * dilation
    return total


@dataclass(frozen=True, slots=True, eq=False)
class TrainingCosts:
    """MACs of training on one sample, forward and backward."""

    host: int
    suffix_S: Ints
    """Host after the slot, whose weights do not train there; with the prefix, if it is computed
    again."""
    seed_SK: Ints
    """Seed that trains with the host: its input needs a gradient."""
    shadow_SK: Ints
    """Seed in TRAINING: its input is detached."""
    frozen_SK: Ints
    """Seed in the suffix of a shadow row: passes the gradient on, does not train."""

    def relative(self, blueprint_ES: Ints, alpha_ES: Floats, training_ES: Bools) -> Doubles:
        """Cost `[E]` of a training batch relative to the host's."""
        slot_S = np.arange(len(self.suffix_S))
        held_ES = blueprint_ES != NO_BLUEPRINT
        kind_ES = np.where(held_ES, blueprint_ES, 0)
        blended_ES = held_ES & (alpha_ES > 0)
        main_ES = np.where(blended_ES, self.seed_SK[slot_S, kind_ES], 0)
        frozen_ES = np.where(blended_ES, self.frozen_SK[slot_S, kind_ES], 0)
        later_ES = frozen_ES.sum(axis=1, keepdims=True) - np.cumsum(frozen_ES, axis=1)
        shadow_ES = self.shadow_SK[slot_S, kind_ES] + self.suffix_S + later_ES
        shadow_ES = np.where(held_ES & training_ES, shadow_ES, 0)
        total_E = self.host + (main_ES + shadow_ES).sum(axis=1)
        return np.asarray(total_E / self.host, dtype=np.float64)

    def fullest(self, fits_SK: Bools) -> float:
        """Relative cost of the host with the costliest seed in every slot."""
        largest_S = np.where(fits_SK, self.seed_SK, 0).max(axis=1, initial=0)
        return float(self.host + largest_S.sum()) / self.host


def measure_training_costs(network: StackedNetwork, probe: HostProbe, x: Tensor) -> TrainingCosts:
    """Count training MACs with torch's FLOP counter; `x`: `[B, ...]` inputs of the host."""
    modules = [segment.module for segment in network.segments]
    suffix = [
        _train_macs(
            modules[spec.position + 1 :], _activation(network, probe, slot), True, trains=False
        )
        for slot, spec in enumerate(network.slots)
    ]
    shape = network.fits_SK.shape
    seed_SK, shadow_SK, frozen_SK = (np.zeros(shape, dtype=np.int64) for _ in range(3))
    for slot, kind in np.argwhere(network.fits_SK):
        at = (slot, kind)
        seed_SK[at], shadow_SK[at], frozen_SK[at] = _seed_costs(network, probe, *map(int, at))
    return TrainingCosts(
        host=_train_macs(modules, x[:1], False),
        suffix_S=np.array(suffix, dtype=np.int64),
        seed_SK=seed_SK,
        shadow_SK=shadow_SK,
        frozen_SK=frozen_SK,
    )


def _seed_costs(
    network: StackedNetwork, probe: HostProbe, slot: int, kind: int
) -> tuple[int, int, int]:
    """MACs of a seed that trains with the host, that is in TRAINING, and that does not train."""
    recipe, shape = network.blueprints[kind], probe.slot_shapes[slot]
    known = recipe.built_in and not recipe.from_host
    key = (recipe.factory, network.slots[slot].channels, shape)
    if known and key in _KNOWN_TRAINING:
        return _KNOWN_TRAINING[key]
    template, h = [network.seed_template(slot, kind)], _activation(network, probe, slot)
    costs = (
        _train_macs(template, h, True),
        _train_macs(template, h, False),
        _train_macs(template, h, True, trains=False),
    )
    if known:
        _KNOWN_TRAINING[key] = costs
    return costs


def _activation(network: StackedNetwork, probe: HostProbe, slot: int) -> Tensor:
    return torch.zeros(1, *probe.slot_shapes[slot], device=network.device)


def _train_macs(
    chain: list[nn.Module], x: Tensor, input_gradient: bool, trains: bool = True
) -> int:
    """MACs of a forward and a backward pass for one sample.

    Modules run in eval mode, so that norms accept one sample and no buffer changes.
    """
    chained = nn.Sequential(*chain)
    learns = {p: p.requires_grad for p in chained.parameters()}
    try:
        for parameter, learnt in learns.items():
            parameter.requires_grad_(learnt and trains)
        with (
            in_mode(chained, training=False),
            torch.inference_mode(False),
            torch.enable_grad(),
            flop_counter() as counter,
        ):
            given = x.clone()
            if given.is_floating_point():
                given.requires_grad_(input_gradient)
            out = chained(given)
            if out.requires_grad:
                # The counter's hooks do not support torch.autograd.grad.
                out.float().square().sum().backward()
    finally:
        for parameter, learnt in learns.items():
            parameter.requires_grad_(learnt)
            parameter.grad = None
    return counter.total // 2
