"""Construction of scripted policies from a parsed policy name (`grammar.parse`).

Policies that depend on a run cannot be built here: a saved controller needs its agent,
`static-final:POLICY` the final topologies of that policy on the same hosts, and so on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from esper.leyline.actions import ActionSpace
from esper.leyline.arrays import Ints
from esper.leyline.errors import EsperError, shown, unknown_name
from esper.leyline.protocols import PolicyProtocol, RewardProtocol
from esper.tamiyo.baselines import RandomPolicy, RestartPolicy, StaticTopology, WaitPolicy
from esper.tamiyo.grammar import ParsedPolicy
from esper.tamiyo.heuristic import HeuristicConfig, HeuristicPolicy
from esper.tamiyo.planning import PlannedTopology, TablePolicy
from esper.tamiyo.schedule import FixedSchedule, ScheduleConfig, ScheduleEntry
from esper.tamiyo.topology_table import TopologyTable, read_table

if TYPE_CHECKING:
    from esper.tasks.spec import TaskSpec


def make_policy(
    parsed: ParsedPolicy,
    spec: TaskSpec,
    *,
    seed: int,
    reward: RewardProtocol | None,
) -> PolicyProtocol[Any]:
    """Build the policy for a task; run it with `spec_for(parsed, spec)`."""
    require_standalone(parsed)
    if parsed.kind == "wait":
        return WaitPolicy(reward)
    if parsed.kind == "random":
        return RandomPolicy(seed, reward)
    if parsed.kind == "heuristic":
        table = None if parsed.path is None else _table(parsed, spec)
        return HeuristicPolicy(HeuristicConfig(parsed.order, table), reward)
    if parsed.kind == "table":
        return TablePolicy(_table(parsed, spec), reward)
    if parsed.kind == "restart":
        return _restart_policy(parsed, spec, reward)
    if parsed.kind == "static-final":
        return static_policy(_blueprint_by_slot(parsed), spec, reward)
    places = parsed.slots or tuple(spec.slots)
    _require_unique(parsed, places)
    if parsed.kind == "static-full":
        return static_policy(dict.fromkeys(places, parsed.blueprint), spec, reward)
    length = spec.episode_length
    if parsed.start >= length - 1:
        raise EsperError(
            f"policy {shown(parsed.text)}: step {parsed.start} is too late for an episode of "
            f"{length} steps; germinate before step {length - 1}"
        )
    grown = _blueprint_by_slot(parsed) or dict.fromkeys(places, parsed.blueprint)
    entries = tuple(ScheduleEntry(parsed.start, slot, kind) for slot, kind in grown.items())
    return FixedSchedule(ScheduleConfig(entries), reward)


def _restart_policy(
    parsed: ParsedPolicy, spec: TaskSpec, reward: RewardProtocol | None
) -> RestartPolicy:
    """The rule, where the task's actions and length allow it."""
    require_decision_step(parsed, spec)
    if not spec.context.restarts:
        actions = spec.context.actions
        raise EsperError(
            f"policy {shown(parsed.text)}: RESTART is not among the actions {shown(actions)}; give "
            f'contexts with it, as in --contexts \'{{"actions": "{actions}+restart"}}\''
        )
    return RestartPolicy(parsed.start, parsed.below, parsed.restarts, reward)


def require_decision_step(parsed: ParsedPolicy, spec: TaskSpec) -> None:
    """Raise if a policy decides once its episode is over."""
    length = spec.episode_length
    if parsed.start >= length:
        raise EsperError(
            f"policy {shown(parsed.text)}: step {parsed.start} is too late for an episode of "
            f"{length} steps; decide before step {length}"
        )


def static_policy(
    topology: Mapping[str, str] | Ints, spec: TaskSpec, reward: RewardProtocol | None
) -> PolicyProtocol[Any]:
    """A static topology; where members have caps, it is planned, so that they are respected."""
    if spec.context.capped > 0:
        return PlannedTopology(topology, reward)
    return StaticTopology(topology, reward)


def spec_for(parsed: ParsedPolicy, spec: TaskSpec) -> TaskSpec:
    """The task as this policy runs it: its training length, and the plan phase if it needs one."""
    spec = spec.lengthened(parsed.longer)
    static = parsed.kind in ("static-full", "static-final")
    return with_plan_phase(spec) if parsed.plans or (static and spec.context.capped > 0) else spec


def with_plan_phase(spec: TaskSpec) -> TaskSpec:
    """The same task with a plan phase and STOP."""
    actions: ActionSpace = "full+restart" if spec.context.restarts else "full"
    return replace(spec, context=replace(spec.context, actions=actions))


def require_standalone(parsed: ParsedPolicy) -> None:
    """Raise for a policy that depends on a run, such as a saved controller."""
    if parsed.kind == "controller":
        raise EsperError(
            f"policy {shown(parsed.text)}: a saved controller; evaluate it with esper eval "
            f"{shown(str(parsed.path))}, or against others with esper compare"
        )
    if parsed.kind == "own":
        raise EsperError(
            f"policy {shown(parsed.text)}: a policy of your own; run it with esper train, or "
            f"against others with esper compare"
        )
    by = parsed.found_by
    needs = {
        "static-final": "the final topologies of {} on the same hosts",
        "replay": "the actions of {} on other hosts",
        "wait": "the compute of {} on the same hosts",
        "asha": "several members per host",
        "best-of": "several members per host",
    }
    if by is not None or parsed.searches:
        what = needs[parsed.kind].format("" if by is None else shown(by.text))
        raise EsperError(
            f"policy {shown(parsed.text)}: needs {what}; run esper compare {shown(parsed.text)}"
        )


def _table(parsed: ParsedPolicy, spec: TaskSpec) -> TopologyTable:
    """Read the table of a policy, and check it against the task."""
    assert parsed.path is not None  # the parser rejects table without an argument
    table = read_table(parsed.path, spec.name)
    table.wanted(np.ones(1), spec.slots, spec.blueprints)  # raises on unknown names
    return table.at_rent(spec.rent)


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


def _blueprint_by_slot(parsed: ParsedPolicy) -> dict[str, str]:
    """Parse its `slot=blueprint` words into a dict."""
    pairs = [word.partition("=") for word in parsed.topology]
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
