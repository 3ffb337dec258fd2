"""What a training run was set up with: names behind indices, sizes, device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from esper.karn.views.damage import reader
from esper.karn.views.tables import EventTables
from esper.leyline.telemetry import TelemetryEventType


@dataclass(frozen=True, slots=True)
class RunSetup:
    """Setup of the last session of a training run."""

    task: str
    policy: str
    seed: int
    rounds: int
    members: int
    episode_length: int
    batches_per_step: int
    batch_size: int
    profile: str
    executor: str
    executor_reason: str
    device: str
    slots: tuple[str, ...]
    blueprints: tuple[str, ...]
    host_params: int
    host_macs: int

    def slot(self, index: int) -> str:
        """Name of a slot; its number if it is unknown."""
        return _name(self.slots, index)

    def blueprint(self, index: int) -> str:
        """Name of a blueprint; empty if there is none."""
        return "" if index < 0 else _name(self.blueprints, index)


def _name(names: tuple[str, ...], index: int) -> str:
    return names[index] if 0 <= index < len(names) else str(index)


@reader
def read_setup(run: Path) -> RunSetup | None:
    """Setup of a training run; None if it has no events (yet)."""
    return setup_of(EventTables.of(run))


def setup_of(tables: EventTables) -> RunSetup | None:
    """As `read_setup`, from tables."""
    rows = tables.rows(TelemetryEventType.RUN_STARTED)
    if not rows:
        return None
    last = rows[-1]
    same = {
        name: last[name]
        for name in RunSetup.__dataclass_fields__
        if name not in ("slots", "blueprints", "device")
    }
    return RunSetup(
        **same,
        device=last["payload_device"],
        slots=tuple(last["slot_ids"]),
        blueprints=tuple(last["blueprints"]),
    )


NO_SETUP = RunSetup("", "", 0, 0, 0, 0, 0, 0, "", "", "", "", (), (), 0, 0)
"""Of a run without events; slots and blueprints are then shown by number."""
