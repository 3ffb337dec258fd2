"""Settings of `esper sweep`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final, Literal

import tyro

from esper.jobs.settings import JobSettings
from esper.leyline.errors import EsperError, shorten
from esper.leyline.limits import MAX_MEMBERS, require_counts
from esper.leyline.seeds import EVALUATION_SEEDS, require_training_seed
from esper.scripts.cli.command import read_command_line
from esper.scripts.cli.flags import flag_value, int_flag_value
from esper.scripts.cli.trust import require_trust
from esper.scripts.train.config import with_absolute_path
from esper.scripts.train.learner_config import TrainPPO
from esper.simic.agent.config import NO_PREFIX
from esper.simic.training.config import TrainingConfig
from esper.simic.training.config_files import resolve
from esper_lab.sweep.space import Space, Value, flags_of, read_space

TUNING_SEED: Final = EVALUATION_SEEDS.stop
"""Run seed of the hosts that trials are scored on. Settings are chosen on them, so they are not
those that policies are compared on."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Search settings of `esper train ppo`: train a controller per trial, score it on other hosts.

    The flags of training apply to every trial; the defaults shown include the preset and the file
    on this command line.
    """

    settings: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[SETTING=RANGE ...]")
    ] = ()
    """Flags of esper train ppo without --, and where to search: learning-rate=1e-4..3e-3:log,
    gamma=0.9..0.999, epochs=2..8 (whole numbers), width=32,64 (choices)."""
    space: Path | None = None
    """TOML or JSON file of settings: gamma = "0.9..0.999", width = [32, 64]."""
    preset: str = ""
    """Preset of all trials; default: the one named like the task, else growing."""
    config: Path | None = None
    """TOML or JSON settings file of all trials, such as a run's config.json."""
    trust: bool = False
    """Run the task file that --config names."""
    trials: int = 20
    """Trials to end with, pruned ones included; a finished sweep may be continued with more."""
    repeats: int = 1
    """Controllers per trial, each with a training seed of its own."""
    evaluation_envs: int = 20
    """Hosts that each controller is scored on; the same for all trials."""
    sampler: Literal["tpe", "random", "qmc"] = "tpe"
    """Optuna's sampler."""
    pruner: Literal["median", "hyperband", "none"] = "median"
    """Optuna's pruner; it sees the mean score of every round."""
    training: Annotated[TrainingConfig, NO_PREFIX] = field(default_factory=TrainingConfig)
    """Training settings of all trials."""
    jobs: Annotated[JobSettings, NO_PREFIX] = field(default_factory=JobSettings)
    """Where trials run; each is a job."""
    data_dir: Path | None = None
    """Folder of the data sets; default $ESPER_DATA_DIR, then ./data."""
    out: Path | None = None
    """Output folder; default out/sweep_TASK. The same command continues the sweep in it."""
    quiet: bool = False
    """Show no progress."""

    def check(self) -> Space:
        """Check the settings before anything is loaded; returns what is searched."""
        require_counts(trials=self.trials, repeats=self.repeats)
        require_counts(MAX_MEMBERS, evaluation_envs=self.evaluation_envs)
        self.jobs.check()
        last = self.training.seed + self.repeats - 1
        require_training_seed(last, f"--seed {self.training.seed} --repeats {self.repeats}: seed")
        if self.training.seed <= TUNING_SEED <= last:
            raise EsperError(f"--seed: trials are scored on hosts of seed {TUNING_SEED}")
        space = read_space(self.settings, self.space)
        for name, axis in space.items():
            for value in axis.ends:
                self.trial_training({name: value}).check()
        return space

    def trial_training(self, values: Mapping[str, Value]) -> TrainingConfig:
        """Training settings of a trial with its first seed; raises on a value that is refused."""
        flags = flags_of(values)
        try:
            base = TrainPPO(training=self.training)
            return read_command_line(TrainPPO, flags, default=base).training
        except EsperError as error:
            raise EsperError(f"setting {shorten(' '.join(flags))}: {error}") from None

    def folder(self, task: str) -> Path:
        """The output folder."""
        return self.out if self.out is not None else Path("out") / f"sweep_{task}"


def read_sweep(argv: Sequence[str]) -> Sweep:
    """Parse the command line: the task first, then settings and flags."""
    if not argv or argv[0] in ("-h", "--help"):
        if not argv:
            raise EsperError("name a task: esper sweep TASK SETTING=RANGE; --help lists the flags")
        return read_command_line(Sweep, argv, prog="esper sweep TASK")
    task, *rest = argv
    if task.startswith("-") or "=" in task:
        raise EsperError(f"{shorten(task)}: name the task first, as in esper sweep digits_impaired")
    if flag_value(rest, "--task") is not None:
        raise EsperError(f"--task: the task is {shorten(task)}, the first argument")
    named, file = flag_value(rest, "--preset") or "", flag_value(rest, "--config")
    path = Path(file) if file else None
    base = Sweep(training=resolve(named, path, int_flag_value(rest, "--rounds"), task))
    argv = [*rest, "--task", task]
    config = read_command_line(Sweep, argv, default=base, prog="esper sweep TASK")
    require_trust(config.training.task.name, argv, path, config.trust)
    require_trust(config.training.reward.own, argv, path, config.trust, "reward")
    found = with_absolute_path(config.training.task, None)
    return replace(config, training=replace(config.training, task=found))
