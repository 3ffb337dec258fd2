"""Networks of a search: the user's model at several widths and depths, with seed modules at places.

A network is named by a variant (a width and a depth) and a topology (a blueprint for each slot),
and built as the plain module that the user gets back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Final

from torch import Tensor, nn

from esper.growing.budget import Budget
from esper.growing.folder import read_weights, weights_path
from esper.growing.latency import Latency, measure_latency
from esper.growing.problem import Problem, limit_blueprints
from esper.growing.runs import Row
from esper.growing.settings import GrowSettings
from esper.growing.topologies import EMPTY, Topology, with_seed
from esper.kasmina.layers.counting import Size, count_parameters, count_training_macs
from esper.kasmina.tracing import (
    Depths,
    HostTrace,
    ScaledModel,
    Scaling,
    carry_weights,
    finished_model,
    planted_model,
    silence,
)
from esper.leyline.errors import EsperError
from esper.leyline.streams import stream_seed
from esper.leyline.variants import variant_name

DEPTHS: Final = (0.5, 2.0)
"""Multiples of the number of blocks that are tried where a model repeats blocks."""
OVERHEAD: Final = {"cpu": 1.5e7, "cuda": 1e9}
"""Multiply-accumulates in the time that a batch takes besides them: Python, launches, small
operations. By compute, wide versions of a tiny network would look far too dear, and tiny ones
free."""


class Variant:
    """The user's model at one width and depth."""

    def __init__(
        self,
        name: str,
        model: HostTrace | ScaledModel,
        example: Sequence[Tensor],
        seed: int,
        known: Size | None = None,
    ) -> None:
        """`name`: empty for the model as it was given; `example`: raw inputs of some samples;
        `known`: size without seeds, if it need not be measured.
        """
        self.name, self._model, self._known = name, model, known
        self._example, self._seed = [value[:1].cpu() for value in example], seed
        self._sizes: dict[Topology, Size] = {}

    @cached_property
    def trace(self) -> HostTrace:
        """Its trace; that of a scaled model is made when first asked for, and may raise."""
        return self._model.host if isinstance(self._model, ScaledModel) else self._model

    @property
    def bare_size(self) -> Size:
        """Size without seeds."""
        return self._known or self.size(self.bare)

    @property
    def bare(self) -> Topology:
        """The topology without seeds."""
        return (EMPTY,) * len(self.trace.slots)

    @property
    def places(self) -> tuple[str, ...]:
        """Where each slot is in the user's model."""
        return tuple(self.trace.places[slot] for slot in self.trace.slots)

    def options(self, slot: int) -> tuple[str, ...]:
        """Blueprints that fit a slot."""
        return self.trace.fitting[self.trace.slots[slot]]

    def holds(self, topology: Topology) -> bool:
        """Whether a topology, perhaps of another variant, fits its slots."""
        if len(topology) != len(self.trace.slots):
            return False
        return all(not name or name in self.options(slot) for slot, name in enumerate(topology))

    def neighbours(self, topology: Topology) -> list[Topology]:
        """All topologies that differ in one slot."""
        return [
            with_seed(topology, slot, name)
            for slot, held in enumerate(topology)
            for name in (EMPTY, *self.options(slot))
            if name != held
        ]

    def build(self, topology: Topology, seed: int) -> nn.Module:
        """A network with its own initial weights, in training mode, on the CPU."""
        seeds = {s: n for s, n in zip(self.trace.slots, topology, strict=True) if n}
        return planted_model(self.trace, seeds, stream_seed(seed, "run", "weights"))

    def size(self, topology: Topology) -> Size:
        """Size of the module that the user gets; raises if it has nothing to train."""
        if self._known and not any(topology):
            return self._known
        if topology not in self._sizes and sum(map(bool, topology)) > 1:
            self._sizes[topology] = self._sum_of_seeds(topology)
        if topology not in self._sizes:
            network = self.build(topology, self._seed)
            if not count_parameters(network):
                raise EsperError(
                    f"{self.trace.name}: none of its parameters trains; set requires_grad on some"
                )
            macs, training = count_training_macs(
                network, lambda: self.trace.inputs.call(network, self._example)
            )
            counted = finished_model(network) if any(topology) else network
            self._sizes[topology] = Size(count_parameters(counted), macs, training)
        return self._sizes[topology]

    def _sum_of_seeds(self, topology: Topology) -> Size:
        """The model and what each of its seeds adds to it."""
        bare = self.size(self.bare)
        held = [(slot, name) for slot, name in enumerate(topology) if name]
        single = [self.size(with_seed(self.bare, slot, name)) for slot, name in held]
        return Size(
            bare.params + sum(one.params - bare.params for one in single),
            bare.macs + sum(one.macs - bare.macs for one in single),
            bare.train_macs + sum(one.train_macs - bare.train_macs for one in single),
        )


class Networks:
    """All networks of a search."""

    def __init__(
        self,
        problem: Problem,
        settings: GrowSettings,
        budget: Budget,
        device: str,
        batch_size: int,
    ) -> None:
        """`device`: kind of the one that trains; `batch_size`: the usual one."""
        overhead = OVERHEAD.get(device, OVERHEAD["cpu"])
        self._overhead = 0.0 if budget.flops is not None else overhead
        self._model, self._settings = problem.model, settings
        self._given = problem.data.example().inputs
        self._example = problem.trace.inputs.values(self._given)
        self._scalings: dict[float, Scaling] = {}
        self.budget, self.batch_size = budget, batch_size
        self.variants = [Variant("", problem.trace, self._example, settings.seed)]
        self.others: Callable[[], None] | None = None
        """Adds the other variants, when they are needed for the first time."""
        self.folder = Path()
        """Run folder, which has the weights of finished runs."""
        self._latencies: dict[tuple[str, Topology], float] = {}

    @property
    def base(self) -> Variant:
        """The model as it was given."""
        return self.variants[0]

    def complete(self) -> None:
        """Make the other variants, unless that is done."""
        others, self.others = self.others, None
        if others is not None:
            others()

    # ---- widths and depths ----------------------------------------------------------------

    @cached_property
    def depths(self) -> tuple[float, ...]:
        """Other depths to try."""
        wanted = self._settings.depths
        if wanted == "auto":
            return DEPTHS if self._depths.stacks else ()
        return tuple(depth for depth in wanted if depth != 1)

    def check_depths(self) -> None:
        """Raise if the model cannot have one of its depths."""
        for depth in self.depths:
            try:
                self._scaling(depth)
            except EsperError as error:
                raise EsperError(f"depth {depth:g}: {error}") from error

    @cached_property
    def _depths(self) -> Depths:
        return Depths(self._model, self._given, self._settings.output)

    def _scaling(self, depth: float) -> Scaling:
        """The model at a depth and any width; what the widths share is found once."""
        if depth not in self._scalings:
            model = self._model if depth == 1 else self._depths.at(depth)
            settings = self._settings
            self._scalings[depth] = Scaling(model, self._given, settings.output, settings.slots)
        return self._scalings[depth]

    def scaled(self, width: float, depth: float = 1.0) -> Variant:
        """The model at another width and depth, which is not among the variants yet; raises if it
        cannot be made.

        At its own width the weights of the blocks that stay are those of the model.
        """
        scaling, settings = self._scaling(depth), self._settings
        found = scaling.own() if width == 1 and depth != 1 else scaling.at(width)
        whole = found
        if settings.blueprints is not None:
            found = replace(found, trace=lambda: limit_blueprints(whole.host, settings.blueprints))
        # A trace leaves out what the output does not depend on, and so may its size.
        known = found.size if self._scaling(1.0).own().size == self.base.bare_size else None
        return Variant(variant_name(width, depth), found, self._example, settings.seed, known)

    # ---- sizes and speed ------------------------------------------------------------------

    def size(self, variant: int, topology: Topology) -> Size:
        """Size of a network."""
        return self.variants[variant].size(topology)

    def cost_of(self, size: Size, batch_size: int | None = None) -> float:
        """Training compute of a batch of a network of some size, relative to the model as given.

        With what a batch takes besides, unless the budget is one of FLOPs. `batch_size`: None: the
        usual one.
        """
        base, samples = self.base.size(self.base.bare).train_macs, self.batch_size
        work = size.train_macs * (batch_size or samples)
        return (self._overhead + work) / max(1.0, self._overhead + base * samples)

    def latency(self, variant: Variant, topology: Topology) -> float:
        """Milliseconds of a network for one sample; 0: they are not limited."""
        budget, key = self.budget, (variant.name, topology)
        if budget.latency_ms is None:
            return 0.0
        if key not in self._latencies:
            model = finished_model(variant.build(topology, self._settings.seed))
            self._latencies[key] = self.timed(model).median
        return self._latencies[key]

    def timed(self, model: nn.Module) -> Latency:
        """How long a plain network takes for one sample."""
        budget, inputs = self.budget, self.base.trace.inputs
        return measure_latency(
            model, inputs, self._example, budget.latency_runtime, budget.latency_threads
        )

    def allows(self, variant: int, topology: Topology) -> bool:
        """Whether a network is within the limits of the budget; the model as given may not be."""
        size = self.size(variant, topology)
        if not self.budget.allows(size.params, size.macs):
            return False
        latency = self.latency(self.variants[variant], topology)
        return self.budget.allows(size.params, size.macs, latency)

    @property
    def base_fits(self) -> bool:
        """Whether the model as given is within the limits, and may be picked."""
        return self.allows(0, self.base.bare)

    # ---- runs -----------------------------------------------------------------------------

    def build(self, row: Row, rows: Sequence[Row]) -> nn.Module:
        """The network of a run with the weights it starts from."""
        network = self.variants[row.variant].build(row.topology, row.seed)
        if row.start is not None:
            carry_weights(network, self._saved(row.start))
            before = rows[row.start].topology
            slots = self.variants[row.variant].trace.slots
            for slot, held, name in zip(slots, before, row.topology, strict=True):
                if name and name != held:
                    silence(network, slot)
        return network

    def trained(self, row: Row, weights: Mapping[str, Tensor] | None = None) -> nn.Module:
        """The network of a finished run; `weights`: None: those it ended with."""
        network = self.variants[row.variant].build(row.topology, row.seed)
        carry_weights(network, self._saved(row.number) if weights is None else weights)
        return network

    def _saved(self, number: int) -> dict[str, Tensor]:
        lack = f"the weights of network {number} cannot be read"
        return read_weights(weights_path(self.folder, number), lack, "; start a new run")
