"""Settings of `esper compare`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import tyro

from esper.jobs.settings import JobSettings
from esper.leyline.compute import ComputeSettings
from esper.leyline.errors import EsperError
from esper.leyline.limits import MAX_MEMBERS, require_counts
from esper.leyline.seeds import EVALUATION_SEEDS, require_evaluation_seeds
from esper.nissa.trackers.names import TrackerName, require_trackers
from esper.simic.agent.config import NO_PREFIX
from esper.simic.training.config import PopulationConfig, TaskConfig

if TYPE_CHECKING:
    from esper.tasks.spec import TaskSpec

HOSTS_PER_CONTEXT: Final = 2
"""Hosts that share a draw of budget and data, by default."""
Populations = list[tuple[int, int]]
"""(run seed, members) of each population."""


def split_hosts(hosts: int, size: int, first_seed: int) -> Populations:
    """Populations of at most `size` hosts, with run seeds from `first_seed` on."""
    starts = range(0, hosts, size)
    return [(first_seed + at, min(size, hosts - begin)) for at, begin in enumerate(starts)]


@dataclass(frozen=True)
class Compare(ComputeSettings):
    """Compare policies and saved controllers on the same fresh hosts."""

    policies: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="POLICY [POLICY ...]")
    ]
    """The first is the reference. wait, wait:FACTOR (trained FACTOR times as long), wait:as:POLICY
    (with the compute of that policy), random, heuristic[:BLUEPRINT,BLUEPRINT], heuristic:TABLE.json
    (plants by a table price -> topology), fixed[:BLUEPRINT[@STEP][:SLOT,SLOT]],
    fixed:SLOT=BLUEPRINT,SLOT=BLUEPRINT[@STEP], static-full[:BLUEPRINT[:SLOT,SLOT]],
    static-final:SLOT=BLUEPRINT,SLOT=BLUEPRINT, static-final:POLICY (per host the final topology of
    that policy), table:TABLE.json (planted by price), restart:STEP,ACCURACY[,TIMES] (the host,
    which begins anew below that accuracy), asha:N (the best of N planted topologies by successive
    halving), best-of:M[,STEP] (the best of M initialisations of the host), the folder of a saved
    controller, checkpoint or run, sampled:FOLDER to sample its actions instead of acting greedily,
    blind:FOLDER to hide its learning curve, untrained:FOLDER as it began (stands beside every
    controller without being named), replay:POLICY (the actions of that policy on another host, open
    loop), FILE.py:NAME (an esper.Policy of your own; the file is run). LABEL=POLICY names it in
    tables and plots."""
    task: Annotated[TaskConfig, NO_PREFIX] = field(default_factory=TaskConfig)
    """The task. Its blueprints apply to policies that do not learn; controllers use those they were
    trained with."""
    seeds: int = 20
    """n: hosts per policy, each with its own initial weights and batches."""
    first_seed: int = EVALUATION_SEEDS[0]
    """Run seed of the first hosts; must be an evaluation seed."""
    envs: int = 32
    """Hosts trained in parallel; further hosts use the next run seed."""
    hosts_per_context: int = HOSTS_PER_CONTEXT
    """Hosts that share a draw of budget and data, where contexts vary them; intervals are over
    draws."""
    preset: str = ""
    """Preset for a controller whose folder has no settings; default: the one named like the task,
    else growing."""
    data_dir: Path | None = None
    """Folder of the data sets; default $ESPER_DATA_DIR, then ./data."""
    out: Path | None = None
    """Output folder; default out/compare_TASK. Results already in it are reused."""
    jobs: Annotated[JobSettings, NO_PREFIX] = field(default_factory=JobSettings)
    """Where hosts are trained; the --envs hosts of a run seed are a job."""
    quiet: bool = False
    """Show no progress."""
    track: tuple[TrackerName, ...] = ()
    """Trackers that get the figures of every policy; their files go to the output folder."""

    def check(self) -> None:
        """Check the settings before anything is loaded."""
        if not self.policies:
            raise EsperError("no policies: name at least one, for example wait heuristic")
        require_counts(seeds=self.seeds)
        self.jobs.check()
        require_trackers(self.track, "--track")
        require_counts(MAX_MEMBERS, envs=self.envs, hosts_per_context=self.hosts_per_context)
        runs = math.ceil(self.seeds / self.envs)
        require_evaluation_seeds(self.first_seed, runs, "--first-seed")

    def population_size(self, spec: TaskSpec) -> int:
        """Hosts of a run seed; few where they share a draw of budget and data."""
        shared = self.hosts_per_context if spec.context.varies_rounds else self.envs
        return min(self.envs, self.seeds, shared)

    def populations(self, spec: TaskSpec) -> Populations:
        """Populations of a policy's hosts."""
        found = split_hosts(self.seeds, self.population_size(spec), self.first_seed)
        require_evaluation_seeds(self.first_seed, len(found), "--first-seed")
        return found

    @property
    def population(self) -> PopulationConfig:
        """Compute settings of every population."""
        return PopulationConfig(envs=self.envs, **self.compute())

    def folder(self, task_name: str) -> Path:
        """The output folder."""
        return self.out if self.out is not None else Path("out") / f"compare_{task_name}"
