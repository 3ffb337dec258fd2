"""One member of a population as a module, for inspection, export and tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from esper.kasmina.layers.blending import blend
from esper.kasmina.plain.plain_graph import to_plain
from esper.kasmina.saving.saving import HostSpec, load_member, save_member
from esper.kasmina.stacked.network import StackedNetwork
from esper.kasmina.stacked.store import ParameterStore
from esper.leyline.actions import BlendStyle
from esper.leyline.slots import SlotReport
from esper.leyline.stages import SeedStage


class SeedView(nn.Module):
    """One seed: delta module, optional gate, and blending."""

    def __init__(self, delta: nn.Module, gate: nn.Module | None, report: SlotReport) -> None:
        super().__init__()
        self.delta = delta
        self.gate = gate
        self.stage = report.stage
        self.style = BlendStyle[str(report.style)]
        self.alpha = report.alpha

    def forward(self, h: Tensor) -> Tensor:
        if self.alpha == 0:  # not computed
            return h
        gate = self.gate(h) if self.gate is not None else None
        return blend(h, self.delta(h), self.alpha, self.style, gate)

    def extra_repr(self) -> str:
        return f"{self.stage.name}, {self.style.name}, alpha={self.alpha:g}"


class MorphogeneticModel(nn.Module):
    """A member: its host with the seeds in their slots.

    Parameters are views of the population's and follow its training. Seeds and alphas are those at
    the time the view was created. It starts in eval mode: in training mode a host with BatchNorm
    would update the population's running statistics.
    """

    def __init__(
        self,
        network: StackedNetwork,
        member: int,
        reports: Mapping[str, SlotReport],
        host_macs: int | None = None,
    ) -> None:
        """`host_macs`: MACs of the host alone, None before the first input."""
        super().__init__()
        self.member = member
        self.topology = network.topology
        self.slots = network.slots
        """The enabled slots in execution order."""
        self.reports = tuple(reports[spec.slot_id] for spec in network.slots)
        """Report of each of them."""
        self.host = _view(network.host, member)
        self.seeds = nn.ModuleDict()
        self._position = {spec.slot_id: spec.position for spec in network.slots}
        names = [b.name for b in network.blueprints]
        for slot, spec in enumerate(network.slots):
            report = reports[spec.slot_id]
            if report.blueprint is None:
                continue
            delta = _view(network.bank(slot, names.index(report.blueprint)), member)
            gated = report.style == BlendStyle.GATE.name
            gate = _view(network.gate(slot), member) if gated else None
            self.seeds[spec.slot_id] = SeedView(delta, gate, report)
        self.host_macs = host_macs
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        for index, segment in enumerate(self.host.segments()):  # type: ignore[operator]
            x = self._visit(index, segment(x))
        return x

    def _visit(self, position: int, h: Tensor) -> Tensor:
        """Apply the seeds right after a segment."""
        for slot, seed in self.seeds.items():
            if self._position[slot] == position:
                h = seed(h)
        return h

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the member to the folder `path`, replacing an existing save atomically."""
        host = HostSpec(type(self.host).__name__, self.topology, self.slots)
        save_member(path, self, host, self.member, self.reports, self.host_macs)

    @staticmethod
    def load(
        path: str | os.PathLike[str],
        host_factory: Callable[[], nn.Module],
        device: str | torch.device = "cpu",
    ) -> MorphogeneticModel:
        """Load a member with its own parameters.

        The host's code is not saved: pass the original factory.
        """
        model, number = load_member(MorphogeneticModel, path, host_factory, device)
        model.member = number
        return model

    @property
    def stages(self) -> dict[str, SeedStage]:
        """Return the stage of each slot that holds a seed."""
        return {slot: seed.stage for slot, seed in self.seeds.items()}  # type: ignore[misc]

    def to_plain(self) -> GraphModule:
        """Return the member as a graph of torch modules with its own parameters."""
        return to_plain(self.host, self.seeds, self.slots)


def _view(store: ParameterStore, member: int) -> nn.Module:
    """Return a copy of the template whose parameters and buffers are the member's rows."""
    module = store.copy_template()
    values = store.member_tensors(member)
    shared: dict[int, nn.Parameter] = {}
    first_name = {id(t): n for n, t in (*module.named_parameters(), *module.named_buffers())}
    for child in module.modules():
        for name, parameter in child.named_parameters(recurse=False, remove_duplicate=False):
            if id(parameter) not in shared:
                value = values[first_name[id(parameter)]]
                shared[id(parameter)] = nn.Parameter(value, parameter.requires_grad)
            child.register_parameter(name, shared[id(parameter)])
        for name, buffer in child.named_buffers(recurse=False, remove_duplicate=False):
            child._buffers[name] = values[first_name[id(buffer)]]  # keeps its persistence flag
    return module
