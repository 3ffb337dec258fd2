"""Tamiyo: policies. Signal tracking, action masks, baselines, and the learned policy network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper.leyline.lazy import attach

if TYPE_CHECKING:
    from esper.tamiyo.actions import parse_sampled_action as parse_sampled_action
    from esper.tamiyo.baselines import RandomPolicy as RandomPolicy
    from esper.tamiyo.baselines import StaticTopology as StaticTopology
    from esper.tamiyo.baselines import WaitPolicy as WaitPolicy
    from esper.tamiyo.heuristic import HeuristicConfig as HeuristicConfig
    from esper.tamiyo.heuristic import HeuristicPolicy as HeuristicPolicy
    from esper.tamiyo.inputs import Observation as Observation
    from esper.tamiyo.masks import build_masks as build_masks
    from esper.tamiyo.network import PolicyNetwork as PolicyNetwork
    from esper.tamiyo.network import PolicyState as PolicyState
    from esper.tamiyo.network_config import NetworkConfig as NetworkConfig
    from esper.tamiyo.network_config import PolicySpec as PolicySpec
    from esper.tamiyo.schedule import FixedSchedule as FixedSchedule
    from esper.tamiyo.schedule import ScheduleConfig as ScheduleConfig
    from esper.tamiyo.schedule import ScheduleEntry as ScheduleEntry
    from esper.tamiyo.signals import SignalConfig as SignalConfig
    from esper.tamiyo.signals import SignalTracker as SignalTracker
    from esper.tamiyo.signals import TrackedSignals as TrackedSignals
else:
    __getattr__, __dir__, __all__ = attach(__name__)
