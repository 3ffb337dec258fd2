"""Deciding for more members takes not one Python call more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from call_support import differences, warm_calls
from esper.leyline import PolicyProtocol
from esper.tamiyo import (
    FixedSchedule,
    HeuristicPolicy,
    RandomPolicy,
    ScheduleConfig,
    ScheduleEntry,
    SignalTracker,
    WaitPolicy,
)
from support import make_population
from tamiyo_support import Drive, masks_of, observe, worthless_signals

POLICIES: dict[str, Callable[[], PolicyProtocol[Any]]] = {
    "wait": WaitPolicy,
    "random": lambda: RandomPolicy(0),
    "schedule": lambda: FixedSchedule(ScheduleConfig((ScheduleEntry(0, "r0c0", "norm"),))),
    "heuristic": HeuristicPolicy,
}


@pytest.mark.parametrize("name", POLICIES)
def test_act_and_masks(name: str):
    def step(members: int) -> Callable[[], object]:
        drive = Drive(POLICIES[name](), make_population(members), worthless_signals).run(20)
        obs = observe(drive.population, 20)
        return lambda: drive.policy.act(obs, masks_of(drive.population), drive.state)

    few = warm_calls(step(2))
    assert few
    assert not differences(few, warm_calls(step(20)))


def test_reset():
    def reset(members: int) -> Callable[[], object]:
        drive = Drive(HeuristicPolicy(), make_population(members)).run(3)
        every_other = np.arange(members) % 2 == 0
        return lambda: drive.policy.reset_state(drive.state, every_other)

    assert not differences(warm_calls(reset(2)), warm_calls(reset(20)))


def test_tracker():
    def update(members: int) -> Callable[[], object]:
        tracker = SignalTracker(members)
        losses = np.linspace(0, 1, members)
        return lambda: (tracker.update(losses, losses, losses), tracker.reset(losses > 0.5))

    assert not differences(warm_calls(update(2)), warm_calls(update(20)))
