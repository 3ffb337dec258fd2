"""The settings of `train ppo`: those of the learner, and what is kept of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from esper.scripts.door import read_command_line
from esper.scripts.flags import peek, peek_count, require_counts
from esper.scripts.train_config import Recording
from esper.simic.agent.config import NO_PREFIX
from esper.simic.training.config import TrainingConfig
from esper.simic.training.config_files import resolve

if TYPE_CHECKING:
    from esper.tasks.spec import TaskSpec


@dataclass(frozen=True, slots=True)
class TrainPPO:
    """Train a controller with PPO, then judge it on hosts it has not seen.

    Settings come from the defaults, then --preset, then --config, then the flags below; the
    defaults shown are those of the preset and the file that stand on this command line.
    """

    preset: str = ""
    """Settings by name: plain, digits_impaired, cifar_baseline; without it the one called like the
    task, or plain."""
    config: Path | None = None
    """TOML or JSON file with settings, such as a run's config.json."""
    training: Annotated[TrainingConfig, NO_PREFIX] = field(default_factory=TrainingConfig)
    """How it learns."""
    evaluation_envs: int = 16
    """Fresh members the result is judged on, beside wait, random and heuristic."""
    data_dir: Path | None = None
    """Where data sets lie; $ESPER_DATA_DIR or ./data where not given."""
    recording: Annotated[Recording, NO_PREFIX] = field(default_factory=Recording)
    """What is shown and kept of it."""
    out: Path = field(default_factory=lambda: Path("out"))
    """Folder for pictures, numbers and the agent."""
    dry_run: bool = False
    """Show the plan, with the time a few real steps take; train nothing, write nothing."""

    def check(self) -> TaskSpec:
        """Refuse what cannot work before anything is loaded; the task."""
        require_counts(evaluation_envs=self.evaluation_envs)
        return self.training.check()


def read_train_ppo(argv: Sequence[str]) -> TrainPPO:
    """The settings a command line describes: `--preset` and `--config` are read first."""
    file = peek(argv, "--config")
    training = resolve(
        peek(argv, "--preset") or "",
        Path(file) if file else None,
        peek_count(argv, "--rounds"),
        peek(argv, "--task"),
    )
    return read_command_line(
        TrainPPO, argv, default=TrainPPO(training=training), prog="esper train ppo"
    )
