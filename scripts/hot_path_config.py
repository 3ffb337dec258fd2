"""The settings that all measurements of the step path share: on which task, on what, how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import tyro

from esper.leyline.compute import ComputeSettings, ExecutorName, Profile
from esper.leyline.errors import EsperError, UnknownNameError, unknown_name
from esper.tamiyo.grammar import WORDS, ParsedPolicy, parse
from esper.tamiyo.make_policy import require_known_names, require_standalone, resolve_topology

if TYPE_CHECKING:
    from esper.tasks.spec import TaskData, TaskSpec
    from esper.tolaria.engine_config import EngineConfig

TelemetryName = Literal["off", "normal"]

MIX: Final = "mix"
"""The one policy that is no word of the grammar: seeds in every stage, and nobody acts."""
IN_WORDS: Final = {
    MIX: "half the slots hold a seed, split evenly between TRAINING, BLENDING and HOLDING; "
    "nobody acts",
    "wait": "every slot dormant; nobody acts",
    "random": "random actions",
}
"""What the slots hold; other policies are told by their word."""


@dataclass(frozen=True)
class HotPath(ComputeSettings):
    """What is run, and on what."""

    task: str = "digits_impaired"
    """What is trained on."""
    policy: str = MIX
    """mix: half the slots hold a seed, split evenly between TRAINING, BLENDING and HOLDING, and
    nobody acts. Or a policy as `esper train` takes it: wait (bare hosts, nobody acts), random (any
    legal action), fixed:conv_heavy@2; those that act run whole episodes of the task's length."""
    blueprint: str = "conv_light"
    """mix: the seed in every live slot."""
    profile: Profile = "fast"
    """exact: the same numbers every time (on a GPU it needs CUBLAS_WORKSPACE_CONFIG); fast may
    reorder sums, and executor auto takes the one that measures faster."""
    executor: Annotated[ExecutorName, tyro.conf.Suppress] = "auto"
    """Benchmarks name executors themselves."""
    batch_size: int | None = None
    """Samples in a batch of each member; the task's own where not given."""
    batches_per_step: int | None = None
    """Train batches in a step; the task's own where not given."""
    val_images: int | None = None
    """Samples of val_control and of val_score, the first ones; all where not given."""

    def check(self) -> None:
        """Refuse what cannot work before anything is loaded."""
        for name in ("batch_size", "batches_per_step", "val_images"):
            if getattr(self, name) is not None:
                require_positive(self, name)
        parsed = self.parsed
        if parsed is not None:
            require_standalone(parsed)
            spec = self.spec()
            require_known_names(resolve_topology(parsed), spec.slots, spec.blueprints)

    @property
    def parsed(self) -> ParsedPolicy | None:
        """What the policy's word means; None: the mix."""
        if self.policy == MIX:
            return None
        try:
            return parse(self.policy)
        except UnknownNameError:
            raise unknown_name("policy", self.policy, (MIX, *WORDS)) from None

    @property
    def acts(self) -> bool:
        """Whether the policy changes what the slots hold."""
        parsed = self.parsed
        return parsed is not None and parsed.kind in ("random", "heuristic", "fixed")

    def spec(self) -> TaskSpec:
        """The task with what was changed about it."""
        from esper.tasks.registry import get_task_spec

        changes: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("batch_size", "batches_per_step")
            if getattr(self, name) is not None
        }
        parsed = self.parsed
        longer = 1.0 if parsed is None else parsed.longer
        return replace(get_task_spec(self.task), **changes).lengthened(longer)

    def engine_config(self, members: int, executor: ExecutorName) -> EngineConfig:
        """The settings in the engine's words."""
        from esper.tolaria.engine_config import EngineConfig

        return EngineConfig(members=members, **(self.compute() | {"executor": executor}))


def require_positive(config: object, name: str) -> None:
    """Refuse a field (or any value of one that has several) below 1, by its flag."""
    value = getattr(config, name)
    values = value if isinstance(value, Sequence) else (value,)
    flag = name.replace("_", "-")
    for one in values:
        if one < 1:
            raise EsperError(f"--{flag} {one}: must be 1 or more")


def require_distinct(config: object, name: str) -> None:
    """Refuse a field of several values that is empty, or names one twice."""
    values = getattr(config, name)
    if not values or len(set(values)) != len(values):
        given = " ".join(map(str, values)) or "(nothing)"
        raise EsperError(f"--{name} {given}: give at least one, and each once")


def first_samples(data: TaskData, count: int | None) -> TaskData:
    """The data with the first `count` samples of both validation parts (None: all)."""
    from esper.tasks.spec import TaskPart

    if count is None:
        return data
    parts: dict[str, Any] = {}
    for name in ("val_control", "val_score"):
        part: TaskPart = getattr(data, name)
        if count > len(part):
            raise EsperError(f"--val-images {count}: {name} has {len(part)}")
        parts[name] = TaskPart(part.inputs[:count], part.labels[:count])
    return replace(data, **parts)
