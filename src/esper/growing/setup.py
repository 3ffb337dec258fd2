"""Choices made once, before the search: device, batch size, length, learning rates, members."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, cast

import torch
from torch import Tensor

from esper.device.bfloat16 import bfloat16_passes
from esper.device.memory import free_bytes
from esper.growing.batches import BatchSource
from esper.growing.budget import DEFAULT_HOST_RUNS, Budget
from esper.growing.topologies import TopologySpace
from esper.growing.training import BracketTrainer
from esper.kasmina.caps import SeedCosts
from esper.kasmina.gates import GateConfig
from esper.kasmina.lifecycle import LifecycleConfig
from esper.kasmina.population import Population
from esper.kasmina.population_config import PopulationConfig
from esper.kasmina.probe import HostProbe
from esper.kasmina.seed_costs import SeedSizes, measure_training_costs
from esper.kasmina.tracing import HostTrace
from esper.leyline.compute import ExecutorName
from esper.leyline.errors import EsperError, shown, unknown_name
from esper.leyline.optim import OptimConfig
from esper.leyline.user_errors import is_out_of_memory
from esper.tasks.objectives import TrainingLoss

OPTIMIZERS: Final = ("auto", "adamw", "sgd")
RATES: Final = {"adamw": 3e-3, "sgd": 0.05}
"""Middle learning rate of `lr="auto"`; a third and three times as much are tried too."""
TRANSFORMER_RATE: Final = 1e-3
WEIGHT_DECAY: Final = {"adamw": 1e-2, "sgd": 5e-4}
RUN_BATCHES: Final = 1500
"""Batches of a full training run, as far as the limits on epochs allow."""
MOST_BATCHES: Final = 2**31
EPOCHS: Final = (4, 80)
BATCH_SIZES: Final = (16, 128)
MOST_MEMBERS: Final = 32
MEMORY_SHARE: Final = 0.5
"""Share of the free memory that members may take."""
STATE_COPIES: Final = 5
"""Parameters, gradient, two moments, and a copy while members move to another population."""
LEAST_RUNS: Final = 4.0
"""Training runs that a time limit must leave room for, before runs are made shorter."""
OVERHEAD: Final = 1.3
"""Time of a search over that of its training batches in the probe."""


@dataclass(frozen=True, slots=True)
class Length:
    """How long a network is trained."""

    batch_size: int
    epochs: float
    batches: int


def choose_batch_size(wanted: int | None, samples: int | None) -> int:
    """Batch size: as wanted, or about a fortieth of the samples, a power of 2.

    >>> choose_batch_size(None, 1100), choose_batch_size(None, 50_000), choose_batch_size(8, 100)
    (32, 128, 8)
    """
    if wanted is not None:
        return wanted
    least, most = BATCH_SIZES
    if samples is None:
        return most
    fitting = 1 << max(0, round(math.log2(max(1, samples) / 40)))
    return min(samples, max(least, min(most, fitting)))


def choose_length(epochs: float | str, batch_size: int, per_epoch: int | None) -> Length:
    """Length of a full training run; `per_epoch`: batches of an epoch, None: unknown."""
    if epochs == "auto":
        if per_epoch is None:
            return Length(batch_size, math.nan, RUN_BATCHES)
        least, most = EPOCHS
        chosen = max(least, min(most, round(RUN_BATCHES / per_epoch)))
        return Length(batch_size, chosen, chosen * per_epoch)
    if per_epoch is None:
        raise EsperError(
            f"epochs={epochs}: the length of an epoch of this stream is not known; leave epochs out"
        )
    batches = float(epochs) * per_epoch
    if batches > MOST_BATCHES:
        raise EsperError(f"epochs={epochs}: {batches:.3g} batches; give fewer")
    return Length(batch_size, float(epochs), max(1, round(batches)))


def choose_rates(
    lr: float | Sequence[float] | str, optimizer: str, topology: str
) -> tuple[str, tuple[float, ...]]:
    """Optimiser and the learning rates to spread over members."""
    if optimizer not in OPTIMIZERS:
        raise unknown_name("optimizer", optimizer, OPTIMIZERS)
    kind = "adamw" if optimizer == "auto" else optimizer
    if isinstance(lr, str):
        if lr != "auto":
            raise EsperError(f"lr={lr!r}: give a number, several, or 'auto'")
        middle = RATES[kind]
        if topology == "transformer" and kind == "adamw":
            middle = TRANSFORMER_RATE
        return kind, (middle / 3, middle, middle * 3)
    rates = (lr,) if isinstance(lr, int | float) else tuple(lr)
    if not rates or not all(isinstance(r, int | float) and 0 < r < math.inf for r in rates):
        raise EsperError(f"lr={shown(lr)}: learning rates must be above 0, and finite")
    return kind, tuple(float(rate) for rate in rates)


def choose_weight_decay(wanted: float | str, kind: str) -> float:
    """Weight decay: as wanted, or the default of an optimiser.

    >>> choose_weight_decay("auto", "adamw"), choose_weight_decay(0.3, "adamw")
    (0.01, 0.3)
    """
    if wanted == "auto":
        return WEIGHT_DECAY[kind]
    number = isinstance(wanted, int | float) and not isinstance(wanted, bool)
    if not number or not 0 <= float(wanted) < math.inf:
        raise EsperError(f"weight_decay={shown(wanted)}: give a number of 0 or more, or 'auto'")
    return float(wanted)


def population_config(
    kind: str, rate: float, weight_decay: float, clip: float | None, executor: ExecutorName
) -> PopulationConfig:
    """Settings of the populations of a search."""
    optim = OptimConfig(
        kind=kind,  # type: ignore[arg-type]
        weight_decay=weight_decay,
        clip_norm=clip,
    )
    life = LifecycleConfig(
        gates=GateConfig(min_training_steps=3), min_prune_age=0, embargoed_steps=1
    )
    return PopulationConfig(
        executor=executor, host_lr=rate, seed_lr=rate, optim=optim, lifecycle=life
    )


class Builder:
    """Makes the populations of a search."""

    def __init__(
        self,
        trace: HostTrace,
        config: PopulationConfig,
        loss: TrainingLoss,
        seed: int,
        device: torch.device,
        amp: bool = False,
    ) -> None:
        """`amp`: train in bfloat16 by autocast."""
        self.trace, self.config, self.loss = trace, config, loss
        self.seed, self.device, self.amp = seed, device, amp

    @contextlib.contextmanager
    def autocast(self) -> Iterator[None]:
        """Context of training batches."""
        if not self.amp:
            yield
            return
        kind = self.device.type
        # Casts are not cached: what is captured in a CUDA graph must make them again.
        with bfloat16_passes(kind), torch.autocast(kind, torch.bfloat16, cache_enabled=False):
            yield

    def __call__(self, numbers: Sequence[int]) -> Population:
        """A population whose members have these numbers in the names of their random streams."""
        trace = self.trace
        population = Population(
            trace.factory,
            trace.slots,
            trace.blueprints,
            len(numbers),
            self.seed,
            self.device,
            self.config,
            self.loss.loss,
        )
        population.member_ids[:] = numbers
        population.reset(0)
        return population


@contextlib.contextmanager
def explain_amp(amp: bool, model: str) -> Iterator[None]:
    """Convert what torch raises for an operation that bfloat16 does not have."""
    try:
        yield
    except (RuntimeError, TypeError) as error:
        if not amp or is_out_of_memory(error):
            raise
        reason = str(error).strip().splitlines()[0]
        raise EsperError(
            f"amp=True: {model} does not train in bfloat16 ({reason}); use amp=False"
        ) from error


def make_space(builder: Builder, sample: Tensor, budget: Budget) -> TopologySpace:
    """The topologies of a host within a budget; `sample`: inputs `[B, ...]` on the device.

    Settles the executor of the builder, too.
    """
    population = builder([0, 1])  # two: whether vmap works is tried with two rows
    with torch.no_grad(), builder.autocast():
        population.forward(sample[None, :2])
    probe, choice = population.probe, population.choice
    assert probe is not None, "set by the forward pass"
    assert choice is not None, "set by the forward pass"
    chosen = cast(ExecutorName, choice.executor.name)
    builder.config = replace(builder.config, executor=chosen)  # once for all populations
    costs = _plain_costs(population.seed_sizes, probe, builder.trace)
    budget.check_host(costs.host_params, costs.host_macs)
    if not population.network.host.parameters_per_member:
        raise EsperError(
            f"{builder.trace.name}: none of its parameters trains; set requires_grad on some"
        )
    network = population.network
    return TopologySpace(
        population.blueprints,
        network.fits_SK,
        costs,
        measure_training_costs(network, probe, sample[:2]),
        math.inf if budget.params is None else budget.params,
        math.inf if budget.macs is None else budget.macs,
    )


def _plain_costs(sizes: SeedSizes, probe: HostProbe, trace: HostTrace) -> SeedCosts:
    """Sizes as those of the modules that the user gets, what `forward` does not use included."""
    costs = sizes.table(probe)
    numbers = {n: p.numel() for n, p in sizes.network.host.template.named_parameters()}
    host = costs.host_params + sum(numbers[name] for name in trace.trainable)
    return replace(costs, host_params=host, params_SK=sizes.plain_params())


def most_members(space: TopologySpace, device: torch.device, ranks: int = 1) -> int:
    """Members that fit into the memory of a device, each cut over a number of ranks."""
    largest = space.size(space.largest()).params
    size = 4.0 * STATE_COPIES * max(1, largest) / ranks
    return max(1, min(MOST_MEMBERS, int(MEMORY_SHARE * free_bytes(device) / size)))


@dataclass(frozen=True, slots=True)
class Probe:
    """What some batches have cost."""

    seconds: float
    """Per member and batch."""
    members: int


def measure_speed(
    builder: Builder, space: TopologySpace, batches: BatchSource, members: int
) -> Probe:
    """Time some training batches of a population like those of the search."""
    population = builder(range(members))
    rates = [1e-6] * members
    trainer = BracketTrainer(population, space, batches, 1000, rates, builder.autocast)
    topologies = [space.bare, *space.uniform()]
    trainer.plant([topologies[e % len(topologies)] for e in range(members)])
    trainer.train(1)  # includes set-up
    began = time.perf_counter()
    trainer.train(4)
    if population.device.type == "cuda":
        torch.cuda.synchronize(population.device)  # SYNC: a probe before the search
    return Probe((time.perf_counter() - began) / (3 * members), members)


def choose_runs(
    budget: Budget, space: TopologySpace, length: Length, probe: Probe
) -> tuple[float, Length]:
    """Compute of the search in full training runs, and how long these are.

    A time limit that leaves room for less than `LEAST_RUNS` runs makes them shorter.
    """
    limits = [] if budget.host_runs is None else [budget.host_runs]
    if budget.flops is not None:
        flops = 2.0 * max(1, space.training.host) * length.batch_size * length.batches
        limits.append(budget.flops / flops)
    if budget.minutes is not None:
        possible = budget.minutes * 60.0 / (OVERHEAD * probe.seconds * length.batches)
        if possible < LEAST_RUNS:
            share = max(possible / LEAST_RUNS, 0.05)
            batches = max(1, int(share * length.batches))
            length = Length(length.batch_size, length.epochs * batches / length.batches, batches)
            possible = budget.minutes * 60.0 / (OVERHEAD * probe.seconds * batches)
        limits.append(possible)
    return (min(limits) if limits else DEFAULT_HOST_RUNS), length
