"""Events as sentences: `step 12, member 3: conv_heavy in r0c1 made permanent, +308 parameters`.

The only place that puts an event into words; the web page, the terminal and the report show them.
Rounds and steps are counted from 1 for people, members as everywhere from 0. What an event lacks,
because its file is damaged or of another release, is left out of its sentence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Final

from esper.karn.stages import stage_name
from esper.karn.views.documents import Entries, entries, real, text, whole
from esper.karn.views.events import EventLine
from esper.karn.views.setup import NO_SETUP, RunSetup
from esper.leyline.codec import Json
from esper.leyline.errors import shorten
from esper.leyline.payloads import PruneCause
from esper.leyline.signals import PanicKind
from esper.leyline.stages import BLENDED_STAGES, SeedStage

MAX_CHARS: Final = 240
UNUSUAL: Final = frozenset({"ANOMALY_DETECTED", "GOVERNOR_PANIC", "GOVERNOR_ROLLBACK"})


@dataclass(frozen=True, slots=True)
class Sentence:
    """What happened, and where."""

    type: str
    """Name of a `TelemetryEventType`."""
    round: int | None
    """From 0; None outside rounds."""
    step: int | None
    """From 0; None: of a round or a run, or before the first step."""
    member: int | None
    """None: of the run, or of several members."""
    what: str
    time: float
    """Seconds since 1970."""

    @property
    def text(self) -> str:
        """With step and member in front."""
        step = "" if self.step is None else f"step {self.step + 1}"
        member = "" if self.member is None else f"member {self.member}"
        place = ", ".join(one for one in (step, member) if one)
        return f"{place}: {self.what}" if place else self.what


def sentences_of(event: EventLine, setup: RunSetup | None = None) -> tuple[Sentence, ...]:
    """An event in words: one sentence for each seed or member it is about.

    None of types that plots show, nor of a change of stage that another event says better.
    `setup` has the names of slots and seeds; without it they are numbers.
    """
    names = setup or NO_SETUP
    found: Iterable[tuple[int | None, str]] = ()
    if event.type in _OF_MEMBERS:
        say = _OF_MEMBERS[event.type]
        found = ((whole(row, "member_N"), say(row, names)) for row in _occurrences(event.payload))
    elif event.type in _OF_ALL:
        found = ((None, _OF_ALL[event.type](event.payload)),)
    return tuple(
        Sentence(event.type, event.round, event.step, member, shorten(what, MAX_CHARS), event.time)
        for member, what in found
        if what
    )


def member_sentences(
    kind: str, rows: Iterable[Entries], setup: RunSetup | None = None
) -> tuple[Sentence, ...]:
    """Rows of a table of events about single members (`TOLD_OF_MEMBERS`) in words."""
    names = setup or NO_SETUP
    said = ((row, _OF_MEMBERS[kind](row, names)) for row in rows)
    return tuple(
        Sentence(
            kind,
            whole(row, "round"),
            whole(row, "step"),
            whole(row, "member_N"),
            shorten(what, MAX_CHARS),
            real(row, "wall_time"),
        )
        for row, what in said
        if what
    )


def _occurrences(payload: Entries) -> list[Entries]:
    """The rows of an event with columns over occurrences."""
    columns = {name: value for name, value in payload.items() if isinstance(value, list)}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=False)]


# ---- words of parts ----------------------------------------------------------------------------


def _seed(row: Entries, names: RunSetup) -> str:
    """`conv_heavy in r0c1`."""
    kind = whole(row, "blueprint_N")
    name = names.blueprint(-1 if kind is None else kind)
    return f"{name} in {_slot(row, names)}" if name else f"the seed in {_slot(row, names)}"


def _slot(row: Entries, names: RunSetup) -> str:
    found = whole(row, "slot_N")
    return "a slot" if found is None else names.slot(found)


def _points(row: Entries) -> str:
    """`+8.0 ± 1.1 points` of accuracy; empty if it was not measured."""
    found, error = real(row, "contribution_N"), real(row, "contribution_se_N")
    if not math.isfinite(found):
        return ""
    return f"{100 * found:+.1f}{f' ± {100 * error:.1f}' if math.isfinite(error) else ''} points"


def _figure(row: Entries, name: str, form: str, unit: str = "") -> str:
    """A number with its unit; empty if it is not known."""
    found = real(row, name)
    return f"{found:{form}}{unit}" if math.isfinite(found) else ""


def _many(row: Entries, name: str, noun: str) -> str:
    """`1 seed`, `2 seeds`; empty if it is not known."""
    found = whole(row, name)
    return "" if found is None else f"{found:,} {noun}{'' if found == 1 else 's'}"


def _after(word: str, figure: str) -> str:
    return f"{word} {figure}" if figure else ""


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


def _code(kind: type[IntEnum], value: Json) -> str:
    """The name behind a code, in words."""
    if isinstance(value, int) and value in set(kind):
        value = kind(value).name
    return str(value).lower().replace("_", " ") if isinstance(value, str | int) else "unknown"


# ---- of single members -------------------------------------------------------------------------


def _germinated(row: Entries, names: RunSetup) -> str:
    return _joined(
        f"{_seed(row, names)} germinated", _figure(row, "params_N", "+,.0f", " parameters")
    )


_TOLD: Final = frozenset(
    {SeedStage.GERMINATED, SeedStage.FOSSILIZED, SeedStage.PRUNED, SeedStage.EMBARGOED,
     SeedStage.RESETTING}
)  # fmt: skip
"""Stages that have events of their own, and the cooldown of an empty slot."""


def _stage_changed(row: Entries, names: RunSetup) -> str:
    before, after = whole(row, "stage_before_N"), whole(row, "stage_after_N")
    if after not in set(SeedStage) or before not in set(SeedStage):
        return f"{_seed(row, names)} changed its stage"
    stage = SeedStage(after)
    if stage in _TOLD:
        return ""
    if stage is SeedStage.DORMANT:
        return f"{_slot(row, names)} is free again"
    if stage is SeedStage.PLANTED:
        return f"{_seed(row, names)} planted"
    turned = f"{stage_name(SeedStage(before))} to {stage_name(stage)}"
    alpha = _figure(row, "alpha_N", ".2f") if stage in BLENDED_STAGES else ""
    return _joined(f"{_seed(row, names)} from {turned}", _after("alpha", alpha))


def _fossilized(row: Entries, names: RunSetup) -> str:
    params = _figure(row, "params_N", "+,.0f", " parameters")
    return _joined(f"{_seed(row, names)} made permanent", _points(row), params)


def _pruned(row: Entries, names: RunSetup) -> str:
    cause = _code(PruneCause, row.get("cause_N"))
    by = "the controller" if cause == "controller" else f"a {cause}"
    return _joined(
        f"{_seed(row, names)} pruned by {by}",
        _points(row),
        _after("aged", _many(row, "age_N", "step")),
    )


def _restarted(row: Entries, names: RunSetup) -> str:
    again = whole(row, "restart_N") or 1
    lost = (_after("score", _figure(row, "score_N", ".3f")), _many(row, "seeds_removed_N", "seed"))
    given = " and ".join(one for one in lost if one)
    return _joined(f"began anew (restart {again})", _after("giving up", given))


def _panic(row: Entries, names: RunSetup) -> str:
    loss, limit = _figure(row, "loss_N", ".3g"), _figure(row, "limit_N", ".3g")
    above = f"{loss} above {limit}" if limit else loss
    return _joined(
        f"the governor intervened: {_code(PanicKind, row.get('kind_N'))}", _after("loss", above)
    )


def _rollback(row: Entries, names: RunSetup) -> str:
    step = whole(row, "snapshot_step_N")
    to = "its snapshot" if step is None or step < 0 else f"its state of step {step + 1}"
    pruned = _many(row, "seeds_pruned_N", "seed")
    return _joined(
        f"rolled back to {to} ({_code(PanicKind, row.get('kind_N'))})",
        pruned and f"{pruned} pruned",
    )


# ---- of all members, rounds and the run --------------------------------------------------------


def _run_started(row: Entries) -> str:
    plan = f"{_many(row, 'rounds', 'round')} of {_many(row, 'episode_length', 'step')}"
    return _joined(
        f"{text(row, 'policy') or 'a policy'} started on {text(row, 'task') or 'its task'}",
        _many(row, "members", "member"),
        plan,
        _after("host of", _figure(row, "host_params", ",.0f", " parameters")),
    )


def _run_finished(row: Entries) -> str:
    dropped = whole(row, "events_dropped")
    return _joined(
        f"the run ended: {text(row, 'status').lower()} after {_many(row, 'rounds_done', 'round')}",
        _after("best training score", _figure(row, "best_score", ".3f")),
        f"{dropped} events dropped" if dropped else "",
    )


def _round_completed(row: Entries) -> str:
    return _joined(
        _after("round completed: training score", _figure(row, "mean_score", ".3f")),
        _after("best member", _figure(row, "max_score", ".3f")),
        _after("accuracy", _figure(row, "mean_accuracy", ".1%")),
        _figure(row, "mean_added_params", "+,.0f", " parameters"),
    )


def _updated(row: Entries) -> str:
    found = entries(row, "metrics")
    figures = (
        _after("KL", _figure(found, "approx_kl", ".3g")),
        _after("entropy", _figure(found, "entropy", ".3g")),
        _after("explained variance", _figure(found, "explained_variance", ".2f")),
        _after("learning rate", _figure(found, "learning_rate", ".2g")),
    )
    return _after("controller updated:", _joined(*figures))


def _anomaly(row: Entries) -> str:
    detail = " ".join(text(row, "detail").split())
    kind = text(row, "kind").lower().replace("_", " ")
    return f"unusual: {detail or kind}" if detail or kind else ""


def _saved(row: Entries) -> str:
    reason = text(row, "reason").lower()
    return f"checkpoint saved{f' ({reason})' if reason else ''}"


def _loaded(row: Entries) -> str:
    return _after("resumed after", _many(row, "rounds_done", "round"))


_Say = Callable[[Entries, RunSetup], str]
_OF_MEMBERS: Final[Mapping[str, _Say]] = MappingProxyType(
    {
        "SEED_GERMINATED": _germinated,
        "SEED_STAGE_CHANGED": _stage_changed,
        "SEED_FOSSILIZED": _fossilized,
        "SEED_PRUNED": _pruned,
        "MEMBER_RESTARTED": _restarted,
        "GOVERNOR_PANIC": _panic,
        "GOVERNOR_ROLLBACK": _rollback,
    }
)
"""Says one occurrence of an event with columns `[N]`."""
TOLD_OF_MEMBERS: Final = tuple(_OF_MEMBERS)
"""Types of events of how a member grew."""
_OF_ALL: Final[Mapping[str, Callable[[Entries], str]]] = MappingProxyType(
    {
        "RUN_STARTED": _run_started,
        "RUN_FINISHED": _run_finished,
        "ROUND_COMPLETED": _round_completed,
        "PPO_UPDATED": _updated,
        "ANOMALY_DETECTED": _anomaly,
        "CHECKPOINT_SAVED": _saved,
        "CHECKPOINT_LOADED": _loaded,
    }
)
