"""Torch's process-wide switches, put back after user code: Esper computes as before.

Torch itself is not imported: where nothing has loaded it, there is nothing to put back. Random
generators are left alone: Esper draws from its own streams, and a policy from its own.
"""

from __future__ import annotations

import logging
import re
import sys
from types import ModuleType
from typing import Any, Final

_log = logging.getLogger(__name__)

_Switches = tuple[Any, ...]
"""Values of the switches, in the order of `_SETTERS`."""
_SETTERS: Final = (
    "set_grad_enabled",
    "set_default_dtype",
    "set_default_device",
    "set_deterministic_debug_mode",
    "set_num_threads",
)
_SUBJECT: Final = re.compile(r" fails?\b| cannot\b")
_warned: set[tuple[str, str]] = set()
"""Who changed which switch: a policy that does it at every step is named once."""


def read_switches() -> _Switches | None:
    """Return the switches as they are; None if torch is not loaded."""
    torch = sys.modules.get("torch")
    return None if torch is None else _read(torch)


def put_back(before: _Switches | None, what: str) -> None:
    """Restore the switches and name in one line what was changed; `what`: as for `user_code`.

    Without switches from before, torch's own defaults count.
    """
    torch = sys.modules.get("torch")
    if torch is None or (found := _read(torch)) == before:
        return
    expected = before or (True, torch.float32, torch.device("cpu"), 0, found[-1])
    for name, value, wanted in zip(_SETTERS, found, expected, strict=True):
        if value != wanted:
            # None, unlike the CPU by name, leaves no mode behind that slows every call down.
            plain = name == "set_default_device" and wanted.type == "cpu"
            getattr(torch, name)(None if plain else wanted)
            _warn(_SUBJECT.split(what)[0], f"torch.{name}({value})", str(wanted))


def _read(torch: ModuleType) -> _Switches:
    return (
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.empty(0).device,  # a tenth of the time of torch.get_default_device()
        torch.get_deterministic_debug_mode(),
        torch.get_num_threads(),
    )


def _warn(subject: str, change: str, wanted: str) -> None:
    key = re.sub(r"\d+", "", subject), change  # sample 17 and sample 18 are one culprit
    if key not in _warned:
        _warned.add(key)
        _log.warning("%s calls %s: put back to %s", subject, change, wanted)
