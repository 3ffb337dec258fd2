"""Builds the policy that a word of the grammar names, for one population.

What needs a run is refused: a saved controller needs its agent, and `static-final:POLICY` the
topologies that the policy ended with on the same hosts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from esper.leyline.errors import EsperError, shown, unknown_name
from esper.leyline.prices import ScoreConstants
from esper.leyline.protocols import PolicyProtocol, RewardProtocol
from esper.leyline.signals import NO_BLUEPRINT
from esper.storage.sealed_json import parse_json
from esper.tamiyo.baselines import RandomPolicy, StaticTopology, WaitPolicy
from esper.tamiyo.grammar import ParsedPolicy
from esper.tamiyo.heuristic import HeuristicConfig, HeuristicPolicy
from esper.tamiyo.schedule import FixedSchedule, ScheduleConfig, ScheduleEntry


def make_policy(
    parsed: ParsedPolicy,
    *,
    slots: Sequence[str],
    episode_length: int,
    prices: ScoreConstants,
    seed: int,
    reward: RewardProtocol | None,
    charge: float | None = None,
) -> PolicyProtocol[Any]:
    """The policy, for a host with these slots and episodes of that many steps.

    `prices`: what growth costs in the score. `charge`: the heuristic's, where not its own.
    """
    require_no_run(parsed)
    if parsed.kind == "wait":
        return WaitPolicy(reward)
    if parsed.kind == "random":
        return RandomPolicy(seed, reward)
    if parsed.kind == "heuristic":
        return HeuristicPolicy(heuristic_rules(parsed, charge), reward, prices=prices)
    if parsed.kind == "static-final":
        topology = parsed.topology or found_topology(_path_of(parsed))
        return StaticTopology.final(_blueprint_by_slot(parsed, topology), reward)
    places = parsed.slots or tuple(slots)
    _refuse_twice(parsed, places)
    if parsed.kind == "static-full":
        return StaticTopology.full(parsed.blueprint, places, reward)
    if parsed.start >= episode_length - 1:
        raise EsperError(
            f"policy {shown(parsed.text)}: step {parsed.start}: the episode has {episode_length} "
            f"steps; a seed that is to grow starts before step {episode_length - 1}"
        )
    grown = _blueprint_by_slot(parsed, parsed.topology) or dict.fromkeys(places, parsed.blueprint)
    entries = tuple(ScheduleEntry(parsed.start, slot, kind) for slot, kind in grown.items())
    return FixedSchedule(ScheduleConfig(entries), reward)


def require_no_run(parsed: ParsedPolicy) -> None:
    """Refuse a policy that cannot be built from its word alone."""
    if parsed.kind == "controller":
        raise EsperError(
            f"policy {shown(parsed.text)}: a saved controller; judge it with esper eval "
            f"{shown(str(parsed.path))}, or beside others with esper compare"
        )
    if parsed.found_by is not None:
        raise EsperError(
            f"policy {shown(parsed.text)}: what {shown(parsed.found_by.text)} ends with is known "
            f"where both run on the same hosts: esper compare {shown(parsed.text)}"
        )


def heuristic_rules(parsed: ParsedPolicy, charge: float | None = None) -> HeuristicConfig:
    """The rules of thumb with the order of blueprints and the charge that were asked for."""
    rules = HeuristicConfig(blueprints=parsed.order)
    return rules if charge is None else replace(rules, charge=charge)


def require_known_names(
    parsed: ParsedPolicy, slots: Sequence[str], blueprints: Sequence[str]
) -> None:
    """Refuse a policy that names a slot or a blueprint which the task does not have."""
    pairs = [entry.partition("=")[::2] for entry in parsed.topology]
    named = (*parsed.slots, *(slot for slot, _ in pairs))
    kinds = [*parsed.order, *(blueprint for _, blueprint in pairs if blueprint)]
    if parsed.kind in ("fixed", "static-full") and not parsed.topology:
        kinds = [parsed.blueprint]
    where = f"in policy {shown(parsed.text)}"
    for slot in named:
        if slot not in slots:
            raise unknown_name("slot", slot, slots, where)
    for blueprint in kinds:
        if blueprint not in blueprints:
            raise unknown_name("blueprint", blueprint, blueprints, where)


def with_topology(parsed: ParsedPolicy) -> ParsedPolicy:
    """static-final:RESULT.json as the topology that is found there; other policies unchanged."""
    if parsed.kind != "static-final" or parsed.path is None:
        return parsed
    return replace(parsed, topology=found_topology(parsed.path))


def found_topology(path: Path) -> tuple[str, ...]:
    """The most frequent topology at the end of a run, as `slot=blueprint`, from its JSON result."""
    try:
        record: Any = parse_json(path.read_bytes())
        slots, blueprints = record["slots"], record["blueprints"]
        kinds_NS = np.concatenate(
            [np.asarray(done["outcome"]["blueprint_ES"]) for done in record["rounds"]]
        )
        counts = Counter(tuple(int(kind) for kind in kinds_S) for kinds_S in kinds_NS)
        (kind_S, _), *_ = counts.most_common(1)
        standing = [(slot, k) for slot, k in zip(slots, kind_S, strict=True) if k != NO_BLUEPRINT]
        found = tuple(f"{slot}={blueprints[kind]}" for slot, kind in standing)
    except OSError as error:
        raise EsperError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, IndexError):
        raise EsperError(
            f"{path} is not the result of a run (slots, blueprints, rounds with their outcome): "
            f"give the JSON that `train` writes"
        ) from None
    if not found:
        raise EsperError(f"{path}: that run ended most often with the host alone; compare wait")
    return found


def _path_of(parsed: ParsedPolicy) -> Path:
    assert parsed.path is not None  # the grammar refuses static-final without anything behind it
    return parsed.path


def _blueprint_by_slot(parsed: ParsedPolicy, topology: Sequence[str]) -> dict[str, str]:
    """Blueprint by slot, from `slot=blueprint` words."""
    pairs = [word.partition("=") for word in topology]
    for slot, mark, blueprint in pairs:
        if not (slot and mark and blueprint):
            raise EsperError(
                f"policy {shown(parsed.text)}: {shown(slot + mark + blueprint)}: expected "
                f"slot=blueprint, for example r0c0=conv_light"
            )
    _refuse_twice(parsed, [slot for slot, _, _ in pairs])
    return {slot: blueprint for slot, _, blueprint in pairs}


def _refuse_twice(parsed: ParsedPolicy, slots: Sequence[str]) -> None:
    for slot in slots:
        if slots.count(slot) > 1:
            raise EsperError(f"policy {shown(parsed.text)}: slot {slot} is named twice")
