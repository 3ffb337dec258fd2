"""The settings of `compare`: which policies, on which hosts, and where the results are kept."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from esper.leyline.compute import ComputeSettings
from esper.leyline.errors import EsperError
from esper.leyline.limits import MAX_MEMBERS
from esper.leyline.seeds import EVALUATION_SEEDS, require_evaluation_seeds
from esper.scripts.cli.flags import require_counts
from esper.simic.agent.config import NO_PREFIX
from esper.simic.training.config import PopulationConfig, TaskConfig


@dataclass(frozen=True)
class Compare(ComputeSettings):
    """Compare policies and saved controllers on the same fresh hosts, in pairs."""

    policies: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="POLICY [POLICY ...]")
    ]
    """The first is what the others are held against. wait, wait:FACTOR (trained so many times as
    long), random, heuristic[:BLUEPRINT,BLUEPRINT], fixed[:BLUEPRINT[@STEP][:SLOT,SLOT]],
    fixed:SLOT=BLUEPRINT,SLOT=BLUEPRINT[@STEP], static-full[:BLUEPRINT[:SLOT,SLOT]],
    static-final:SLOT=BLUEPRINT,SLOT=BLUEPRINT, static-final:RESULT.json of a run,
    static-final:POLICY (host by host what that policy ended with), the folder of a saved
    controller, checkpoint or run, sampled:FOLDER to draw its actions instead of taking the
    likeliest. LABEL=POLICY names it in tables and pictures."""
    task: Annotated[TaskConfig, NO_PREFIX] = field(default_factory=TaskConfig)
    """What every policy plays. Its blueprints are for policies that do not learn: controllers grow
    what they were trained with."""
    seeds: int = 20
    """n: hosts every policy is given, each with initial weights and batches of its own."""
    first_seed: int = EVALUATION_SEEDS[0]
    """Run seed of the first hosts; one of those kept for evaluation."""
    envs: int = 32
    """Hosts that train side by side; the next ones follow under the next run seed."""
    preset: str = ""
    """Settings a controller was trained with where its folder does not say; those named like the
    task, else plain."""
    data_dir: Path | None = None
    """Where data sets lie; $ESPER_DATA_DIR or ./data where not given."""
    out: Path | None = None
    """Folder for everything; out/compare_TASK where not given. What a run that was cut off left
    there is not computed again."""
    quiet: bool = False
    """Show no progress."""

    def check(self) -> None:
        """Refuse what cannot work before anything is loaded."""
        if not self.policies:
            raise EsperError("no policies: name at least one, for example wait heuristic")
        require_counts(seeds=self.seeds)
        require_counts(MAX_MEMBERS, envs=self.envs)
        runs = math.ceil(self.seeds / self.envs)
        require_evaluation_seeds(self.first_seed, runs, "--first-seed")

    def populations(self) -> Iterator[tuple[int, int]]:
        """(run seed, members) of the populations that the hosts of one policy make up."""
        for begin in range(0, self.seeds, self.envs):
            yield self.first_seed + begin // self.envs, min(self.envs, self.seeds - begin)

    @property
    def population(self) -> PopulationConfig:
        """How every population is computed; what its policy may choose from is the policy's."""
        return PopulationConfig(envs=self.envs, **self.compute())

    def folder(self, task_name: str) -> Path:
        """Where everything is kept; `task_name`: what the task calls itself."""
        return self.out if self.out is not None else Path("out") / f"compare_{task_name}"
