"""Life lines of seeds: which seed was in which slot of which member, and its stages over steps."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from esper.karn.views.damage import reader
from esper.karn.views.setup import NO_SETUP, RunSetup, setup_of
from esper.karn.views.tables import EventTables, Rounds, Row
from esper.leyline.stages import OCCUPIED_STAGES, SeedStage
from esper.leyline.telemetry import TelemetryEventType

_Kind = TelemetryEventType
_Slot = tuple[int, int, int]
"""(round, member, slot)"""


@dataclass(frozen=True, slots=True)
class StageSpan:
    """Time that a seed spent in a stage."""

    stage: str
    """Name of a `SeedStage`."""
    first: int
    """Step at which it began."""
    end: int | None
    """Step at which the next one began; None: it lasted as long as anything is recorded."""
    alpha: float = math.nan
    """When it began."""


@dataclass(frozen=True, slots=True)
class SeedLife:
    """One seed of one member, from germination until it left its slot."""

    round: int
    member: int
    slot: str
    blueprint: str
    stages: tuple[StageSpan, ...]
    """In order; what follows a prune (the slot cools down) included."""
    end: str
    """`live`, `fossilized`, `pruned`, or `restarted`: its member began anew; `live` also if the
    episode ended before."""
    contribution: float
    """Leave-one-out, in accuracy, when it was last measured; NaN if it never was."""
    contribution_se: float
    params: int
    """Parameters that it added."""
    macs: int


@reader
def read_seeds(
    run: Path, first_round: int | None = None, last_round: int | None = None
) -> tuple[SeedLife, ...]:
    """Seeds of a training run by (round, member, slot, time); by default of its newest round."""
    tables = EventTables.of(run)
    if first_round is None and last_round is None:
        first_round = last_round = newest_seed_round(tables)
    return _seeds_of(tables, Rounds(first_round, last_round))


def newest_seed_round(tables: EventTables) -> int:
    """The newest round that anything is recorded of; -1 if there is none."""
    return tables.newest_round(
        _Kind.ROUND_COMPLETED, _Kind.SEED_STAGE_CHANGED, _Kind.STEP_COMPLETED
    )


def _seeds_of(tables: EventTables, rounds: Rounds) -> tuple[SeedLife, ...]:
    """Seeds of some rounds."""
    setup = setup_of(tables) or NO_SETUP
    lives: dict[_Slot, list[_Life]] = {}
    for row in tables.rows(_Kind.SEED_STAGE_CHANGED, _CHANGED, rounds):
        _take_change(lives.setdefault(_slot_of(row), []), row)
    for row in tables.rows(_Kind.SEED_GERMINATED, _BORN, rounds):
        for life in _born_at(lives, row):
            life.params, life.macs = row["params_N"], row["macs_N"]
            life.blueprint = row["blueprint_N"]
    for kind in (_Kind.COUNTERFACTUALS_MEASURED, _Kind.SEED_FOSSILIZED, _Kind.SEED_PRUNED):
        for row in tables.rows(kind, _JUDGED, rounds):
            for life in _alive_at(lives, row):
                life.judge(row)
    return tuple(life.record(place, setup) for place in sorted(lives) for life in lives[place])


_PLACE: Final = ("member_N", "slot_N", "blueprint_N")
_CHANGED: Final = (*_PLACE, "stage_before_N", "stage_after_N", "alpha_N")
_BORN: Final = (*_PLACE, "params_N", "macs_N")
_JUDGED: Final = (*_PLACE, "contribution_N", "contribution_se_N")


@dataclass(slots=True)
class _Life:
    """A seed while its events are read."""

    blueprint: int
    spans: list[tuple[SeedStage, int, float]] = field(default_factory=list)
    """(stage, step at which it began, alpha at that time)."""
    over: int | None = None
    """Step at which its slot was empty again."""
    params: int = 0
    macs: int = 0
    contribution: float = math.nan
    contribution_se: float = math.nan

    @property
    def born(self) -> int:
        return self.spans[0][1]

    def judge(self, row: Row) -> None:
        """Take a contribution, unless it was not measured."""
        if not math.isnan(row["contribution_N"]):
            self.contribution = row["contribution_N"]
            self.contribution_se = row["contribution_se_N"]

    def record(self, place: _Slot, setup: RunSetup) -> SeedLife:
        starts = [step for _, step, _ in self.spans]
        ends = [*starts[1:], self.over]
        stages = {stage for stage, _, _ in self.spans}
        end = "pruned" if SeedStage.PRUNED in stages else "live"
        end = "fossilized" if SeedStage.FOSSILIZED in stages else end
        if self.over is not None and self.spans[-1][0] in OCCUPIED_STAGES:  # without a cooldown
            end = "restarted"
        return SeedLife(
            round=place[0],
            member=place[1],
            slot=setup.slot(place[2]),
            blueprint=setup.blueprint(self.blueprint),
            stages=tuple(
                StageSpan(stage.name, begin, after, alpha)
                for (stage, begin, alpha), after in zip(self.spans, ends, strict=True)
            ),
            end=end,
            contribution=self.contribution,
            contribution_se=self.contribution_se,
            params=self.params,
            macs=self.macs,
        )


def _slot_of(row: Row) -> _Slot:
    return row["round"], row["member_N"], row["slot_N"]


def step_of(row: Row) -> int:
    """Step of an event; what happened in the plan phase came before the first step."""
    return 0 if row["step"] is None else int(row["step"])


def _take_change(lives: list[_Life], row: Row) -> None:
    """Add a change of stage to the seeds of a slot."""
    before, after = SeedStage(row["stage_before_N"]), SeedStage(row["stage_after_N"])
    step = step_of(row)
    if after is SeedStage.DORMANT:
        if lives:
            lives[-1].over = step
        return
    begins = before is SeedStage.DORMANT or not lives or lives[-1].over is not None
    if begins:
        lives.append(_Life(row["blueprint_N"]))
        if before in OCCUPIED_STAGES:  # its germination was not recorded
            lives[-1].spans.append((before, step, math.nan))
    lives[-1].spans.append((after, step, row["alpha_N"]))


def _born_at(lives: dict[_Slot, list[_Life]], row: Row) -> list[_Life]:
    """The seed that germinated in an event; none if its changes of stage are not recorded."""
    found = lives.get(_slot_of(row), [])
    return [life for life in found if life.born == step_of(row)][:1]


def _alive_at(lives: dict[_Slot, list[_Life]], row: Row) -> list[_Life]:
    """The seed of an event about the one in its slot."""
    found = [life for life in lives.get(_slot_of(row), []) if life.born <= step_of(row)]
    return found[-1:]
