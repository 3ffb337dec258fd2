"""What is saved of an agent, and what must fit when it is loaded.

A save holds all it takes to go on as if it had never stopped: weights, Adam's moments, the running
statistics, the count of updates, seed and settings. A load builds a new agent from the settings,
lists its tensors under the same names as the save does, and copies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from esper.leyline.codec import read_record
from esper.leyline.errors import EsperError
from esper.simic.agent.config import PPOConfig
from esper.simic.control.normalizers import Arrays, ObservationNormalizer, RewardNormalizer
from esper.storage.saves import PathLike, Saved, read_save, write_save
from esper.tamiyo.network import PolicyNetwork
from esper.tamiyo.network_config import PolicySpec


class AgentState(Protocol):
    """What there is to save of an agent; `PPOAgent` has it."""

    spec: PolicySpec
    config: PPOConfig
    seed: int
    device: torch.device
    updates_done: int
    run_updates: int | None
    network: PolicyNetwork
    optimizer: torch.optim.Adam
    obs_normalizer: ObservationNormalizer
    reward_normalizer: RewardNormalizer


A = TypeVar("A", bound=AgentState)

_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True)
class AgentContent:
    """An agent without its tensors."""

    spec: PolicySpec
    config: PPOConfig
    seed: int
    updates_done: int
    moments: tuple[str, ...]
    """Parameters that Adam has moments of: those that a gradient has reached."""
    run_updates: int | None = None
    """Updates of the whole run, where it was trained in one."""


@dataclass(frozen=True, slots=True, eq=False)
class AgentCapture:
    """An agent as it stood at one moment, on the host; it may learn on meanwhile."""

    content: AgentContent
    tensors: dict[str, Tensor]
    """Copies, by the names of the save."""

    def write(self, path: PathLike) -> None:
        """Into a folder, in place of the save that may be there."""
        write_save(path, "controller", self.content, self.tensors)


def capture_agent(agent: AgentState) -> AgentCapture:
    """All that a save holds, in memory: a copy of a few megabytes at most."""
    # SYNC: waits for the device, between rounds; never in the step.
    tensors = {n: t.to("cpu", copy=True) for n, t in _tensors(agent).items()}
    return AgentCapture(_content(agent), tensors)


def save_agent(agent: AgentState, path: PathLike) -> None:
    """Write an agent into a folder, in place of the save that may be there."""
    write_save(path, "controller", _content(agent), _tensors(agent))


def _content(agent: AgentState) -> AgentContent:
    moved = [n for n, p in agent.network.named_parameters() if p in agent.optimizer.state]
    done, run = agent.updates_done, agent.run_updates
    return AgentContent(agent.spec, agent.config, agent.seed, done, tuple(moved), run)


def _tensors(agent: AgentState) -> dict[str, Tensor]:
    return _weights(agent) | _moments(agent) | _statistics(agent)


def load_agent(
    build: Callable[[PolicySpec, PPOConfig, int, str | torch.device], A],
    path: PathLike,
    device: str | torch.device,
    spec: PolicySpec | None,
    config: PPOConfig | None,
) -> A:
    """The agent a folder holds; `build` makes a fresh one."""
    saved = read_save(path, "controller")
    content = read_record(AgentContent, saved.content, saved.where)
    if spec is not None:
        _require_same(content.spec, spec, "PolicySpec", saved.where)
    if config is not None:
        _require_same(content.config.network, config.network, "NetworkConfig", saved.where)
    agent = build(content.spec, config or content.config, content.seed, device)
    agent.updates_done, agent.run_updates = content.updates_done, content.run_updates
    _start_moments(agent, content.moments)
    _fill(agent, saved)
    return agent


def _require_same(found: object, wanted: object, kind: str, where: str) -> None:
    """Both are of one dataclass; the first field that differs is named."""
    for field in fields(wanted):  # type: ignore[arg-type]
        ours, theirs = getattr(wanted, field.name), getattr(found, field.name)
        if ours != theirs:
            raise EsperError(
                f"{where}: {kind}.{field.name} is {theirs!r} in the save, {ours!r} here: "
                f"load it with what it was made with, or train a new agent"
            )


def _weights(agent: AgentState) -> dict[str, Tensor]:
    return {f"network/{name}": p.detach() for name, p in agent.network.named_parameters()}


def _moments(agent: AgentState) -> dict[str, Tensor]:
    state = agent.optimizer.state
    return {
        f"optimizer/{name}/{moment}": state[parameter][moment]
        for name, parameter in agent.network.named_parameters()
        if parameter in state
        for moment in _MOMENTS
    }


def _start_moments(agent: AgentState, moved: tuple[str, ...]) -> None:
    """Adam's moments of a fresh agent, to be filled; fused Adam keeps its step on the device."""
    for name, parameter in agent.network.named_parameters():
        if name not in moved:
            continue
        agent.optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }


def _statistics(agent: AgentState) -> dict[str, Tensor]:
    groups = {
        "observation": agent.obs_normalizer.state(),
        "reward": agent.reward_normalizer.state(),
    }
    return {
        f"{group}/{name}": torch.from_numpy(array)
        for group, arrays in groups.items()
        for name, array in arrays.items()
    }


def _fill(agent: AgentState, saved: Saved) -> None:
    """Copy every tensor of the save into the agent; all must fit."""
    own = _weights(agent) | _moments(agent)
    statistics = _statistics(agent)
    names = own.keys() | statistics.keys()
    for name in sorted(names ^ saved.tensors.keys()):
        lacks = "the save" if name in names else "this agent"
        raise EsperError(f"{saved.where}: {lacks} has no tensor {name!r}; load another save")
    for name, tensor in own.items():
        _require_form(name, tensor, saved)
        with torch.no_grad():
            tensor.copy_(saved.tensors[name])
    for name, tensor in statistics.items():
        if name != "reward/return":  # one number per member of the run that was saved
            _require_form(name, tensor, saved)
    agent.obs_normalizer.restore(_group(saved, "observation"))
    agent.reward_normalizer.restore(_group(saved, "reward"))


def _group(saved: Saved, group: str) -> Arrays:
    """The arrays of one normaliser."""
    prefix = f"{group}/"
    named = saved.tensors.items()
    return {n.removeprefix(prefix): t.numpy() for n, t in named if n.startswith(prefix)}


def _require_form(name: str, tensor: Tensor, saved: Saved) -> None:
    found = saved.tensors[name]
    if (found.shape, found.dtype) != (tensor.shape, tensor.dtype):
        raise EsperError(
            f"{saved.where}: tensor {name!r} is {tuple(found.shape)} {found.dtype}, expected "
            f"{tuple(tensor.shape)} {tensor.dtype}; load another save"
        )
