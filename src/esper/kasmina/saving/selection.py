"""Move members to another population, with everything that training has made of them.

Shape letters: E members, N selected ones, S slots.
"""

from __future__ import annotations

import numpy as np
import torch

from esper.kasmina.executors.choice import ExecutorChoice
from esper.kasmina.lifecycle.caps import Caps
from esper.kasmina.saving.saving import PopulationState, population_tensors
from esper.kasmina.training.training import GATE_KEY, HOST_KEY
from esper.leyline.actions import BlendStyle
from esper.leyline.arrays import Ints


def copy_members(source: PopulationState, target: PopulationState, members: Ints) -> None:
    """Fill a new population with members `[N]` of another one; a member may occur several times.

    Copies parameters, buffers, optimiser state, rates, lifecycle and random streams. Banks that
    none of the members uses are not allocated.
    """
    target.round, target.probe = source.round, source.probe
    target.member_ids[:] = source.member_ids[members]
    if source.choice is not None:  # a new trial might choose otherwise
        executor = type(source.choice.executor)()
        target.choice = ExecutorChoice(executor, source.choice.reason)
    _allocate(source, target, members)
    index_N = torch.from_numpy(members)
    before = population_tensors(source)
    for name, values in population_tensors(target).items():
        values.copy_(before[name].index_select(0, index_N.to(values.device)))
    old, life = source.lifecycle, target.lifecycle
    life.version += 1
    life.action_space, life.planning = old.action_space, old.planning
    if old.caps is not None:
        limits = old.caps.params_cap_E[members], old.caps.macs_cap_E[members]
        life.caps = Caps(old.caps.costs, *limits, gates_allowed=old.caps.gates_allowed)


def _allocate(source: PopulationState, target: PopulationState, members: Ints) -> None:
    """Allocate the banks and gates the members use, and the optimiser state they have."""
    life, network, seeds = source.lifecycle, target.network, target.trainer.seed_optimizer
    state = source.trainer.seed_optimizer.state
    if HOST_KEY in source.trainer.host_optimizer.state:
        target.trainer.host_optimizer.moments(HOST_KEY, network.host.flat_EP.detach())
    kinds_NS, style_NS = life.blueprint_ES[members], life.style_ES[members]
    held_NS = life.occupied()[members]
    for slot, kind in source.network.banks:
        if (kinds_NS[:, slot] == kind).any():
            bank = network.bank(slot, kind)
            if (slot, kind) in state:
                seeds.moments((slot, kind), bank.flat_EP.detach())
    for slot in source.network.gates:
        if np.any(held_NS[:, slot] & (style_NS[:, slot] == BlendStyle.GATE)):
            gates = network.gate(slot)
            if (slot, GATE_KEY) in state:
                seeds.moments((slot, GATE_KEY), gates.flat_EP.detach())
