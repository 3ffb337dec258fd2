"""Which hub does this process record with?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from esper.leyline.telemetry import TelemetryLevel
from esper.nissa.hub import TelemetryHub

_hub = TelemetryHub((), TelemetryLevel.OFF)


def get_hub() -> TelemetryHub:
    """The hub of this process; it does nothing until `set_hub` or `use_hub` names another."""
    return _hub


def set_hub(hub: TelemetryHub) -> TelemetryHub:
    """Record with `hub` from now on; returns the one before, which stays open."""
    global _hub
    before, _hub = _hub, hub
    return before


@contextmanager
def use_hub(hub: TelemetryHub) -> Iterator[TelemetryHub]:
    """Record with `hub` inside the block, close it at its end, and go back to the one before."""
    before = set_hub(hub)
    try:
        yield hub
    finally:
        set_hub(before)
        hub.close()
