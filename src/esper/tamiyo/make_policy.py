"""Construction of scripted policies from a parsed policy name (`grammar.parse`).

Policies that depend on a run cannot be built here: a saved controller needs its agent, and
`static-final:POLICY` the final topologies of that policy on the same hosts.
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
    """Build the policy for a host with these slots and this episode length.

    `prices`: cost of growth in the score. `charge`: overrides `HeuristicConfig.charge`.
    """
    require_standalone(parsed)
    if parsed.kind == "wait":
        return WaitPolicy(reward)
    if parsed.kind == "random":
        return RandomPolicy(seed, reward)
    if parsed.kind == "heuristic":
        return HeuristicPolicy(heuristic_config(parsed, charge), reward, prices=prices)
    if parsed.kind == "static-final":
        topology = parsed.topology or load_topology(_result_path(parsed))
        return StaticTopology.final(_blueprint_by_slot(parsed, topology), reward)
    places = parsed.slots or tuple(slots)
    _require_unique(parsed, places)
    if parsed.kind == "static-full":
        return StaticTopology.full(parsed.blueprint, places, reward)
    if parsed.start >= episode_length - 1:
        raise EsperError(
            f"policy {shown(parsed.text)}: step {parsed.start} is too late for an episode of "
            f"{episode_length} steps; germinate before step {episode_length - 1}"
        )
    grown = _blueprint_by_slot(parsed, parsed.topology) or dict.fromkeys(places, parsed.blueprint)
    entries = tuple(ScheduleEntry(parsed.start, slot, kind) for slot, kind in grown.items())
    return FixedSchedule(ScheduleConfig(entries), reward)


def require_standalone(parsed: ParsedPolicy) -> None:
    """Raise for a policy that depends on a run: a saved controller or static-final:POLICY."""
    if parsed.kind == "controller":
        raise EsperError(
            f"policy {shown(parsed.text)}: a saved controller; evaluate it with esper eval "
            f"{shown(str(parsed.path))}, or against others with esper compare"
        )
    if parsed.found_by is not None:
        raise EsperError(
            f"policy {shown(parsed.text)}: needs the final topologies of "
            f"{shown(parsed.found_by.text)} on the same hosts; run esper compare "
            f"{shown(parsed.text)}"
        )


def heuristic_config(parsed: ParsedPolicy, charge: float | None = None) -> HeuristicConfig:
    """Return the heuristic's config with the given blueprint order and charge."""
    rules = HeuristicConfig(blueprints=parsed.order)
    return rules if charge is None else replace(rules, charge=charge)


def require_known_names(
    parsed: ParsedPolicy, slots: Sequence[str], blueprints: Sequence[str]
) -> None:
    """Raise if the policy names a slot or blueprint that the task does not have."""
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


def resolve_topology(parsed: ParsedPolicy) -> ParsedPolicy:
    """Replace static-final:RESULT.json by the topology in that file; others are unchanged."""
    if parsed.kind != "static-final" or parsed.path is None:
        return parsed
    return replace(parsed, topology=load_topology(parsed.path))


def load_topology(path: Path) -> tuple[str, ...]:
    """Read the most frequent final topology from a JSON result, as `slot=blueprint` words."""
    try:
        record: Any = parse_json(path.read_bytes())
        slots, blueprints = record["slots"], record["blueprints"]
        blueprint_NS = np.concatenate(
            [np.asarray(done["outcome"]["blueprint_ES"]) for done in record["rounds"]]
        )
        counts = Counter(tuple(int(kind) for kind in row_S) for row_S in blueprint_NS)
        (blueprint_S, _), *_ = counts.most_common(1)
        grown = [(slot, k) for slot, k in zip(slots, blueprint_S, strict=True) if k != NO_BLUEPRINT]
        found = tuple(f"{slot}={blueprints[kind]}" for slot, kind in grown)
    except OSError as error:
        raise EsperError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, IndexError):
        raise EsperError(
            f"{path} is not the result of a run (slots, blueprints, rounds with their outcome): "
            f"pass the JSON file that `train` writes"
        ) from None
    if not found:
        raise EsperError(
            f"{path}: the most frequent final topology is the host alone; use wait instead"
        )
    return found


def _result_path(parsed: ParsedPolicy) -> Path:
    assert parsed.path is not None  # the parser rejects static-final without an argument
    return parsed.path


def _blueprint_by_slot(parsed: ParsedPolicy, topology: Sequence[str]) -> dict[str, str]:
    """Parse `slot=blueprint` words into a dict."""
    pairs = [word.partition("=") for word in topology]
    for slot, mark, blueprint in pairs:
        if not (slot and mark and blueprint):
            raise EsperError(
                f"policy {shown(parsed.text)}: {shown(slot + mark + blueprint)}: expected "
                f"slot=blueprint, for example r0c0=conv_light"
            )
    _require_unique(parsed, [slot for slot, _, _ in pairs])
    return {slot: blueprint for slot, _, blueprint in pairs}


def _require_unique(parsed: ParsedPolicy, slots: Sequence[str]) -> None:
    for slot in slots:
        if slots.count(slot) > 1:
            raise EsperError(f"policy {shown(parsed.text)}: slot {slot} is named twice")
