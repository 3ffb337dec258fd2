"""Executor protocol, and checks shared by all executors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn

from esper.kasmina.rows.rows import RowPlan
from esper.kasmina.stacked.network import StackedNetwork
from esper.leyline.compute import KernelName
from esper.leyline.errors import EsperError, ShapeError

ObjectiveOfRows = Callable[[Tensor, slice], tuple[Tensor, Tensor]]
"""(outputs of some rows, these rows) -> their losses `[R]`, and what to differentiate."""


class Executor(Protocol):
    """Runs row plans. Executors differ in speed; their results agree up to rounding."""

    name: str
    kernels: KernelName
    """Kernels to use where ours are available; elsewhere torch's are used."""

    def run(
        self,
        network: StackedNetwork,
        x: Tensor,
        plan: RowPlan,
        training: bool,
        key_R: Tensor | None = None,
    ) -> Tensor:
        """Return outputs `[R, B, ...]` for inputs `[E, B, ...]`, or `[1, B, ...]` shared by all.

        `key_R`: random stream keys of the rows; without them torch's generator is used.
        """
        ...

    def train(
        self,
        network: StackedNetwork,
        x: Tensor,
        plan: RowPlan,
        objective: ObjectiveOfRows,
        key_R: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run rows in training mode and add up their gradients in `flat_EP.grad` of the stores.

        Return outputs `[R, B, ...]` and losses `[R]`, both detached. Gradients must be None before.
        """
        ...


def check_input(network: StackedNetwork, x: Tensor) -> None:
    """Raise unless the input is on the members' device with leading axis E or 1."""
    check_tensor("input", x, network.host.flat_EP.device)
    if x.ndim < 2 or x.shape[0] not in (1, network.members):
        raise EsperError(
            f"input of shape {tuple(x.shape)}: the first axis must be the {network.members} "
            f"members, or 1 for a batch shared by all"
        )
    if not x.shape[1]:
        raise EsperError(f"input of shape {tuple(x.shape)}: a batch of 0 samples; give at least 1")


def check_tensor(what: str, value: object, device: torch.device) -> None:
    """Raise unless `value` is a dense tensor on the device; nothing is copied implicitly."""
    if not isinstance(value, Tensor):
        raise EsperError(
            f"{what} of type {type(value).__name__}: give a tensor, as in torch.as_tensor(...)"
        )
    if value.layout != torch.strided:
        raise EsperError(f"{what} of layout {value.layout}: give a dense tensor, as in .to_dense()")
    if value.device != device:
        raise EsperError(
            f"{what} on {value.device}, the members are on {device}: move them, as in "
            f".to('{device}')"
        )


def check_delta(network: StackedNetwork, slot: int, kind: int, delta: Tensor, h: Tensor) -> None:
    """Raise unless a seed keeps the shape of its slot."""
    if delta.shape != h.shape:
        raise ShapeError(
            f"blueprint {network.blueprints[kind].name!r} turns {tuple(h.shape)} into "
            f"{tuple(delta.shape)} in slot {network.slots[slot].slot_id}: it must keep the shape"
        )


def set_training(network: StackedNetwork, training: bool) -> None:
    """Set host and seed modules to training or eval mode."""
    modules: list[nn.Module] = [network.host.template]
    modules += [bank.template for bank in network.banks.values()]
    for module in modules:
        if module.training != training:
            module.train(training)
