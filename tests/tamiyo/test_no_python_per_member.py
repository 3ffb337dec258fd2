"""Deciding for more members takes not one Python call more."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

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


def calls_of(work: Callable[[], object]) -> Counter[str]:
    """Calls of Python and C functions while `work` runs, by name."""
    calls: Counter[str] = Counter()

    def watch(frame: Any, event: str, arg: Any) -> None:
        if event == "call":
            calls[frame.f_code.co_qualname] += 1
        elif event == "c_call":
            calls[f"c:{getattr(arg, '__qualname__', arg)}"] += 1

    work()  # whatever is cached at first use
    gc.disable()
    sys.setprofile(watch)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


@pytest.mark.parametrize("name", POLICIES)
def test_act_and_masks(name: str):
    def step(members: int) -> Callable[[], object]:
        drive = Drive(POLICIES[name](), make_population(members), worthless_signals).run(20)
        obs = observe(drive.population, 20)
        return lambda: drive.policy.act(obs, masks_of(drive.population), drive.state)

    few = calls_of(step(2))
    assert few
    assert few == calls_of(step(20))


def test_reset():
    def reset(members: int) -> Callable[[], object]:
        drive = Drive(HeuristicPolicy(), make_population(members)).run(3)
        every_other = np.arange(members) % 2 == 0
        return lambda: drive.policy.reset_state(drive.state, every_other)

    assert calls_of(reset(2)) == calls_of(reset(20))


def test_tracker():
    def update(members: int) -> Callable[[], object]:
        tracker = SignalTracker(members)
        losses = np.linspace(0, 1, members)
        return lambda: (tracker.update(losses, losses, losses), tracker.reset(losses > 0.5))

    assert calls_of(update(2)) == calls_of(update(20))
