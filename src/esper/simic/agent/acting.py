"""Computes a policy step eagerly or by replaying a captured CUDA graph.

A step is a few hundred kernels on tensors of a few kilobytes, so eager execution is bound by kernel
launches. A graph reads and writes fixed addresses: each population shape has its own buffers,
filled by one upload, and results are copied out, because traces and states outlive the next step.
Weights change in place, so a graph stays valid over updates.

Shape letters: E members, A heads, D width, X columns of `step_outputs.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from esper.device.graphs import GraphCache
from esper.device.packing import PackedArrays
from esper.leyline.actions import ActionHead
from esper.leyline.arrays import Floats
from esper.leyline.masks import ActionMasks
from esper.simic.agent.step_outputs import CHOICE_A, LOG_PROB_A, OUTPUT_COLUMNS, pack_outputs
from esper.tamiyo.heads import Chooser
from esper.tamiyo.inputs import NamedArrays, Observation, PolicyInputs
from esper.tamiyo.network import PolicyNetwork, PolicyState

EPSILON, UNIFORM = "epsilon", "uniform_A"


@dataclass(frozen=True, slots=True, eq=False)
class ActRequest:
    """Inputs of one policy step; all but the state are on the host."""

    obs: Observation
    """Normalised observation."""
    masks: ActionMasks
    state: PolicyState
    epsilon: float
    uniform_EA: Floats | None
    """Uniform draws to sample with; None: greedy."""
    needed: frozenset[ActionHead]
    """Heads that some legal operation uses."""


@dataclass(frozen=True, slots=True, eq=False)
class ActResult:
    """Outputs of one policy step on the device; never overwritten."""

    inputs: PolicyInputs
    choice_EA: Tensor
    log_prob_EA: Tensor
    outputs_EX: Tensor
    """Outputs for the host; columns of `step_outputs.py`."""
    state: PolicyState
    """Recurrent state after the step."""


def run_eager(network: PolicyNetwork, device: torch.device, request: ActRequest) -> ActResult:
    """Run one step without graphs."""
    inputs = PolicyInputs.of(request.obs, request.masks, device)
    chooser = Chooser()
    if request.uniform_EA is not None:
        uniform_EA = torch.from_numpy(request.uniform_EA).to(device, non_blocking=True)
        chooser = Chooser(uniform_A=uniform_EA)
    with torch.inference_mode():
        epsilon = torch.full((1, 1), request.epsilon, device=device)
        output, after = network.step(inputs, request.state, epsilon, chooser, request.needed)
        choices = output.choices
        return ActResult(inputs, choices.choice_A, choices.log_prob_A, pack_outputs(output), after)


class ReplayedSteps:
    """Runs steps by graph replay: one graph per population shape and set of heads."""

    def __init__(self, network: PolicyNetwork, device: torch.device, graphs: GraphCache) -> None:
        self.network, self.device, self.graphs = network, device, graphs
        self._buffers: dict[object, _GraphBuffers] = {}
        """Never dropped: graphs refer to their addresses."""

    @torch.inference_mode()
    def step(self, request: ActRequest) -> ActResult:
        """Run one step; same results as `run_eager`."""
        arrays, state = _arrays(request), request.state
        sizes = tuple((name, array.shape, array.dtype.str) for name, array in arrays.items())
        form = (sizes, state.hidden_ED.shape)
        buffers = self._buffers.get(form)
        if buffers is None:
            buffers = self._buffers[form] = _GraphBuffers(arrays, state, self.device)
        else:
            buffers.packed.fill(arrays)
        buffers.hidden_ED.copy_(state.hidden_ED)
        buffers.cell_ED.copy_(state.cell_ED)
        work = partial(_compute, self.network, buffers, request.needed)
        self.graphs.run((buffers, request.needed), work)
        return buffers.result()


class _GraphBuffers:
    """Static input and output buffers for the graphs of one population shape."""

    def __init__(self, arrays: NamedArrays, state: PolicyState, device: torch.device) -> None:
        self.packed = PackedArrays(arrays, device)
        self.hidden_ED, self.cell_ED = (
            torch.empty(part.shape, dtype=part.dtype, device=device)
            for part in (state.hidden_ED, state.cell_ED)
        )
        self.members, self.width = state.hidden_ED.shape
        length = self.members * (OUTPUT_COLUMNS + 2 * self.width)
        self.out = torch.empty(length, device=device)
        """`outputs_EX`, then the state after the step."""

    def result(self) -> ActResult:
        """Return copies of inputs and outputs."""
        inputs = PolicyInputs.from_tensors(self.packed.clone())
        out, end = self.out.clone(), self.members * OUTPUT_COLUMNS
        outputs_EX = out[:end].view(self.members, OUTPUT_COLUMNS)
        state = PolicyState(*out[end:].view(2, self.members, self.width))
        choice_EA = outputs_EX[:, CHOICE_A].to(torch.int64)
        return ActResult(inputs, choice_EA, outputs_EX[:, LOG_PROB_A], outputs_EX, state)


def _arrays(request: ActRequest) -> NamedArrays:
    """All host inputs by name, for one upload."""
    arrays = PolicyInputs.arrays(request.obs, request.masks)
    arrays[EPSILON] = np.full((1, 1), request.epsilon, dtype=np.float32)
    if request.uniform_EA is not None:
        arrays[UNIFORM] = request.uniform_EA
    return arrays


def _compute(network: PolicyNetwork, buffers: _GraphBuffers, needed: frozenset[ActionHead]) -> None:
    """Device work of a step, from buffers to buffers; this is what a graph captures."""
    tensors, state = buffers.packed.tensors, PolicyState(buffers.hidden_ED, buffers.cell_ED)
    chooser = Chooser(uniform_A=tensors.get(UNIFORM))
    inputs = PolicyInputs.from_tensors(tensors)
    output, after = network.step(inputs, state, tensors[EPSILON], chooser, needed)
    parts = (pack_outputs(output), after.hidden_ED, after.cell_ED)
    torch.cat([part.flatten() for part in parts], out=buffers.out)
