"""How a step of the policy is computed: as it is told, or by replaying a captured CUDA graph.

A step is a few hundred kernels on tensors of a few kilobytes: told one by one, a GPU waits for
Python. A graph reads and writes tensors that stay where they are, so every shape of population has
a room: what the host says is filled in by one upload, what was computed lies in one vector, and
only copies leave it, for traces and states outlive the next step. Weights change in place: a graph
stays good over updates.

Shape letters: E members, A heads, D width, X numbers of a member that the host is told.
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
from esper.simic.agent.step_outputs import CHOICE_A, LOG_PROB_A, TOLD, tell
from esper.tamiyo.heads import Chooser
from esper.tamiyo.inputs import NamedArrays, Observation, PolicyInputs
from esper.tamiyo.network import PolicyNetwork, PolicyState

EPSILON, UNIFORM = "epsilon", "uniform_A"


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """What the network is asked; all but the state lies on the host."""

    obs: Observation
    """Normalised."""
    masks: ActionMasks
    state: PolicyState
    epsilon: float
    uniform_EA: Floats | None
    """Numbers to sample at; None takes the likeliest choices."""
    needed: frozenset[ActionHead]
    """Heads that some legal operation asks for."""


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What came of it, on the device; nothing here is written to again."""

    inputs: PolicyInputs
    choice_EA: Tensor
    log_prob_EA: Tensor
    outputs_EX: Tensor
    """For the host, in the columns of `told.py`."""
    state: PolicyState
    """After the step."""


def run_eager(network: PolicyNetwork, device: torch.device, question: Question) -> Answer:
    """One step, kernel by kernel."""
    inputs = PolicyInputs.of(question.obs, question.masks, device)
    chooser = Chooser()
    if question.uniform_EA is not None:
        uniform_EA = torch.from_numpy(question.uniform_EA).to(device, non_blocking=True)
        chooser = Chooser(uniform_A=uniform_EA)
    with torch.inference_mode():
        epsilon = torch.full((1, 1), question.epsilon, device=device)
        output, after = network.step(inputs, question.state, epsilon, chooser, question.needed)
        choices = output.choices
        return Answer(inputs, choices.choice_A, choices.log_prob_A, tell(output), after)


class ReplayedSteps:
    """Steps of one network by replay: a graph per shape of population and set of heads."""

    def __init__(self, network: PolicyNetwork, device: torch.device, graphs: GraphCache) -> None:
        self.network, self.device, self.graphs = network, device, graphs
        self._rooms: dict[object, _Room] = {}
        """Never dropped: graphs know their addresses."""

    @torch.inference_mode()
    def step(self, question: Question) -> Answer:
        """One step; the same numbers as `run_eager` gives."""
        arrays, state = _arrays(question), question.state
        sizes = tuple((name, array.shape, array.dtype.str) for name, array in arrays.items())
        form = (sizes, state.hidden_ED.shape)
        room = self._rooms.get(form)
        if room is None:
            room = self._rooms[form] = _Room(arrays, state, self.device)
        else:
            room.packed.fill(arrays)
        room.hidden_ED.copy_(state.hidden_ED)
        room.cell_ED.copy_(state.cell_ED)
        work = partial(_compute, self.network, room, question.needed)
        self.graphs.run((room, question.needed), work)
        return room.answer()


class _Room:
    """Where the graphs of one shape of population read and write."""

    def __init__(self, arrays: NamedArrays, state: PolicyState, device: torch.device) -> None:
        self.packed = PackedArrays(arrays, device)
        self.hidden_ED, self.cell_ED = (
            torch.empty(part.shape, dtype=part.dtype, device=device)
            for part in (state.hidden_ED, state.cell_ED)
        )
        self.members, self.width = state.hidden_ED.shape
        length = self.members * (TOLD + 2 * self.width)
        self.out = torch.empty(length, device=device)
        """What the host is told, then the state after the step."""

    def answer(self) -> Answer:
        """Copies of what the step read and wrote."""
        inputs = PolicyInputs.from_tensors(self.packed.clone())
        out, end = self.out.clone(), self.members * TOLD
        outputs_EX = out[:end].view(self.members, TOLD)
        state = PolicyState(*out[end:].view(2, self.members, self.width))
        choice_EA = outputs_EX[:, CHOICE_A].to(torch.int64)
        return Answer(inputs, choice_EA, outputs_EX[:, LOG_PROB_A], outputs_EX, state)


def _arrays(question: Question) -> NamedArrays:
    """All that the host says, by name: one upload."""
    arrays = PolicyInputs.arrays(question.obs, question.masks)
    arrays[EPSILON] = np.full((1, 1), question.epsilon, dtype=np.float32)
    if question.uniform_EA is not None:
        arrays[UNIFORM] = question.uniform_EA
    return arrays


def _compute(network: PolicyNetwork, room: _Room, needed: frozenset[ActionHead]) -> None:
    """Only what the device does, from the room to the room."""
    tensors, state = room.packed.tensors, PolicyState(room.hidden_ED, room.cell_ED)
    chooser = Chooser(uniform_A=tensors.get(UNIFORM))
    inputs = PolicyInputs.from_tensors(tensors)
    output, after = network.step(inputs, state, tensors[EPSILON], chooser, needed)
    parts = (tell(output), after.hidden_ED, after.cell_ED)
    torch.cat([part.flatten() for part in parts], out=room.out)
