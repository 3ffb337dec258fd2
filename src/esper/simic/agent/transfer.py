"""Adapts an agent to hosts with other blueprints than it was trained with.

Only the blueprint embeddings depend on the blueprints, one row each. They are matched by name: a
known blueprint keeps its embedding and Adam moments at its new index, removed ones are dropped, and
new ones raise, or get a fresh embedding if `allow_new`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from esper.leyline.errors import EsperError
from esper.simic.agent.config import PPOConfig
from esper.simic.agent.saving import A, AgentState
from esper.tamiyo.network_config import PolicySpec

TABLE: Final = "blueprints.weight"
"""Name of the embeddings; row 0 is no seed, row 1 + i is blueprint i."""


def adapt_agent(
    build: Callable[[PolicySpec, PPOConfig, int, str | torch.device], A],
    agent: A,
    blueprints: tuple[str, ...],
    allow_new: bool,
) -> A:
    """Return a copy of `agent` for `blueprints`.

    `build` creates a fresh agent.
    """
    known = agent.spec.blueprints
    new = [name for name in blueprints if name not in known]
    if new and not allow_new:
        raise EsperError(
            f"blueprints {', '.join(new)}: this controller was trained with {', '.join(known)} "
            f"only; leave them out, or pass allow_new=True to start from fresh embeddings"
        )
    if len(set(blueprints)) != len(blueprints):
        raise EsperError(f"blueprints {', '.join(blueprints)}: each may be named once")
    spec = replace(agent.spec, blueprints=blueprints)
    other = build(spec, agent.config, agent.seed, agent.device)
    rows = [(0, 0)]
    rows += [(1 + known.index(n), 1 + i) for i, n in enumerate(blueprints) if n in known]
    _copy_network(agent, other, rows)
    other.obs_normalizer.restore(agent.obs_normalizer.state())
    other.reward_normalizer.restore(agent.reward_normalizer.state())
    other.updates_done, other.run_updates = agent.updates_done, agent.run_updates
    return other


def _copy_network(agent: AgentState, other: AgentState, rows: list[tuple[int, int]]) -> None:
    """Copy weights and Adam moments; of the embeddings only `rows` (from, to)."""
    theirs = dict(other.network.named_parameters())
    for name, parameter in agent.network.named_parameters():
        target = theirs[name]
        _copy(name, parameter.detach(), target.detach(), rows)
        state = agent.optimizer.state.get(parameter)
        if not state:
            continue
        moments = {
            "step": state["step"].clone(),
            "exp_avg": torch.zeros_like(target),
            "exp_avg_sq": torch.zeros_like(target),
        }
        for moment in ("exp_avg", "exp_avg_sq"):
            _copy(name, state[moment], moments[moment], rows)
        other.optimizer.state[target] = moments


def _copy(name: str, source: Tensor, target: Tensor, rows: list[tuple[int, int]]) -> None:
    if name != TABLE:
        target.copy_(source)
        return
    for old, now in rows:
        target[now] = source[old]
