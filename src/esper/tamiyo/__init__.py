"""Tamiyo: who decides. Signals, masks, action decoding, policies, the policy network."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esper.tamiyo.actions import parse_sampled_action
    from esper.tamiyo.baselines import RandomPolicy, StaticTopology, WaitPolicy
    from esper.tamiyo.heuristic import HeuristicConfig, HeuristicPolicy
    from esper.tamiyo.inputs import Observation
    from esper.tamiyo.masks import build_masks
    from esper.tamiyo.network import PolicyNetwork, PolicyState
    from esper.tamiyo.network_config import NetworkConfig, PolicySpec
    from esper.tamiyo.schedule import FixedSchedule, ScheduleConfig, ScheduleEntry
    from esper.tamiyo.signals import SignalConfig, SignalTracker, TrackedSignals

_HOME = {
    "FixedSchedule": "schedule",
    "HeuristicConfig": "heuristic",
    "HeuristicPolicy": "heuristic",
    "NetworkConfig": "network_config",
    "Observation": "inputs",
    "PolicyNetwork": "network",
    "PolicySpec": "network_config",
    "PolicyState": "network",
    "RandomPolicy": "baselines",
    "ScheduleConfig": "schedule",
    "ScheduleEntry": "schedule",
    "SignalConfig": "signals",
    "SignalTracker": "signals",
    "StaticTopology": "baselines",
    "TrackedSignals": "signals",
    "WaitPolicy": "baselines",
    "build_masks": "masks",
    "parse_sampled_action": "actions",
}

__all__ = [
    "FixedSchedule",
    "HeuristicConfig",
    "HeuristicPolicy",
    "NetworkConfig",
    "Observation",
    "PolicyNetwork",
    "PolicySpec",
    "PolicyState",
    "RandomPolicy",
    "ScheduleConfig",
    "ScheduleEntry",
    "SignalConfig",
    "SignalTracker",
    "StaticTopology",
    "TrackedSignals",
    "WaitPolicy",
    "build_masks",
    "parse_sampled_action",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
