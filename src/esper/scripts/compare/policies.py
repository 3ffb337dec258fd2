"""Who is judged, and under which settings: `train ppo`, `eval` and `compare` all ask here.

What all share (hosts, batches, length, score) is the task's. What a policy may choose from is its
own: policies that do not learn have all blueprints, every head free and seeds measured at every
step, a controller has what it was trained with.

A controller's folder is one of
    a save of the agent     what PPOAgent.save wrote; its settings are those of --preset
    a checkpoint            with the settings of its run
    a run                   its best checkpoint is taken
"""

from __future__ import annotations

import json
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from esper.leyline.arrays import Ints
from esper.leyline.errors import EsperError
from esper.leyline.protocols import PolicyProtocol, RewardProtocol
from esper.leyline.streams import stream_seed
from esper.scripts.compare.config import Compare
from esper.simic.agent.agent import PPOAgent
from esper.simic.client import ActingMode, SimicClient, policy_spec
from esper.simic.rewards.score import ScoreReward
from esper.simic.training.config import (
    PRESETS,
    FrozenHeads,
    PopulationConfig,
    TrainingConfig,
    preset,
)
from esper.simic.training.runs.checkpoint_store import MANIFEST as CHECKPOINT
from esper.simic.training.runs.checkpoints import AGENT, find_checkpoint
from esper.simic.training.runs.folder import RUN
from esper.storage.saves import MANIFEST
from esper.tamiyo.baselines import StaticTopology
from esper.tamiyo.grammar import ParsedPolicy
from esper.tamiyo.heuristic import HeuristicConfig
from esper.tamiyo.make_policy import (
    heuristic_config,
    make_policy,
    require_known_names,
    resolve_topology,
)
from esper.tasks.spec import TaskSpec
from esper.tolaria.engine_config import EngineConfig
from esper.tolaria.runtime import parse_device


@dataclass(frozen=True, slots=True)
class Limits:
    """What a policy may choose from, and how often seeds are measured for it."""

    blueprints: tuple[str, ...]
    """What may be grown."""
    frozen_heads: FrozenHeads = ()
    """Action heads with one choice only: (head, index of the choice)."""
    counterfactual_stride: int = 1
    """Steps from one measurement of what seeds are worth to the next."""


@dataclass(frozen=True, slots=True)
class Identity:
    """All that a policy's numbers depend on, besides what all policies share."""

    policy: str
    """In words; of a controller only how it acts."""
    limits: Limits
    agent: str = ""
    """Checksum of a controller's save; empty where there is none."""
    rules: HeuristicConfig | None = None
    """Of the heuristic, whose defaults may change from one commit to the next."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy, ready to be made for each population."""

    word: ParsedPolicy
    spec: TaskSpec
    """The task with what this policy may grow."""
    identity: Identity
    agent: PPOAgent | None = None
    """Of a controller."""
    found_by: Contender | None = None
    """static-final of a policy: the policy, which must have run before."""

    @property
    def label(self) -> str:
        """How tables and pictures call it."""
        return self.word.label

    def policy(
        self,
        seed: int,
        reward: RewardProtocol | None = None,
        planted_ES: Ints | None = None,
    ) -> PolicyProtocol[Any]:
        """A fresh one, for a population of that run seed; paid the score, if nothing else.

        `planted_ES`: the topologies that `found_by` ended with in that population.
        """
        reward = reward or ScoreReward(self.spec.upkeep)
        if planted_ES is not None:
            return StaticTopology.final(planted_ES, reward)
        if self.agent is not None:
            mode = ActingMode.SAMPLE if self.word.sampled else ActingMode.GREEDY
            return SimicClient(_with_draws_of(self.agent, seed), reward, mode)
        return make_policy(
            self.word,
            slots=self.spec.slots,
            episode_length=self.spec.episode_length,
            prices=self.spec.score,
            seed=seed,
            reward=reward,
        )

    def engine_config(self, population: PopulationConfig, seed: int, members: int) -> EngineConfig:
        """How its population of a run seed runs; `population`: how any is computed."""
        limits = self.identity.limits
        own = replace(
            population,
            envs=members,
            rollout_steps=None,
            frozen_heads=limits.frozen_heads,
            counterfactual_stride=limits.counterfactual_stride,
        )
        return own.engine_config(seed)


def _with_draws_of(agent: PPOAgent, seed: int) -> PPOAgent:
    """The same agent, weights shared, with draws of its own for a population of that run seed.

    An agent's draws follow from its seed, round and member; without this, member i of every
    population would draw the same.
    """
    twin = copy(agent)
    twin.seed = stream_seed(agent.seed, "compare", seed)
    return twin


def make_contender(config: Compare, word: ParsedPolicy, spec: TaskSpec) -> Contender:
    """The policy of a word on a task, everything about it checked that can be before it runs."""
    if word.kind == "controller":
        return _controller(config, word, spec)
    if word.found_by is not None:
        return static_final(make_contender(config, word.found_by, spec), word)
    word = resolve_topology(word)
    require_known_names(word, spec.slots, spec.blueprints)
    contender = unlearned(word, spec)
    contender.policy(config.first_seed)  # a bad step, slot or topology is refused here
    return contender


def unlearned(word: ParsedPolicy, spec: TaskSpec) -> Contender:
    """A policy that does not learn, with all that `spec` has."""
    spec = spec.lengthened(word.longer)
    rules = heuristic_config(word) if word.kind == "heuristic" else None
    identity = Identity(_in_words(word), Limits(spec.blueprints), rules=rules)
    return Contender(word, spec, identity)


def learned(
    word: ParsedPolicy,
    spec: TaskSpec,
    agent: PPOAgent,
    population: PopulationConfig,
    checksum: str = "",
) -> Contender:
    """A controller, with what it was trained with: its blueprints, and those limits."""
    limits = Limits(
        agent.spec.blueprints, population.frozen_heads, population.counterfactual_stride
    )
    how = "controller, sampled" if word.sampled else "controller"
    identity = Identity(how, limits, checksum)
    return Contender(word, replace(spec, blueprints=limits.blueprints), identity, agent)


def static_final(found_by: Contender, word: ParsedPolicy) -> Contender:
    """The topologies that `found_by` ends with, planted in the same hosts from the start."""
    known = replace(found_by.identity, policy=f"static-final of {found_by.identity.policy}")
    return Contender(word, found_by.spec, known, found_by=found_by)


def _in_words(word: ParsedPolicy) -> str:
    """What the policy does, written one way only."""
    if word.kind == "wait" and word.longer != 1.0:
        return f"wait:{word.longer:g}"
    if word.kind == "static-final":
        return f"static-final:{','.join(sorted(word.topology))}"
    if word.kind == "heuristic" and word.order:
        return f"heuristic:{','.join(word.order)}"
    if word.kind == "fixed" and word.topology:
        return f"fixed:{','.join(sorted(word.topology))}@{word.start}"
    slots = ",".join(word.slots) or "all slots"
    if word.kind == "static-full":
        return f"static-full:{word.blueprint}:{slots}"
    if word.kind == "fixed":
        return f"fixed:{word.blueprint}@{word.start}:{slots}"
    return word.kind


# ---- controllers -------------------------------------------------------------------------------


def _controller(config: Compare, word: ParsedPolicy, spec: TaskSpec) -> Contender:
    assert word.path is not None  # a controller is named by its folder
    folder, training = find_controller(word.path)
    agent = PPOAgent.load(folder, parse_device(config.device))
    _check_agent(config, agent, folder, spec)
    population = (training or _preset(config)).population
    checksum = str(json.loads((folder / MANIFEST).read_bytes())["checksum"])
    return learned(word, spec, agent, population, checksum)


def find_controller(path: Path) -> tuple[Path, TrainingConfig | None]:
    """Where the agent of a folder lies, and what it was trained with where that is known."""
    if (path / MANIFEST).is_file():
        return path, None
    if not any((path / name).is_file() for name in (CHECKPOINT, RUN)):
        raise EsperError(
            f"{path} holds no controller: give a folder that PPOAgent.save wrote, a checkpoint, or "
            f"a run (`esper runs` lists them)"
        )
    checkpoint = find_checkpoint(path)
    return checkpoint.path / AGENT, checkpoint.config


def _preset(config: Compare) -> TrainingConfig:
    """The preset that was named, or the one named like the task, or plain."""
    task = config.task.name
    return preset(config.preset or (task if task in PRESETS else "plain"), 1)


def _check_agent(config: Compare, agent: PPOAgent, folder: Path, spec: TaskSpec) -> None:
    """Refuse an agent that cannot play this task, or not with what the flags allow."""
    found = agent.spec
    if found != policy_spec(found.blueprints):
        raise EsperError(
            f"{folder}: a controller of {found.global_features} + {found.slot_features} features, "
            f"this Esper shows it others; train a new one"
        )
    asked = config.task.blueprints
    allowed = asked or spec.blueprints
    beyond = [name for name in found.blueprints if name not in allowed]
    if beyond or (asked and set(found.blueprints) != set(allowed)):
        of = "--blueprints" if asked else f"task {spec.name}"
        raise EsperError(
            f"{folder}: a controller of other blueprints ({', '.join(found.blueprints)}) than "
            f"{of} has ({', '.join(allowed)}); compare it on a task that has them"
        )
