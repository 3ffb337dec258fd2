"""A fake device that captures: it records the work, and runs the same work again.

It keeps to what a graph can do. The work of the first capture is what every replay runs, whatever
the caller has in mind by then; while it runs, the lifecycle is out of reach (a replay runs no
Python); and all tensors it was captured with must still be where they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor

from esper.device.graphs import GraphCache
from esper.kasmina import Population
from esper.kasmina.rows.rows import RowPlan


class OutOfReach:
    """What must not be asked while captured work runs."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"captured work asked the lifecycle for {name!r}")


@contextmanager
def no_lifecycle(population: Population) -> Iterator[None]:
    """Within it, reading the lifecycle is an error."""
    kept = population.lifecycle
    population.lifecycle = population.trainer.life = OutOfReach()  # type: ignore[assignment]
    try:
        yield
    finally:
        population.lifecycle = population.trainer.life = kept


def addresses(population: Population, plan: RowPlan, others: tuple[Any, ...]) -> dict[str, int]:
    """Where everything is that captured work may read: it must never move."""
    network, trainer = population.network, population.trainer
    stores = {"host": network.host}
    stores |= {str((s, k)): bank for (s, k), bank in network.banks.items()}
    stores |= {str((s, "blend_gate")): gate for s, gate in network.gates.items()}
    found: dict[str, Tensor] = {"host_lr": trainer.host_lr_E, "seed_lr": trainer.seed_lr_E}
    found["passes"] = population.passes_E
    for name, store in stores.items():
        found[name] = store.flat_EP
        found |= {f"{name}/{part}": value for part, value in store.fixed.items()}
    for optimizer in (trainer.host_optimizer, trainer.seed_optimizer):
        for key, moments in optimizer.state.items():
            found |= {f"moments {key}/{part}": value for part, value in moments.items()}
    assert plan.buffers is not None
    assert plan.buffers.packed is not None
    found |= {f"plan/{name}": value for name, value in plan.buffers.packed.tensors.items()}
    for index, other in enumerate(others):
        parts = other if isinstance(other, Tensor) else getattr(other, "loss_E", None)
        if parts is not None:
            found[f"argument {index}"] = parts
    return {name: tensor.data_ptr() for name, tensor in found.items()}


class Rerun:
    """A recorder on the CPU."""

    def __init__(self) -> None:
        self.captured: list[partial[None]] = []

    def capture(self, work: Callable[[], None]) -> Rerunning:
        """Nothing is computed."""
        assert isinstance(work, partial)
        self.captured.append(work)
        return Rerunning(work)


class Rerunning:
    """Captured work."""

    def __init__(self, work: partial[None]) -> None:
        self.work = work
        self.population, self.plan, *self.others = work.args
        self.places = self._places()

    def _places(self) -> dict[str, int]:
        return addresses(self.population, self.plan, tuple(self.others))

    def replay(self) -> None:
        """The captured work, with the values its tensors have now."""
        now = self._places()
        moved = [name for name, place in self.places.items() if now.get(name) != place]
        assert not moved, f"moved since the capture: {moved}"
        with no_lifecycle(self.population):
            self.work()


def rerun_cache(**settings: Any) -> GraphCache:
    """A cache that captures on the CPU."""
    return GraphCache(Rerun(), **settings)
