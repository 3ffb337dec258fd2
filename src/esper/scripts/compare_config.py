"""The settings of `compare`: which policies, on which hosts, and where the results are kept."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from esper.leyline.errors import EsperError, unknown_name
from esper.leyline.seeds import EVALUATION_SEEDS, require_evaluation_seeds

if TYPE_CHECKING:
    from esper.tasks.spec import TaskSpec
    from esper.tolaria.engine import EngineConfig


@dataclass(frozen=True)
class Compare:
    """Compare policies and saved controllers on the same fresh hosts, in pairs."""

    policies: Annotated[tuple[str, ...], tyro.conf.Positional]
    """The first is what the others are held against. wait, random, heuristic,
    fixed[:BLUEPRINT[@STEP][:SLOT,SLOT]], static-full[:BLUEPRINT[:SLOT,SLOT]],
    static-final:SLOT=BLUEPRINT,SLOT=BLUEPRINT, static-final:RESULT.json of a run, the folder of a
    saved controller, checkpoint or run, sampled:FOLDER to draw its actions instead of taking the
    likeliest. LABEL=POLICY names it in tables and pictures."""
    task: str = "digits_impaired"
    """What is trained on."""
    seeds: int = 20
    """n: hosts every policy is given, each with initial weights and batches of its own."""
    first_seed: int = EVALUATION_SEEDS[0]
    """Run seed of the first hosts; one of those kept for evaluation."""
    envs: int = 32
    """Hosts that train side by side; the next ones follow under the next run seed."""
    rent: float = 1.0
    """What growth costs in the score, as a multiple of the task's own constants."""
    blueprints: tuple[str, ...] = ()
    """What policies that do not learn may grow; all blueprints of the task where not given.
    Controllers grow what they were trained with."""
    preset: str = ""
    """Settings a controller was trained with where its folder does not say; those named like the
    task, else plain."""
    device: str = "auto"
    """cpu, cuda, cuda:<number>; auto takes a GPU where there is one."""
    profile: Literal["exact", "fast"] = "exact"
    """exact: the same numbers every time; fast may reorder sums and picks the faster executor."""
    executor: Literal["auto", "vmap", "loop"] = "auto"
    """vmap computes all members at once, loop one after the other."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """What members are computed in; auto is bf16 on a GPU that has it."""
    data: Literal["files", "synthetic"] = "files"
    """files: the task's own data; synthetic: made-up data of the same shape."""
    data_dir: Path | None = None
    """Where data sets lie; $ESPER_DATA_DIR or ./data where not given."""
    data_placement: Literal["auto", "device", "stream"] = "auto"
    """Where training data lie: on the device, or on the host and streamed."""
    episode_length: int | None = None
    """Steps of an episode; the task's own where not given."""
    batch_size: int | None = None
    """Samples in a batch of each member; the task's own where not given."""
    batches_per_step: int | None = None
    """Train batches in a step; the task's own where not given."""
    out: Path | None = None
    """Folder for everything; out/compare_TASK where not given. What a run that was cut off left
    there is not computed again."""
    quiet: bool = False
    """Show no progress."""

    def check(self) -> None:
        """Refuse what cannot work before anything is loaded."""
        if not self.policies:
            raise EsperError("no policies: name at least one, for example wait heuristic")
        for name in ("seeds", "envs"):
            if getattr(self, name) < 1:
                raise EsperError(f"--{name} {getattr(self, name)}: must be 1 or more")
        if not 0 <= self.rent < math.inf:
            raise EsperError(f"--rent {self.rent}: must be 0 or more, and finite")
        runs = math.ceil(self.seeds / self.envs)
        require_evaluation_seeds(self.first_seed, runs, "--first-seed")

    def populations(self) -> Iterator[tuple[int, int]]:
        """(run seed, members) of the populations that the hosts of one policy make up."""
        for begin in range(0, self.seeds, self.envs):
            yield self.first_seed + begin // self.envs, min(self.envs, self.seeds - begin)

    def spec(self) -> TaskSpec:
        """The task as every policy plays it: what is changed about it, and its rent."""
        from esper.tasks.registry import get_task_spec
        from esper.tasks.stand_in import with_synthetic_data

        spec = get_task_spec(self.task)
        for blueprint in self.blueprints:
            if blueprint not in spec.blueprints:
                raise unknown_name("blueprint", blueprint, spec.blueprints, "of --blueprints")
        names = ("episode_length", "batch_size", "batches_per_step", "blueprints")
        changes: dict[str, Any] = {
            name: getattr(self, name) for name in names if getattr(self, name) not in (None, ())
        }
        prices = {name: self.rent * getattr(spec.score, name) for name in ("c_p", "c_m", "c_f")}
        spec = replace(spec, **changes, score=replace(spec.score, **prices))
        return with_synthetic_data(spec) if self.data == "synthetic" else spec

    def engine_config(self, seed: int, members: int) -> EngineConfig:
        """How one population runs, in the engine's words."""
        from esper.tolaria.engine import EngineConfig

        return EngineConfig(
            members=members,
            seed=seed,
            device=self.device,
            profile=self.profile,
            executor=self.executor,
            precision=self.precision,
            data_placement=self.data_placement,
        )

    def folder(self, task_name: str) -> Path:
        """Where everything is kept; `task_name`: what the task calls itself."""
        return self.out if self.out is not None else Path("out") / f"compare_{task_name}"
