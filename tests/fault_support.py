"""Faults that are written into a running population."""

from __future__ import annotations

from typing import Any

from esper.kasmina import Population


def spoil_next_gradient(population: Population, member: int, place: int, value: float) -> None:
    """Set one number of the gradient of a member's host after the next backward pass."""
    trainer, host = population.trainer, population.network.host
    step = trainer.step

    def spoilt(*given: Any) -> Any:
        trainer.step = step  # type: ignore[method-assign]
        assert host.flat_EP.grad is not None
        host.flat_EP.grad[member, place] = value
        return step(*given)

    trainer.step = spoilt  # type: ignore[method-assign]
