"""Policies to evaluate and their settings, shared by `train ppo`, `eval` and `compare`.

Hosts, batches, episode length and score are the same for all. Policies that do not learn may use
all blueprints and action heads, with seeds measured at every step; a controller uses the settings
it was trained with, and a policy of a user's what its class says.

A controller that was saved alone (`PPOAgent.save`) has the settings of --preset.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from esper.compare.comparison import PolicyResult
from esper.compare.config import Compare
from esper.compare.own import own_policy, own_settings
from esper.leyline.actions import ActionHead, BlendStyle
from esper.leyline.arrays import Ints
from esper.leyline.protocols import PolicyProtocol, RewardProtocol
from esper.leyline.streams import stream_seed
from esper.simic.agent.agent import PPOAgent
from esper.simic.client import ActingMode, SimicClient
from esper.simic.rewards.score import ScoreReward
from esper.simic.training.config import (
    PopulationConfig,
    preset,
    preset_of_task,
)
from esper.simic.training.runs.controllers import find_controller
from esper.tamiyo.asha import ETA, rung_steps
from esper.tamiyo.frozen_heads import FrozenHeads
from esper.tamiyo.grammar import ParsedPolicy, unique_labels
from esper.tamiyo.make_policy import (
    make_policy,
    require_decision_step,
    require_known_names,
    spec_for,
    static_policy,
)
from esper.tamiyo.policy import Policy, PolicyClient
from esper.tamiyo.replay import require_same_names
from esper.tamiyo.topology_table import read_table
from esper.tasks.spec import TaskSpec
from esper.tasks.user_objects import UserFiles
from esper.tolaria.engine_config import EngineConfig
from esper.tolaria.runtime import parse_device


@dataclass(frozen=True, slots=True)
class Limits:
    """Choices open to a policy, and how often its seeds are measured."""

    blueprints: tuple[str, ...]
    """Blueprints it may grow."""
    frozen_heads: FrozenHeads = ()
    """Action heads fixed to one choice: (head, index of the choice)."""
    counterfactual_stride: int = 1
    """Steps between counterfactual evaluations of seeds."""

    @classmethod
    def of(cls, spec: TaskSpec, population: PopulationConfig) -> Limits:
        """With the blueprints of `spec`, the rest as in `population`."""
        return cls(spec.blueprints, population.frozen_heads, population.counterfactual_stride)


@dataclass(frozen=True, slots=True)
class Identity:
    """Everything a policy's results depend on, besides the shared settings."""

    policy: str
    """Canonical text; for a controller only how it acts."""
    limits: Limits
    agent: str = ""
    """Checksum of a controller's save, or of the file of a policy of your own; else empty."""


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """A policy to evaluate, and how to create it for each population."""

    parsed: ParsedPolicy
    spec: TaskSpec
    """The task with this policy's blueprints."""
    identity: Identity
    agent: PPOAgent | None = None
    """Agent of a controller."""
    slots: tuple[str, ...] | None = None
    """Slots that a controller was trained with; None: unknown."""
    own: Callable[[], Policy] | None = None
    """Makes a policy of your own."""
    found_by: PolicyEntry | None = None
    """Policy it depends on: static-final plants its final topologies, wait spends its compute (it
    must run first for both), replay repeats its actions."""

    @property
    def label(self) -> str:
        """Name in tables and plots."""
        return self.parsed.label

    def policy(
        self,
        seed: int,
        reward: RewardProtocol | None = None,
        planted_ES: Ints | None = None,
    ) -> PolicyProtocol[Any]:
        """Create the policy for the population of a run seed; default reward: the score.

        `planted_ES`: final topologies of `found_by` in that population.
        """
        reward = reward or ScoreReward(self.spec.upkeep)
        if planted_ES is not None:
            return static_policy(planted_ES, self.spec, reward)
        if self.agent is not None:
            mode = ActingMode.SAMPLE if self.parsed.sampled else ActingMode.GREEDY
            agent, blind = _reseeded(self.agent, seed), self.parsed.blind
            return SimicClient(agent, reward, mode, hide_curve=blind)
        if self.own is not None:
            return PolicyClient(self.own(), reward)
        parsed = replace(self.parsed, found_by=None) if self.parsed.kind == "wait" else self.parsed
        return make_policy(parsed, self.spec, seed=seed, reward=reward)

    @property
    def needs_result(self) -> bool:
        """Whether `found_by` must have a result before it runs."""
        return self.found_by is not None and self.parsed.kind != "replay"

    def with_compute_of(self, found: PolicyResult) -> PolicyEntry:
        """wait:as:POLICY: train as long as that policy's mean compute allows; others unchanged.

        Under the compute clock everybody has the same compute, except a search.
        """
        if self.parsed.kind != "wait" or self.found_by is None:
            return self
        if self.spec.context.clock == "compute" and found.search is None:
            return self
        budget_N = 1.0 if found.contexts is None else found.contexts.budget_N
        factor = float(np.mean(found.compute_N / budget_N))
        return replace(self, spec=self.spec.lengthened(factor))

    def engine_config(self, population: PopulationConfig, seed: int, members: int) -> EngineConfig:
        """`EngineConfig` of its population for a run seed; `population`: compute settings."""
        limits = self.identity.limits
        own = replace(
            population,
            envs=members,
            rollout_steps=None,
            frozen_heads=limits.frozen_heads,
            counterfactual_stride=limits.counterfactual_stride,
        )
        return own.engine_config(seed)


def _reseeded(agent: PPOAgent, seed: int) -> PPOAgent:
    """The same agent with shared weights and its own random draws for a run seed.

    Draws depend on the agent's seed, round and member; otherwise member i of every population
    would draw the same numbers.
    """
    twin = copy(agent)
    twin.seed = stream_seed(agent.seed, "compare", seed)
    return twin


def make_entry(
    config: Compare, parsed: ParsedPolicy, spec: TaskSpec, files: UserFiles | None = None
) -> PolicyEntry:
    """Create and check the entry of a parsed policy; `files`: runs the files that it names."""
    if parsed.kind == "controller":
        return _controller(config, parsed, spec)
    if parsed.found_by is not None:
        return _dependent_entry(make_entry(config, parsed.found_by, spec, files), parsed, spec)
    if parsed.kind == "own":
        return _own_entry(parsed, spec, files or UserFiles())
    if parsed.searches:
        return search_entry(parsed, spec)
    require_known_names(parsed, spec.slots, spec.blueprints)
    entry = baseline_entry(parsed, spec)
    entry.policy(config.first_seed)  # raises on a bad step, slot or topology
    return entry


def _dependent_entry(by: PolicyEntry, parsed: ParsedPolicy, spec: TaskSpec) -> PolicyEntry:
    """Entry of a policy that depends on another."""
    if parsed.kind == "static-final":
        return static_final_entry(by, parsed)
    if parsed.kind == "wait":
        identity = replace(by.identity, policy=f"wait as {by.identity.policy}")
        return PolicyEntry(parsed, spec, identity, found_by=by)
    if by.slots is not None:
        require_same_names("slots", by.slots, spec.slots)
    known = replace(by.identity, policy=f"replay of {by.identity.policy}")
    return PolicyEntry(parsed, by.spec, known, found_by=by)


def baseline_entry(parsed: ParsedPolicy, spec: TaskSpec) -> PolicyEntry:
    """Entry of a policy that does not learn, with all blueprints of `spec`."""
    spec = spec_for(parsed, spec)
    static = parsed.kind in ("static-full", "static-final") and spec.context.capped > 0
    limits = planted_limits(spec) if static or parsed.kind == "table" else Limits(spec.blueprints)
    return PolicyEntry(parsed, spec, Identity(_canonical_policy(parsed, spec), limits))


def search_entry(parsed: ParsedPolicy, spec: TaskSpec) -> PolicyEntry:
    """Entry of a search over planted topologies or initialisations."""
    search_rungs(parsed, spec)  # raises if there are too many
    spec, step = spec_for(parsed, spec), f",{parsed.start}" * _decides_once(parsed)
    known = f"{parsed.kind}:{parsed.candidates}{step}"
    return PolicyEntry(parsed, spec, Identity(known, planted_limits(spec)))


def search_rungs(parsed: ParsedPolicy, spec: TaskSpec) -> tuple[tuple[int, ...], int]:
    """Rungs of a search, and of how many members one continues there."""
    if _decides_once(parsed):
        require_decision_step(parsed, spec)
        return (parsed.start,), parsed.candidates
    return rung_steps(parsed.candidates, spec.episode_length), ETA


def _decides_once(parsed: ParsedPolicy) -> bool:
    return parsed.kind == "best-of" and parsed.start > 0


def _own_entry(parsed: ParsedPolicy, spec: TaskSpec, files: UserFiles) -> PolicyEntry:
    """Entry of a policy in a user's file, which is run here."""
    make = own_policy(files, parsed)
    spec, population = own_settings(make(), parsed, spec, PopulationConfig())
    assert parsed.path is not None  # the parser gives it
    digest = hashlib.sha256(parsed.path.read_bytes()).hexdigest()
    identity = Identity(f"own:{parsed.name}", Limits.of(spec, population), digest)
    return PolicyEntry(parsed, spec, identity, own=make)


def planted_limits(spec: TaskSpec) -> Limits:
    """Limits of policies that only plant: no seed blends, and nobody asks what one contributes."""
    style = (ActionHead.STYLE, int(BlendStyle.ADD))
    return Limits(spec.blueprints, (style,), spec.episode_length)


def controller_entry(
    parsed: ParsedPolicy,
    spec: TaskSpec,
    agent: PPOAgent,
    limits: Limits,
    checksum: str = "",
) -> PolicyEntry:
    """Entry of a controller; `checksum`: of its save."""
    how = "controller" + ", sampled" * parsed.sampled + ", blind" * parsed.blind
    if parsed.untrained:
        how, agent = f"{how}, untrained", agent.untrained()
        checksum = agent.origin_digest()
    identity = Identity(how, limits, checksum)
    return PolicyEntry(parsed, spec, identity, agent)


def _untrained_entry(trained: PolicyEntry) -> PolicyEntry:
    """Entry of the same controller as it began, with the same way to act."""
    assert trained.agent is not None
    parsed = replace(trained.parsed, label=f"{trained.label}, untrained", blind=False,
                     untrained=True)  # fmt: skip
    entry = controller_entry(parsed, trained.spec, trained.agent, trained.identity.limits)
    return replace(entry, slots=trained.slots)


def with_untrained(entries: Sequence[PolicyEntry]) -> list[PolicyEntry]:
    """The entries, each controller followed by itself untrained unless that is among them."""
    known = {str(it.identity) for it in entries}
    found: list[PolicyEntry] = []
    for entry in entries:
        found.append(entry)
        if entry.parsed.kind == "controller" and not entry.parsed.untrained:
            start = _untrained_entry(entry)
            if str(start.identity) not in known:
                known.add(str(start.identity))
                found.append(start)
    labels = unique_labels([it.label for it in found])
    return [replace(it, parsed=replace(it.parsed, label=label))
            for it, label in zip(found, labels, strict=True)]  # fmt: skip


def probe_notes(entries: Sequence[PolicyEntry]) -> list[str]:
    """One line for each blind controller that was never trained with a hidden curve."""
    return [
        f"{it.label}: trained with curve_dropout 0, it has never seen a hidden curve; what it "
        f"loses may be due to inputs that are new to it: hold it against replay, or train with "
        f"--curve-dropout 0.1"
        for it in entries
        if it.parsed.blind and it.agent is not None and it.agent.config.curve_dropout == 0
    ]


def static_final_entry(found_by: PolicyEntry, parsed: ParsedPolicy) -> PolicyEntry:
    """Entry that plants the final topologies of `found_by` in the same hosts from the start."""
    known = replace(found_by.identity, policy=f"static-final of {found_by.identity.policy}")
    spec = spec_for(parsed, found_by.spec)
    if spec.context.capped > 0:
        known = replace(known, limits=planted_limits(spec))
    return PolicyEntry(parsed, spec, known, found_by=found_by)


def _canonical_policy(parsed: ParsedPolicy, spec: TaskSpec) -> str:
    """Canonical text of a policy; part of its identity on disk."""
    if parsed.kind in ("table", "heuristic") and parsed.path is not None:
        return f"{parsed.kind}:{read_table(parsed.path, spec.name).digest}"
    if parsed.kind == "wait" and parsed.longer != 1.0:
        return f"wait:{parsed.longer:g}"
    if parsed.kind == "restart":
        return f"restart:{parsed.start},{parsed.below:g},{parsed.restarts}"
    if parsed.kind == "static-final":
        return f"static-final:{','.join(sorted(parsed.topology))}"
    if parsed.kind == "heuristic" and parsed.order:
        return f"heuristic:{','.join(parsed.order)}"
    if parsed.kind == "fixed" and parsed.topology:
        return f"fixed:{','.join(sorted(parsed.topology))}@{parsed.start}"
    slots = ",".join(parsed.slots) or "all slots"
    if parsed.kind == "static-full":
        return f"static-full:{parsed.blueprint}:{slots}"
    if parsed.kind == "fixed":
        return f"fixed:{parsed.blueprint}@{parsed.start}:{slots}"
    return parsed.kind


# ---- controllers -------------------------------------------------------------------------------


def _controller(config: Compare, parsed: ParsedPolicy, spec: TaskSpec) -> PolicyEntry:
    assert parsed.path is not None  # controllers are given by a folder
    found = find_controller(parsed.path)
    agent = found.load(parse_device(config.device))
    trained = found.training or preset(config.preset or preset_of_task(config.task.name), 1)
    names = config.task.blueprints or trained.task.blueprints
    if names and set(names) <= set(spec.blueprints):  # as trained, where the task has them
        spec = replace(spec, blueprints=names)
    limits = Limits.of(spec, trained.population)
    entry = controller_entry(parsed, spec, agent, limits, found.checksum())
    return replace(entry, slots=found.slots)
