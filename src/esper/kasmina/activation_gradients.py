"""Gradient of the loss at the activations of the slots: where a change would matter most.

Shape letters: E members, S slots, B batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from esper.kasmina.population import Population


def slot_gradient_norms(population: Population, x_EB: Tensor, target_EB: Tensor) -> Tensor:
    """Return `[E, S]` norms of the gradient of each member's mean loss; no synchronise.

    Members run in eval mode, so that nothing about them changes. NaN where no gradient reaches the
    slot, as in a host that does not train.
    """
    network, members = population.network, population.members
    if population.choice is None:  # the trial of executors must not be tapped
        with torch.no_grad():
            population.forward(x_EB)
    taps: dict[int, list[Tensor]] = {slot: [] for slot in range(len(network.slots))}
    network.tap = lambda slot, h: taps[slot].append(h)
    try:
        with torch.enable_grad():
            logits = population.forward(x_EB)
            loss = population.loss(logits, target_EB).sum()
    finally:
        network.tap = None
    found = [part for parts in taps.values() for part in parts]
    unknown = x_EB.new_full((members,), torch.nan, dtype=torch.float32)
    if not loss.requires_grad:
        return torch.stack([unknown] * len(taps), dim=1)
    grads = iter(torch.autograd.grad(loss, found, allow_unused=True))
    norms = []
    for parts in taps.values():
        # The vmap executor taps all rows at once, the loop executor one row after the other.
        rows = [next(grads) for _ in parts]
        if any(row is None for row in rows):
            norms.append(unknown)
            continue
        whole = rows[0] if len(rows) == 1 and parts[0].shape[:2] == x_EB.shape[:2] else None
        stacked = torch.stack(rows) if whole is None else whole
        norms.append(torch.linalg.vector_norm(stacked.float().flatten(1), dim=1))
    return network.host.total_norms(torch.stack(norms, dim=1))
