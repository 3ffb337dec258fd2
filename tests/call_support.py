"""How often is Python called? Work that is one call for all members is the same count for any E."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any


def python_calls(work: Callable[[], object]) -> Counter[str]:
    """Every call of a Python function and of a C function while `work` runs, by name."""
    calls: Counter[str] = Counter()

    def watch(frame: FrameType, event: str, arg: Any) -> None:
        if event == "call":
            calls[f"{frame.f_code.co_filename}:{frame.f_code.co_qualname}"] += 1
        elif event == "c_call":
            calls[f"c:{getattr(arg, '__qualname__', arg)}"] += 1

    gc.disable()  # its callbacks would be counted
    sys.setprofile(watch)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


def warm_calls(work: Callable[[], object]) -> Counter[str]:
    """The calls of a second run: what is cached at first use is left out."""
    work()
    return python_calls(work)


def differences(few: Counter[str], many: Counter[str]) -> dict[str, tuple[int, int]]:
    """What was called more often in one of two counts."""
    names = few.keys() | many.keys()
    return {name: (few[name], many[name]) for name in names if few[name] != many[name]}
