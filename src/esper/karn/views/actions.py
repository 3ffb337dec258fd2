"""What the controller did: operations by round, how many were legal and executed, and where."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from esper.karn.views.damage import reader
from esper.karn.views.setup import NO_SETUP, RunSetup, setup_of
from esper.karn.views.tables import EventTables, Rounds, Row
from esper.leyline.actions import LifecycleOp
from esper.leyline.telemetry import TelemetryEventType


@dataclass(frozen=True, slots=True)
class ActionCount:
    """One operation in a round, in member-steps."""

    op: str
    chosen: int
    executed: int
    legal: int
    probability: float
    """Mean probability that the controller gave it."""


@dataclass(frozen=True, slots=True)
class SlotCount:
    """Operations that targeted a slot in a round."""

    slot: str
    chosen: int
    executed: int
    reward: float
    """Sum of the rewards of these steps; NaN if not recorded."""


@dataclass(frozen=True, slots=True)
class RoundActions:
    """Operations of a round."""

    round: int
    ops: tuple[ActionCount, ...]
    slots: tuple[SlotCount, ...]


_COLUMNS: Final = (
    "chosen_O",
    "executed_O",
    "legal_O",
    "probability_O",
    "slot_chosen",
    "slot_executed",
)


@reader
def read_actions(run: Path, after: int = -1) -> tuple[RoundActions, ...]:
    """Operations of every round of a training run, or of those after one."""
    tables, wanted = EventTables.of(run), Rounds(first=after + 1)
    setup = setup_of(tables) or NO_SETUP
    rewards = {
        row["round"]: row["slot_reward"] or ()
        for row in tables.rows(TelemetryEventType.REWARD_SUMMARY, ("slot_reward",), wanted)
    }
    found: dict[int, dict[int, Row]] = {}
    events: dict[int, int] = {}
    for row in tables.rows(TelemetryEventType.ACTION_DISTRIBUTION, _COLUMNS, wanted):
        at = row["round"]
        if events.get(at) != row["event"]:
            events[at], found[at] = row["event"], {}
        found[at][row["row"]] = row
    return tuple(
        RoundActions(at, _ops(found[at]), _slots(found[at][0], rewards.get(at, ()), setup))
        for at in sorted(found)
    )


def _ops(rows: dict[int, Row]) -> tuple[ActionCount, ...]:
    return tuple(
        ActionCount(
            LifecycleOp(op).name,
            row["chosen_O"],
            row["executed_O"],
            row["legal_O"],
            row["probability_O"],
        )
        for op, row in rows.items()
    )


def _slots(row: Row, rewards: tuple[float, ...], setup: RunSetup) -> tuple[SlotCount, ...]:
    chosen, executed = row["slot_chosen"] or (), row["slot_executed"] or ()
    return tuple(
        SlotCount(
            setup.slot(s),
            chosen[s],
            executed[s],
            rewards[s] if s < len(rewards) else float("nan"),
        )
        for s in range(len(chosen))
    )
