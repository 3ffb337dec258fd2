"""State of every member at the newest step that is recorded, slot by slot."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from esper.karn.views.damage import reader
from esper.karn.views.seeds import newest_seed_round, step_of
from esper.karn.views.setup import NO_SETUP, RunSetup, setup_of
from esper.karn.views.tables import EventTables, Rounds, Row
from esper.leyline.actions import LifecycleOp, VetoReason
from esper.leyline.stages import SeedStage
from esper.leyline.telemetry import TelemetryEventType

_Kind = TelemetryEventType


@dataclass(frozen=True, slots=True)
class SlotState:
    """One slot of one member."""

    slot: str
    stage: str
    """Name of a `SeedStage`; DORMANT if nothing is recorded of it in this round."""
    blueprint: str
    """Empty if there is no seed."""
    since: int | None
    """Step at which the stage began; None if it began with the episode."""
    alpha: float
    """When the stage began."""
    contribution: float
    """Last measurement in this round; NaN if there is none."""
    contribution_se: float


@dataclass(frozen=True, slots=True)
class MemberState:
    """One member. NaN: not recorded (steps are only with `--step-events` or level debug)."""

    round: int
    step: int | None
    """Newest recorded step; None: the end of the episode."""
    member: int
    score: float
    val_accuracy: float
    val_loss: float
    train_loss: float
    train_accuracy: float
    value: float
    """Value estimate of the controller."""
    spent: float
    """Share of its compute budget spent, 0..1."""
    params_over_host: float
    """Parameters added, over those of the host."""
    op: str
    """Last operation of the controller; empty if not recorded."""
    op_slot: str
    veto: str
    """Why it was not executed; empty if it was."""
    reward: float
    cumulative_reward: float
    slots: tuple[SlotState, ...]


@reader
def read_members(run: Path) -> tuple[MemberState, ...]:
    """State of the members in the newest round of a training run; empty without events."""
    tables = EventTables.of(run)
    newest, setup = newest_seed_round(tables), setup_of(tables) or NO_SETUP
    if newest < 0:
        return ()
    only = Rounds(newest, newest)
    steps = _newest_by_member(tables.rows(_Kind.STEP_COMPLETED, rounds=only))
    actions = _newest_by_member(tables.rows(_Kind.LAST_ACTION, rounds=only))
    outcomes = {row["member_E"]: row for row in tables.rows(_Kind.EPISODE_OUTCOME, rounds=only)}
    slots = _slots(tables, only, setup)
    members = setup.members or 1 + max((*steps, *outcomes, *slots), default=-1)
    return tuple(
        _member(
            (newest, e), steps.get(e, {}), actions.get(e, {}), outcomes.get(e, {}), slots[e], setup
        )
        for e in range(members)
    )


def _newest_by_member(rows: list[Row]) -> dict[int, Row]:
    """The last row of each member."""
    return {row["row"]: row for row in rows}


def _member(
    place: tuple[int, int],
    step: Row,
    action: Row,
    outcome: Row,
    slots: tuple[SlotState, ...],
    setup: RunSetup,
) -> MemberState:
    """`outcome`: at the end of the episode, if it ended; it is newer than the last step."""
    op = action.get("op_E")
    slot = action.get("target_slot_E", -1)
    veto = VetoReason(action.get("veto_E", VetoReason.NONE))
    return MemberState(
        round=place[0],
        step=None if outcome or not step else step["step"],
        member=place[1],
        score=_known(outcome.get("score_E", step.get("score_E"))),
        val_accuracy=_known(outcome.get("accuracy_E", step.get("val_accuracy_E"))),
        val_loss=_known(outcome.get("loss_E", step.get("val_loss_E"))),
        train_loss=_known(step.get("train_loss_E")),
        train_accuracy=_known(step.get("train_accuracy_E")),
        value=_known(step.get("value_E")),
        spent=_known(step.get("spent_E")),
        params_over_host=_added(step, outcome, setup),
        op="" if op is None else LifecycleOp(op).name,
        op_slot="" if slot < 0 else setup.slot(slot),
        veto="" if veto is VetoReason.NONE else veto.name,
        reward=_known(action.get("reward_E")),
        cumulative_reward=_known(
            outcome.get("episode_return_E", action.get("cumulative_reward_E"))
        ),
        slots=slots,
    )


def _known(value: float | None) -> float:
    return math.nan if value is None else value


def _added(step: Row, outcome: Row, setup: RunSetup) -> float:
    if outcome and setup.host_params:
        return float(outcome["added_params_E"] / setup.host_params)
    return _known(step.get("params_over_host_E"))


def _slots(
    tables: EventTables, only: Rounds, setup: RunSetup
) -> Mapping[int, tuple[SlotState, ...]]:
    """Slots of each member, as far as they are known."""
    changes = {_place(row): row for row in tables.rows(_Kind.SEED_STAGE_CHANGED, rounds=only)}
    measured = {
        _place(row): row for row in tables.rows(_Kind.COUNTERFACTUALS_MEASURED, rounds=only)
    }
    planted = _planted(tables, only)
    count = len(setup.slots) or 1 + max((slot for _, slot in changes), default=-1)
    found: defaultdict[int, tuple[SlotState, ...]] = defaultdict(
        lambda: tuple(_empty(setup.slot(s)) for s in range(count))
    )
    for member in {e for e, _ in (*changes, *planted)}:
        found[member] = tuple(
            _slot((member, s), changes, measured, planted, setup) for s in range(count)
        )
    return found


def _place(row: Row) -> tuple[int, int]:
    return row["member_N"], row["slot_N"]


def _planted(tables: EventTables, only: Rounds) -> dict[tuple[int, int], int]:
    """Blueprints of seeds that were part of the network from the start: they change no stage."""
    rows = tables.rows(_Kind.EPISODE_OUTCOME, ("member_E", "blueprint_ES"), only)
    return {
        (row["member_E"], slot): kind
        for row in rows
        for slot, kind in enumerate(row["blueprint_ES"])
        if kind >= 0
    }


def _slot(
    place: tuple[int, int],
    changes: Mapping[tuple[int, int], Row],
    measured: Mapping[tuple[int, int], Row],
    planted: Mapping[tuple[int, int], int],
    setup: RunSetup,
) -> SlotState:
    name, change, last = setup.slot(place[1]), changes.get(place), measured.get(place, {})
    contribution = _known(last.get("contribution_N")), _known(last.get("contribution_se_N"))
    if change is not None:
        return SlotState(
            name,
            SeedStage(change["stage_after_N"]).name,
            setup.blueprint(change["blueprint_N"]),
            step_of(change),
            change["alpha_N"],
            *contribution,
        )
    if place in planted:
        kind = setup.blueprint(planted[place])
        return SlotState(name, SeedStage.PLANTED.name, kind, None, 1.0, *contribution)
    return _empty(name)


def _empty(name: str) -> SlotState:
    return SlotState(name, SeedStage.DORMANT.name, "", None, 0.0, math.nan, math.nan)
