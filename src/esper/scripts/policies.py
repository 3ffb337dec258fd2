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
from collections import Counter
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from esper.leyline.arrays import Ints
from esper.leyline.errors import EsperError, shown, unknown_name
from esper.leyline.protocols import PolicyProtocol, RewardProtocol
from esper.leyline.signals import NO_BLUEPRINT
from esper.leyline.streams import stream_seed
from esper.scripts.compare_config import Compare
from esper.scripts.policy_words import PolicyWord
from esper.scripts.train_config import Train
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
from esper.storage.sealed_json import parse_json
from esper.tamiyo.baselines import StaticTopology
from esper.tamiyo.heuristic import HeuristicConfig
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

    word: PolicyWord
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
        assert self.word.kind != "controller"  # those have an agent
        asked = Train(
            self.word.kind,
            seed=seed,
            blueprint=self.word.blueprint,
            slots=self.word.slots,
            topology=self.word.topology,
            start=self.word.start,
            order=self.word.order,
        )
        return asked.make_policy(self.spec, reward)

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


def make_contender(config: Compare, word: PolicyWord, spec: TaskSpec) -> Contender:
    """The policy of a word on a task, everything about it checked that can be before it runs."""
    if word.kind == "controller":
        return _controller(config, word, spec)
    if word.found_by is not None:
        return static_final(make_contender(config, word.found_by, spec), word)
    if word.kind == "static-final" and word.path is not None:
        word = replace(word, topology=found_topology(word.path))
    _check_names(word, spec)
    contender = unlearned(word, spec)
    try:
        contender.policy(config.first_seed)  # a bad start, slot or topology is refused here
    except EsperError as error:
        raise EsperError(f"policy {shown(word.text)}: {error}") from None
    return contender


def unlearned(word: PolicyWord, spec: TaskSpec) -> Contender:
    """A policy that does not learn, with all that `spec` has."""
    if word.longer != 1.0:
        spec = replace(spec, episode_length=max(1, round(word.longer * spec.episode_length)))
    rules = HeuristicConfig(blueprints=word.order) if word.kind == "heuristic" else None
    identity = Identity(_in_words(word), Limits(spec.blueprints), rules=rules)
    return Contender(word, spec, identity)


def learned(
    word: PolicyWord,
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


def static_final(found_by: Contender, word: PolicyWord) -> Contender:
    """The topologies that `found_by` ends with, planted in the same hosts from the start."""
    known = replace(found_by.identity, policy=f"static-final of {found_by.identity.policy}")
    return Contender(word, found_by.spec, known, found_by=found_by)


def _in_words(word: PolicyWord) -> str:
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


def _check_names(word: PolicyWord, spec: TaskSpec) -> None:
    """Slots and blueprints must be the task's."""
    pairs = [entry.partition("=")[::2] for entry in word.topology]
    slots = (*word.slots, *(slot for slot, _ in pairs))
    kinds = [*word.order, *(blueprint for _, blueprint in pairs if blueprint)]
    if word.kind in ("fixed", "static-full") and not word.topology:
        kinds = [word.blueprint]
    for slot in slots:
        if slot not in spec.slots:
            raise unknown_name("slot", slot, spec.slots, f"in policy {shown(word.text)}")
    for blueprint in kinds:
        if blueprint not in spec.blueprints:
            raise unknown_name(
                "blueprint", blueprint, spec.blueprints, f"in policy {shown(word.text)}"
            )


# ---- a topology that was found -----------------------------------------------------------------


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


# ---- controllers -------------------------------------------------------------------------------


def _controller(config: Compare, word: PolicyWord, spec: TaskSpec) -> Contender:
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
