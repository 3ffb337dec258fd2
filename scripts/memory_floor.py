"""Lower bound of the time of a training batch from its memory traffic.

A row is a chain of links: the host's segments from where the row starts, and its active seeds. Each
link is counted as one ideal kernel:
- forward it reads its input and writes its output;
- backward it reads the gradient of its output and its input again, and writes the gradient of its
  input; the first link of a row does not write one (data, or a shadow's detached start);
- weights are read forward and backward, and their gradient is written where the row trains them
  (a main row trains all of its links, a shadow row only its own seed).
Once per member's host and per training seed, the update reads weights, gradient and moments, and
writes weights and moments. Activations have the size of the compute precision, weights 4 bytes.
Data gathering, loss, statistics, casts and caches are not counted: if a batch fits in a cache, a
measured time may be below this bound.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from time import perf_counter
from typing import Final

import torch
from torch import Tensor

from esper.kasmina.blueprints.seed_places import Segment
from esper.kasmina.population import Population
from esper.kasmina.rows.rows import FROM_INPUT, RowTable, training_rows
from esper.leyline.compute import Precision
from esper.leyline.signals import NO_BLUEPRINT
from esper.tolaria.runtime import synchronize_device

WEIGHT_BYTES: Final = 4
ACTIVATION_BYTES: Final[dict[Precision, int]] = {"fp32": 4, "bf16": 2, "fp16": 2}
MOMENTS: Final = {"sgd": 1, "adamw": 2}
COPY_BYTES: Final = {"cpu": 1 << 28, "cuda": 1 << 30}
"""Size of the copy used to measure bandwidth; far larger than caches."""
COPIES: Final = 7


@dataclass(frozen=True, slots=True)
class Link:
    """One segment or seed: activations per sample, and weights."""

    inputs: int
    outputs: int
    weights: int


def host_links(population: Population, sample: Tensor) -> list[Link]:
    """The segments of the host; `sample` is one input `[1, ...]`."""
    network = population.network
    host = network.host.template
    was_training = host.training
    host.eval()  # do not update running statistics
    links = []
    h = sample
    with torch.no_grad():
        for segment in network.segments:
            out = segment.module(h)
            weights = sum(math.prod(network.host.shapes.get(n, (0,))) for n in _owned(segment))
            links.append(Link(h.numel(), out.numel(), weights))
            h = out
    host.train(was_training)
    return links


def _owned(segment: Segment) -> list[str]:
    """Parameter names in the host, tied weights once."""
    return sorted(set(segment.names.values()))


def train_batch_bytes(
    population: Population, sample: Tensor, batch_size: int, precision: Precision
) -> int:
    """Minimum bytes that a training batch of all members moves with the current seeds."""
    table, links = training_rows(population.lifecycle), host_links(population, sample)
    activations = weights = 0
    for row in range(table.rows):
        moved, touched = _row(population, links, table, row)
        activations += moved
        weights += touched
    weights += (3 + 2 * MOMENTS[population.config.optim.kind]) * _trained(population)
    return batch_size * activations * ACTIVATION_BYTES[precision] + weights * WEIGHT_BYTES


def _row(population: Population, links: list[Link], table: RowTable, row: int) -> tuple[int, int]:
    """Activations per sample and weights read and written by one row."""
    network, blueprint_ES = population.network, population.lifecycle.blueprint_ES
    start, member = int(table.start_R[row]), int(table.member_R[row])
    shadow = bool(table.shadow_R[row])
    from_input = start == FROM_INPUT
    first = 0 if from_input else network.slots[start].position + 1
    chain = [(link, not shadow) for link in links[first:]]
    for slot, spec in enumerate(network.slots):
        kind = int(blueprint_ES[member, slot])
        if slot >= start and table.alpha_RS[row, slot] > 0 and kind != NO_BLUEPRINT:
            width = links[spec.position].outputs
            seed = Link(width, width, network.bank(slot, kind).parameters_per_member)
            chain.append((seed, not shadow or slot == start))
    moved = sum(3 * link.inputs + 2 * link.outputs for link, _ in chain)
    begins = links[0].inputs if from_input else links[first - 1].outputs
    touched = sum((3 if trains else 2) * link.weights for link, trains in chain)
    return moved - begins, touched


def _trained(population: Population) -> int:
    """Number of weights updated after a batch."""
    network, life = population.network, population.lifecycle
    members, slots = population.trainer.training().nonzero()
    kinds = life.blueprint_ES[members, slots]
    seeds = (network.bank(int(s), int(k)) for s, k in zip(slots, kinds, strict=True))
    host = population.members * network.host.parameters_per_member
    return host + sum(bank.parameters_per_member for bank in seeds)


def copy_bandwidth(device: torch.device, size: int | None = None) -> float:
    """Bytes per second read and written by a large copy."""
    count = COPY_BYTES[device.type] if size is None else size
    source = torch.zeros(count, dtype=torch.uint8, device=device)
    target = torch.ones_like(source)
    seconds = []
    for _ in range(COPIES + 1):
        synchronize_device(device)
        began = perf_counter()
        target.copy_(source)
        synchronize_device(device)
        seconds.append(perf_counter() - began)
    return 2 * count / statistics.median(seconds[1:])  # the first warms up
