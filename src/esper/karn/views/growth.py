"""How one member grew in one round: its seeds with what they contributed, its accuracy, in words.

Times are steps done: 0 is before the first step, and what happens at the end of the step with index
t happens at t + 1, where its measurements are, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Final

from esper.karn.views.contributions import Contribution, read_contributions
from esper.karn.views.damage import reader
from esper.karn.views.seeds import SeedLife, StageSpan, newest_seed_round, read_seeds
from esper.karn.views.sentences import TOLD_OF_MEMBERS, Sentence, member_sentences
from esper.karn.views.setup import NO_SETUP, RunSetup, setup_of
from esper.karn.views.tables import EventTables, Rounds, Row
from esper.leyline.optim import schedule_share
from esper.leyline.stages import BLENDED_STAGES, OCCUPIED_STAGES, SeedStage
from esper.leyline.telemetry import TelemetryEventType

_Kind = TelemetryEventType
_OCCUPIED: Final = frozenset(stage.name for stage in OCCUPIED_STAGES)
_BLENDED: Final = frozenset(stage.name for stage in BLENDED_STAGES)
_PLANTED: Final = SeedStage.PLANTED.name


@dataclass(frozen=True, slots=True)
class Measurement:
    """Contribution of a seed at one time, in accuracy (0..1)."""

    at: int
    value: float
    se: float
    """Standard error, paired over images; NaN: not recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedGrowth(SeedLife):
    """One seed over the steps of its episode; times of its stages are steps done."""

    measured: tuple[Measurement, ...]
    """In order; only what was measured."""


@dataclass(frozen=True, slots=True)
class _MemberPoint:
    """One step of a member."""

    at: int
    accuracy: float
    """Held out."""
    train_accuracy: float


@dataclass(frozen=True, slots=True)
class RatePoint:
    """Learning rates of the step that was done last."""

    at: int
    host: float
    """Of the host and permanent seeds."""
    seed: float
    """Of seeds until they are permanent."""


@dataclass(frozen=True, slots=True)
class _MemberBrief:
    """A member to choose."""

    member: int
    score: float
    """At the end of the round; NaN while it is under way."""
    seeds: int
    """That it holds then; while it is under way, that germinated so far."""


@dataclass(frozen=True, slots=True)
class MemberGrowth:
    """One member in one round."""

    round: int
    """-1: no round is recorded yet."""
    newest: int
    """The newest round that is recorded."""
    member: int
    members: tuple[_MemberBrief, ...]
    """All members of the run."""
    steps: int
    """Of an episode."""
    now: int
    """Steps done: below `steps` while the round is under way, or was cut."""
    slots: tuple[str, ...]
    """In the order of the network."""
    host_params: int
    added_params: tuple[int, ...]
    """By steps done from 0 to `now`; seeds count from when they change the output."""
    seeds: tuple[SeedGrowth, ...]
    points: tuple[_MemberPoint, ...]
    """Empty unless every step was recorded."""
    rates: tuple[RatePoint, ...]
    """Empty where they are not recorded."""
    stopped: bool
    """It stopped training before the end: the last rates were not used."""
    happened: tuple[Sentence, ...]


@reader
def read_growth(run: Path, at: int | None = None, member: int | None = None) -> MemberGrowth:
    """A member in a round; by default the best one of the newest round.

    A round or member beyond the last one is the last one.
    """
    tables = EventTables.of(run)
    newest = newest_seed_round(tables)
    at = newest if at is None else min(at, newest)
    setup, only = setup_of(tables) or NO_SETUP, Rounds(at, at)
    lives, measured = read_seeds(run, at, at), read_contributions(run, at, at)
    outcomes = {row["member_E"]: row for row in tables.rows(_Kind.EPISODE_OUTCOME, _OUTCOME, only)}
    members = _members(setup, lives, outcomes)
    chosen = _chosen(members, member)
    points = _points(tables, only, chosen)
    seeds = seed_growth([one for one in lives if one.member == chosen], measured)
    seeds += _planted(seeds, outcomes.get(chosen), setup)
    now = max(_times(seeds) + [one.at for one in points], default=0)
    steps = setup.episode_length or now
    now = steps if chosen in outcomes and not points else min(now, steps)
    return MemberGrowth(
        round=at,
        newest=newest,
        member=chosen,
        members=members,
        steps=steps,
        now=now,
        slots=setup.slots or tuple(sorted({one.slot for one in seeds})),
        host_params=setup.host_params,
        added_params=tuple(_added(seeds, done) for done in range(now + 1)),
        seeds=seeds,
        points=points,
        rates=_rates(tables, only, chosen, steps)[:now],
        stopped=_stopped(tables, only, chosen),
        happened=_happened(tables, only, chosen, setup),
    )


def seed_growth(
    lives: Sequence[SeedLife], measured: Iterable[Contribution]
) -> tuple[SeedGrowth, ...]:
    """Seeds of one round with their measurements."""
    by_slot: dict[tuple[int, str], list[Contribution]] = {}
    for one in measured:
        if math.isfinite(one.contribution):
            by_slot.setdefault((one.member, one.slot), []).append(one)
    return tuple(_grown(life, by_slot.get((life.member, life.slot), ())) for life in lives)


def _grown(life: SeedLife, measured: Sequence[Contribution]) -> SeedGrowth:
    """A seed, with those measurements of its slot that were made while it was in it."""
    stages = tuple(map(_by_steps_done, life.stages))
    occupied = [span for span in stages if span.stage in _OCCUPIED]
    first = occupied[0].first if occupied else 0
    last = occupied[-1].end if occupied else 0
    found = (Measurement(one.step + 1, one.contribution, one.se) for one in measured)
    known = {f.name: getattr(life, f.name) for f in fields(SeedLife)}
    return SeedGrowth(
        **known | {"stages": stages},
        measured=tuple(one for one in found if first < one.at and (last is None or one.at <= last)),
    )


def _by_steps_done(span: StageSpan) -> StageSpan:
    """Seeds are planted before the first step; everything else happens at the end of a step."""
    from_start = span.stage == _PLANTED and span.first == 0
    end = None if span.end is None else span.end + 1
    return replace(span, first=0 if from_start else span.first + 1, end=end)


_OUTCOME: Final = ("member_E", "score_E", "blueprint_ES", "added_params_E")


def _members(
    setup: RunSetup, lives: Sequence[SeedLife], outcomes: Mapping[int, Row]
) -> tuple[_MemberBrief, ...]:
    born: dict[int, int] = {}
    for life in lives:
        born[life.member] = born.get(life.member, 0) + 1
    count = setup.members or 1 + max((*born, *outcomes), default=-1)
    return tuple(
        _MemberBrief(
            e, outcomes[e]["score_E"], sum(kind >= 0 for kind in outcomes[e]["blueprint_ES"])
        )
        if e in outcomes
        else _MemberBrief(e, math.nan, born.get(e, 0))
        for e in range(count)
    )


def _chosen(members: Sequence[_MemberBrief], member: int | None) -> int:
    """The one that is asked for, else the best one, while nothing is scored the first one."""
    if member is not None:
        return max(0, min(member, len(members) - 1))
    scored = [one for one in members if math.isfinite(one.score)]
    return max(scored, key=lambda one: one.score).member if scored else 0


def _points(tables: EventTables, only: Rounds, member: int) -> tuple[_MemberPoint, ...]:
    names = ("val_accuracy_E", "train_accuracy_E")
    found = {
        row["step"]: _MemberPoint(row["step"] + 1, *(row[name] for name in names))
        for row in tables.rows(_Kind.STEP_COMPLETED, names, only)
        if row["row"] == member
    }
    return tuple(found[step] for step in sorted(found))


def _rates(tables: EventTables, only: Rounds, member: int, steps: int) -> tuple[RatePoint, ...]:
    """Of all steps: by the schedule over what was left when the member began, at first or anew."""
    rows = tables.rows(_Kind.LEARNING_RATES, (), only)
    first = next((row for row in rows if row["row"] == member), None)
    if first is None:
        return ()
    anew = tables.rows(_Kind.MEMBER_RESTARTED, ("member_N",), only)
    begun = (0, *(row["step"] + 1 for row in anew if row["member_N"] == member))
    began = (max(one for one in begun if one <= step) for step in range(steps))
    shares = [
        schedule_share(first["schedule"], step - one, steps - one) for step, one in enumerate(began)
    ]
    return tuple(
        RatePoint(step + 1, share * first["host_rate_E"], share * first["seed_rate_E"])
        for step, share in enumerate(shares)
    )


def _stopped(tables: EventTables, only: Rounds, member: int) -> bool:
    rows = tables.rows(_Kind.ROUND_CONTEXTS, ("stopped_E",), only)
    return any(row["stopped_E"] for row in rows if row["row"] == member)


def _planted(
    seeds: Sequence[SeedGrowth], outcome: Row | None, setup: RunSetup
) -> tuple[SeedGrowth, ...]:
    """The seeds of a network that was planted whole: no event is theirs but its end.

    Their parameters are known together: the first one has them.
    """
    if outcome is None:
        return ()
    known, span = {one.slot for one in seeds}, StageSpan(_PLANTED, 0, None, 1.0)
    place, unknown = (outcome["round"], outcome["member_E"]), (math.nan, math.nan)
    found = [
        SeedGrowth(
            *place,
            setup.slot(slot),
            setup.blueprint(kind),
            (span,),
            "live",
            *unknown,
            0,
            0,
            measured=(),
        )
        for slot, kind in enumerate(outcome["blueprint_ES"])
        if kind >= 0 and setup.slot(slot) not in known
    ]
    rest = outcome["added_params_E"] - _added(seeds, setup.episode_length)
    return tuple(replace(one, params=0 if i else max(0, rest)) for i, one in enumerate(found))


def _added(seeds: Iterable[SeedGrowth], done: int) -> int:
    """Parameters of the seeds that change the output when some steps are done."""
    return sum(one.params for one in seeds if any(_works(span, done) for span in one.stages))


def _works(span: StageSpan, done: int) -> bool:
    if span.stage not in _BLENDED or not span.first <= done or (span.end or math.inf) <= done:
        return False
    return span.alpha > 0 or done > span.first  # the ramp of a seed begins at 0


def _times(seeds: Iterable[SeedGrowth]) -> list[int]:
    spans = [span for one in seeds for span in one.stages]
    return [span.first if span.end is None else span.end for span in spans]


def _happened(
    tables: EventTables, only: Rounds, member: int, setup: RunSetup
) -> tuple[Sentence, ...]:
    """What happened to a member, in order."""
    happened: list[Sentence] = []
    for name in TOLD_OF_MEMBERS:
        rows = tables.rows(TelemetryEventType[name], (), only)
        happened += member_sentences(
            name, (row for row in rows if row["member_N"] == member), setup
        )
    return tuple(sorted(happened, key=lambda one: (-1 if one.step is None else one.step, one.time)))
