"""Saving and loading of agents.

A save holds everything needed to resume bit for bit: weights, Adam's moments, running statistics,
update count, seed and settings. Loading builds a new agent from the settings and copies the tensors
by name.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from esper.leyline.codec import read_record
from esper.leyline.errors import EsperError
from esper.simic.agent.config import PPOConfig
from esper.simic.control.normalizers import Arrays
from esper.storage.saves import PathLike, Saved, read_save, write_save
from esper.tamiyo.network_config import PolicySpec

if TYPE_CHECKING:
    from esper.simic.agent.agent import PPOAgent


_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True)
class _AgentContent:
    """The JSON part of a save: everything but tensors."""

    spec: PolicySpec
    config: PPOConfig
    seed: int
    updates_done: int
    moments: tuple[str, ...]
    """Names of the parameters that have Adam moments."""
    run_updates: int | None = None
    """Updates of the whole run; None outside a training run."""


@dataclass(frozen=True, slots=True, eq=False)
class AgentCapture:
    """Copy of an agent on the host; the agent may keep training meanwhile."""

    content: _AgentContent
    tensors: dict[str, Tensor]
    """Copies by tensor name."""

    def write(self, path: PathLike) -> None:
        """Write to a folder, replacing an existing save."""
        write_save(path, "controller", self.content, self.tensors)


def capture_agent(agent: PPOAgent) -> AgentCapture:
    """Copy an agent to host memory; a few megabytes at most."""
    # SYNC: waits for the device, between rounds; never in the step.
    tensors = {n: t.to("cpu", copy=True) for n, t in _tensors(agent).items()}
    return AgentCapture(_content(agent), tensors)


def _content(agent: PPOAgent) -> _AgentContent:
    moved = [n for n, p in agent.network.named_parameters() if p in agent.optimizer.state]
    done, run = agent.updates_done, agent.run_updates
    return _AgentContent(agent.spec, agent.config, agent.seed, done, tuple(moved), run)


def _tensors(agent: PPOAgent) -> dict[str, Tensor]:
    return _weights(agent) | _moments(agent) | _statistics(agent)


def load_agent(
    kind: type[PPOAgent],
    path: PathLike,
    device: str | torch.device,
    spec: PolicySpec | None,
    config: PPOConfig | None,
) -> PPOAgent:
    """Load the agent from a folder into a fresh one."""
    saved = read_save(path, "controller")
    try:
        content = read_record(_AgentContent, saved.content, saved.where)
    except EsperError as error:
        raise EsperError(f"{error}; if an earlier version wrote it, train a new one") from None
    if spec is not None:
        _require_same(content.spec, spec, "PolicySpec", saved.where)
    if config is not None:
        _require_same(content.config.network, config.network, "NetworkConfig", saved.where)
    agent = kind(content.spec, config or content.config, content.seed, device)
    agent.updates_done, agent.run_updates = content.updates_done, content.run_updates
    _init_moments(agent, content.moments)
    _copy_tensors(agent, saved)
    return agent


def _require_same(found: object, wanted: object, kind: str, where: str) -> None:
    """Raise on the first field in which two instances of a dataclass differ."""
    for field in fields(wanted):  # type: ignore[arg-type]
        ours, theirs = getattr(wanted, field.name), getattr(found, field.name)
        if ours != theirs:
            raise EsperError(
                f"{where}: {kind}.{field.name} is {theirs!r} in the save, {ours!r} here: "
                f"load it with the value it was saved with, or train a new agent"
            )


def _weights(agent: PPOAgent) -> dict[str, Tensor]:
    return {f"network/{name}": p.detach() for name, p in agent.network.named_parameters()}


def _moments(agent: PPOAgent) -> dict[str, Tensor]:
    state = agent.optimizer.state
    return {
        f"optimizer/{name}/{moment}": state[parameter][moment]
        for name, parameter in agent.network.named_parameters()
        if parameter in state
        for moment in _MOMENTS
    }


def _init_moments(agent: PPOAgent, moved: tuple[str, ...]) -> None:
    """Create zero Adam moments to copy into; fused Adam keeps `step` on the device."""
    for name, parameter in agent.network.named_parameters():
        if name not in moved:
            continue
        agent.optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }


def _statistics(agent: PPOAgent) -> dict[str, Tensor]:
    groups = {
        "observation": agent.obs_normalizer.state(),
        "reward": agent.reward_normalizer.state(),
    }
    return {
        f"{group}/{name}": torch.from_numpy(array)
        for group, arrays in groups.items()
        for name, array in arrays.items()
    }


def _copy_tensors(agent: PPOAgent, saved: Saved) -> None:
    """Copy all tensors of the save into the agent; raises on any mismatch."""
    own = _weights(agent) | _moments(agent)
    statistics = _statistics(agent)
    names = own.keys() | statistics.keys()
    for name in sorted(names ^ saved.tensors.keys()):
        lacks = "the save" if name in names else "this agent"
        raise EsperError(f"{saved.where}: {lacks} has no tensor {name!r}; load another save")
    for name, tensor in own.items():
        _require_shape(name, tensor, saved)
        with torch.no_grad():
            tensor.copy_(saved.tensors[name])
    for name, tensor in statistics.items():
        if name != "reward/return":  # its size is the number of members of the saved run
            _require_shape(name, tensor, saved)
    agent.obs_normalizer.restore(_group(saved, "observation"))
    agent.reward_normalizer.restore(_group(saved, "reward"))


def _group(saved: Saved, group: str) -> Arrays:
    """Arrays of one normaliser."""
    prefix = f"{group}/"
    named = saved.tensors.items()
    return {n.removeprefix(prefix): t.numpy() for n, t in named if n.startswith(prefix)}


def _require_shape(name: str, tensor: Tensor, saved: Saved) -> None:
    found = saved.tensors[name]
    if (found.shape, found.dtype) != (tensor.shape, tensor.dtype):
        raise EsperError(
            f"{saved.where}: tensor {name!r} is {tuple(found.shape)} {found.dtype}, expected "
            f"{tuple(tensor.shape)} {tensor.dtype}; load another save"
        )
