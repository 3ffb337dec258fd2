"""What an executor is: something that runs a row plan over a stacked network."""

from __future__ import annotations

from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from esper.kasmina.network import StackedNetwork
from esper.kasmina.rows import RowPlan
from esper.leyline.errors import EsperError, ShapeError

KernelName = Literal["own", "torch"]
"""Whose kernels compute members where ours run; elsewhere they are torch's."""


class Executor(Protocol):
    """Runs rows. All executors give the same numbers (to rounding); they differ in speed."""

    name: str
    kernels: KernelName

    def run(
        self,
        network: StackedNetwork,
        x: Tensor,
        plan: RowPlan,
        training: bool,
        key_R: Tensor | None = None,
    ) -> Tensor:
        """Outputs `[R, B, ...]` for inputs `[E, B, ...]`, or `[1, B, ...]` shared by all rows.

        `key_R`: streams that random layers draw from; without them from torch's generator.
        """
        ...


def check_input(network: StackedNetwork, x: Tensor) -> None:
    """A tensor where the members are; its leading axis is the members, or 1."""
    check_tensor("input", x, network.host.flat_EP.device)
    if x.ndim < 2 or x.shape[0] not in (1, network.members):
        raise EsperError(
            f"input of shape {tuple(x.shape)}: the first axis must be the {network.members} "
            f"members, or 1 for a batch shared by all"
        )
    if not x.shape[1]:
        raise EsperError(f"input of shape {tuple(x.shape)}: a batch of 0 samples; give at least 1")


def check_tensor(what: str, value: object, device: torch.device) -> None:
    """A tensor, and where the members are; nothing is copied behind the caller's back."""
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
    """A seed keeps the shape of its slot."""
    if delta.shape != h.shape:
        raise ShapeError(
            f"blueprint {network.blueprints[kind].name!r} turns {tuple(h.shape)} into "
            f"{tuple(delta.shape)} in slot {network.slots[slot].slot_id}: it must keep the shape"
        )


def set_training(network: StackedNetwork, training: bool) -> None:
    """Put host and seed modules into training or evaluation mode."""
    modules: list[nn.Module] = [network.host.template]
    modules += [bank.template for bank in network.banks.values()]
    for module in modules:
        if module.training != training:
            module.train(training)
