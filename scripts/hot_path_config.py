"""Settings shared by all measurements of the step path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import tyro

from esper.leyline.compute import ComputeSettings, ExecutorName, Profile
from esper.leyline.errors import EsperError, UnknownNameError, unknown_name
from esper.tamiyo.grammar import WORDS, ParsedPolicy, parse
from esper.tamiyo.make_policy import (
    require_known_names,
    require_standalone,
    spec_for,
)

if TYPE_CHECKING:
    from esper.tasks.spec import TaskSpec
    from esper.tasks.task_data import TaskData
    from esper.tolaria.engine_config import EngineConfig

TelemetryName = Literal["off", "normal"]

MIX: Final = "mix"
"""Policy name of the static mix: seeds in every stage, no actions."""
POLICY_DESCRIPTIONS: Final = {
    MIX: "half the slots hold a seed, split evenly between TRAINING, BLENDING and HOLDING; "
    "nobody acts",
    "wait": "every slot dormant; nobody acts",
    "random": "random actions",
}
"""Descriptions for the report; other policies are described by their text."""


@dataclass(frozen=True)
class HotPath(ComputeSettings):
    """Task, policy and compute settings."""

    task: str = "digits_impaired"
    """The task."""
    policy: str = MIX
    """mix: half the slots hold a seed, split evenly between TRAINING, BLENDING and HOLDING, without
    actions. Or a policy of `esper train`: wait (no seeds), random (any legal action),
    fixed:conv_heavy@2; policies that act run full episodes."""
    blueprint: str = "conv_light"
    """mix: blueprint of the seeds."""
    profile: Profile = "fast"
    """exact: bit-identical runs (on a GPU it needs CUBLAS_WORKSPACE_CONFIG); fast may reorder sums,
    and executor auto takes the one that measures faster."""
    executor: Annotated[ExecutorName, tyro.conf.Suppress] = "auto"
    """Set by the benchmarks."""
    batch_size: int | None = None
    """Samples per batch and member; default: the task's."""
    batches_per_step: int | None = None
    """Training batches per step; default: the task's."""
    val_images: int | None = None
    """Samples of val_control and val_score; default: all."""

    def check(self) -> None:
        """Check the settings before anything is loaded."""
        for name in ("batch_size", "batches_per_step", "val_images"):
            if getattr(self, name) is not None:
                require_positive(self, name)
        parsed = self.parsed
        if parsed is not None:
            require_standalone(parsed)
            spec = self.spec()
            require_known_names(parsed, spec.slots, spec.blueprints)

    @property
    def parsed(self) -> ParsedPolicy | None:
        """The parsed policy; None for the mix."""
        if self.policy == MIX:
            return None
        try:
            return parse(self.policy)
        except UnknownNameError:
            raise unknown_name("policy", self.policy, (MIX, *WORDS)) from None

    @property
    def acts(self) -> bool:
        """Whether the policy takes actions."""
        parsed = self.parsed
        return parsed is not None and parsed.kind in ("random", "heuristic", "fixed")

    def spec(self) -> TaskSpec:
        """The task spec with the changes applied."""
        from esper.tasks.registry import get_task_spec

        changes: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("batch_size", "batches_per_step")
            if getattr(self, name) is not None
        }
        parsed, spec = self.parsed, replace(get_task_spec(self.task), **changes)
        return spec if parsed is None else spec_for(parsed, spec)

    def engine_config(self, members: int, executor: ExecutorName) -> EngineConfig:
        """Convert to an `EngineConfig`."""
        from esper.tolaria.engine_config import EngineConfig

        return EngineConfig(members=members, **(self.compute() | {"executor": executor}))


def require_positive(config: object, name: str) -> None:
    """Raise if a field, or any of its values, is below 1."""
    value = getattr(config, name)
    values = value if isinstance(value, Sequence) else (value,)
    flag = name.replace("_", "-")
    for one in values:
        if one < 1:
            raise EsperError(f"--{flag} {one}: must be 1 or more")


def require_distinct(config: object, name: str) -> None:
    """Raise if a field of several values is empty or repeats one."""
    values = getattr(config, name)
    if not values or len(set(values)) != len(values):
        given = " ".join(map(str, values)) or "(nothing)"
        raise EsperError(f"--{name} {given}: give at least one, and each once")


def first_samples(data: TaskData, count: int | None) -> TaskData:
    """The data with only the first `count` samples of both validation parts (None: all)."""
    from esper.tasks.task_data import TaskPart

    if count is None:
        return data
    parts: dict[str, Any] = {}
    for name in ("val_control", "val_score"):
        part: TaskPart = getattr(data, name)
        if count > len(part):
            raise EsperError(f"--val-images {count}: {name} has {len(part)}")
        parts[name] = TaskPart(part.inputs[:count], part.labels[:count])
    return replace(data, **parts)
