"""The hub of the process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from esper.leyline.telemetry import TelemetryLevel
from esper.nissa.hub import TelemetryHub

_hub = TelemetryHub((), TelemetryLevel.OFF)


def get_hub() -> TelemetryHub:
    """Return the hub of this process; a no-op hub until `set_hub` or `use_hub` is called."""
    return _hub


def set_hub(hub: TelemetryHub) -> TelemetryHub:
    """Replace the hub of this process; return the previous one, which stays open."""
    global _hub
    before, _hub = _hub, hub
    return before


@contextmanager
def use_hub(hub: TelemetryHub) -> Iterator[TelemetryHub]:
    """Use `hub` inside the block, then close it and restore the previous one."""
    before = set_hub(hub)
    try:
        yield hub
    finally:
        set_hub(before)
        hub.close()
