"""Task specification: where its data come from, host, training settings and score constants.

A spec holds settings and callables; creating one loads neither data nor torch.

Shape letters: N samples, C channels, H height, W width, L length, F features, T tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from esper.leyline.context import FIXED, ContextSpec
from esper.leyline.errors import EsperError, unknown_name
from esper.leyline.optim import OptimConfig, Schedule, schedule_share
from esper.leyline.prices import ScoreConstants
from esper.leyline.slots import TOPOLOGIES, Topology, parse_slot_id
from esper.leyline.user_errors import user_code
from esper.tasks.data_locations import locate_data
from esper.tasks.scoring import Upkeep
from esper.tasks.task_data import PARTS, DataFiles, TaskData

if TYPE_CHECKING:
    import torch
    from torch import nn

    from esper.kasmina.population import Population, PopulationConfig
    from esper.leyline.compute import ExecutorName
    from esper.tasks.objectives import Objective

Augmentation = Literal["none", "flip", "crop_flip"]


@dataclass(frozen=True, slots=True)
class OptimSettings(OptimConfig):
    """Optimiser settings of a task's members: update rule, learning rates and their schedule."""

    host_lr: float = 0.05
    """Initial learning rate of hosts and permanent seeds."""
    seed_lr: float = 0.05
    """Initial learning rate of seeds until they are permanent."""
    schedule: Schedule = "constant"
    """Constant rates, or cosine annealing to 0 over the episode."""

    def __post_init__(self) -> None:
        OptimConfig.__post_init__(self)  # super() does not work in a dataclass with slots
        if self.schedule not in get_args(Schedule):
            raise unknown_name("schedule", self.schedule, get_args(Schedule))
        for name in ("host_lr", "seed_lr"):
            if not 0 < getattr(self, name) < math.inf:
                raise EsperError(f"{name}={getattr(self, name)}: must be above 0, and finite")

    def rates_at(self, step: int, episode_length: int) -> tuple[float, float]:
        """Return the (host, seed) learning rates of a step, counted from 0.

        >>> OptimSettings(host_lr=0.5, seed_lr=0.25, schedule="cosine").rates_at(5, 10)
        (0.25, 0.125)
        """
        share = schedule_share(self.schedule, step, episode_length)
        return self.host_lr * share, self.seed_lr * share

    def population_config(self, executor: ExecutorName = "auto") -> PopulationConfig:
        """Convert to kasmina's `PopulationConfig`."""
        from esper.kasmina import PopulationConfig

        rule = {field.name: getattr(self, field.name) for field in fields(OptimConfig)}
        return PopulationConfig(
            executor=executor,
            host_lr=self.host_lr,
            seed_lr=self.seed_lr,
            optim=OptimConfig(**rule),
        )


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """Complete description of a task."""

    name: str
    """Name on the command line."""
    description: str
    """One-line description."""
    load_data: Callable[[], TaskData] | DataFiles
    """Creates the data, or describes the files that hold them; called once per run by `load`."""
    host_factory: Callable[[], nn.Module]
    """Builds one host; imports torch when called."""
    topology: Topology
    """Kind of host; decides which blueprints fit."""
    slots: tuple[str, ...]
    """Enabled slots."""
    blueprints: tuple[str, ...]
    """Available blueprints."""
    num_classes: int
    """Outputs of the host; for language models the vocabulary."""
    input_shape: tuple[int, ...]
    """Shape of one sample."""
    batch_size: int
    """Samples per batch and member."""
    batches_per_step: int
    """Training batches between two decisions."""
    episode_length: int
    """T: steps per episode."""
    chance: float
    """Accuracy (0..1) of guessing; 0 for language models, by definition of their accuracy."""
    optim: OptimSettings = field(default_factory=OptimSettings)
    """Optimiser settings."""
    augmentation: Augmentation = "none"
    """Augmentation of training images: none, random mirroring, or random shift and mirroring."""
    score: ScoreConstants = field(default_factory=ScoreConstants)
    """Price of growth in the score."""
    rent: float = 1.0
    """Factor on the task's own price that `score` already has."""
    upkeep: Upkeep = field(default_factory=Upkeep)
    """Price of live seeds in the reward."""
    context: ContextSpec = FIXED
    """Distribution of prices, caps, budgets and data; the action space and the clock."""
    loss: str | Callable[..., Any] | None = None
    """Own loss: a name of `objectives.LOSSES`, "auto", or a function of (outputs, targets) of one
    network; None: cross-entropy. Outputs are then `num_classes` numbers."""

    def __post_init__(self) -> None:
        self._check_callables()
        self._convert_tuples()
        for name in ("num_classes", "batch_size", "batches_per_step", "episode_length"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise EsperError(f"task {self.name}: {name}={value!r}, must be 1 or more")
        if self.topology not in TOPOLOGIES:
            raise unknown_name("topology", self.topology, TOPOLOGIES, f"in task {self.name}")
        if self.augmentation not in get_args(Augmentation):
            raise unknown_name("augmentation", self.augmentation, get_args(Augmentation))
        if self.augmentation != "none" and len(self.input_shape) != 3:
            raise EsperError(
                f"task {self.name}: augmentation {self.augmentation} is for images, samples are "
                f"{self.input_shape}"
            )
        if not self.slots or not self.blueprints:
            raise EsperError(f"task {self.name}: name at least one slot and one blueprint")
        for slot in self.slots:
            parse_slot_id(slot)
        if not 0 <= self.chance < 1:
            raise EsperError(f"task {self.name}: chance={self.chance}, must be from 0 to below 1")

    def _convert_tuples(self) -> None:
        """Convert lists to tuples; a single string raises."""
        for name in ("slots", "blueprints", "input_shape"):
            given = getattr(self, name)
            if isinstance(given, str) or not isinstance(given, Iterable):
                raise EsperError(f"task {self.name}: {name}={given!r}, give a tuple: ({given!r},)")
            object.__setattr__(self, name, tuple(given))

    def _check_callables(self) -> None:
        """Raise unless data and host are given as functions: they are created when a run starts."""
        for name, made in (("load_data", "data"), ("host_factory", "host")):
            value = getattr(self, name)
            built = hasattr(value, "named_parameters") and not isinstance(value, type)
            if built or not (callable(value) or isinstance(value, DataFiles)):
                raise EsperError(
                    f"task {self.name}: {name} is a {type(value).__name__}, already made; give a "
                    f"function that makes the {made}, as in lambda: {type(value).__name__}(...)"
                )

    @property
    def episode_samples(self) -> int:
        """Training samples per member and episode."""
        return self.batch_size * self.batches_per_step * self.episode_length

    def lengthened(self, factor: float) -> TaskSpec:
        """The same task with episodes `factor` times as long, to whole steps."""
        if factor == 1.0:
            return self
        return replace(self, episode_length=max(1, round(factor * self.episode_length)))

    def load(self, data_dir: Path | None = None) -> TaskData:
        """Load the data and check them against this spec; `data_dir`: see `data_locations`."""
        source = self.load_data
        if isinstance(source, DataFiles):
            data = source.read(locate_data(source.dataset, data_dir))
        else:
            with user_code(f"task {self.name}: load_data fails"):
                data = source()
            if not isinstance(data, TaskData):
                raise EsperError(
                    f"task {self.name}: load_data returns a {type(data).__name__}, not a TaskData"
                )
        data.check(self.name, self.num_classes, self.input_shape, self.batch_size)
        return data

    def objective(self, data: TaskData) -> Objective | None:
        """Return the task's own loss and metric for its data; None: cross-entropy."""
        if self.loss is None:
            if data.own_targets:
                raise EsperError(
                    f"task {self.name}: its data are OwnTargetData; give the task a loss that "
                    f"takes their targets, as in loss='mse'"
                )
            return None
        import torch

        from esper.tasks.objectives import make_objective

        targets = torch.from_numpy(data.train.labels)
        shape = self.output_shape(tuple(targets.shape[1:]))
        try:
            objective = make_objective(self.loss, targets=targets, output_shape=shape)
            for name in PARTS[1:]:
                objective.check_targets(torch.from_numpy(getattr(data, name).labels), name)
        except EsperError as error:
            raise EsperError(f"task {self.name}: {error}") from error
        return objective

    def population(
        self,
        members: int,
        seed: int = 0,
        device: str | torch.device = "cpu",
        executor: ExecutorName = "auto",
    ) -> Population:
        """Return a fresh population with this task's host, slots, blueprints and optimiser."""
        from esper.kasmina import Population

        config = self.optim.population_config(executor)
        population = Population(
            self.host_factory, self.slots, self.blueprints, members, seed, device, config
        )
        network = population.network
        if network.topology != self.topology:
            raise EsperError(
                f"task {self.name}: topology {self.topology!r}, its host declares "
                f"{network.topology!r}; give both the same"
            )
        if not network.host.parameters_per_member:
            raise EsperError(
                f"task {self.name}: no parameter of its host trains, and growth is priced against "
                f"those; leave requires_grad on for some"
            )
        return population

    def check_outputs(self, shape: tuple[int, ...], places: tuple[int, ...]) -> None:
        """Raise unless the output shape of one sample is `places` plus the number of classes."""
        wanted = self.output_shape(places)
        if shape != wanted:
            raise EsperError(
                f"task {self.name}: the host gives outputs {shape} for a sample, "
                f"num_classes={self.num_classes} means {wanted}; change its head or num_classes"
            )

    def output_shape(self, places: tuple[int, ...]) -> tuple[int, ...]:
        """Return the outputs of a sample for targets of shape `places`.

        Losses that pair outputs with targets have `num_classes` outputs, those of classes have as
        many at every place.
        """
        paired = self.loss in ("binary", "multilabel", "mse", "mae", "huber")
        if self.loss not in (None, "cross_entropy", "language"):
            paired = paired or places == (self.num_classes,)
        return (self.num_classes,) if paired else (*places, self.num_classes)
