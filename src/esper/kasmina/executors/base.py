"""What an executor is: something that runs a row plan over a stacked network."""

from __future__ import annotations

from typing import Literal, Protocol

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
    """The leading axis of the input is the members, or 1."""
    if x.ndim < 2 or x.shape[0] not in (1, network.members):
        raise EsperError(
            f"input of shape {tuple(x.shape)}: the first axis must be the {network.members} "
            f"members, or 1 for a batch shared by all"
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
