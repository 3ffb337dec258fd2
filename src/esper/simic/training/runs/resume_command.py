"""The command that resumes a run, to be pasted into a shell."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final

from esper.tasks.task_files import is_file_reference

LEARNER: Final = "ppo"
"""The policy that learns, as commands name it."""


def resume_command(
    folder: Path, task: str, policy: str = LEARNER, rounds: int = 0, ranks: int = 1
) -> str:
    """Command for the run in `folder`, a path that works where the user stands.

    `task`: as its settings name it; the code of a task file is run only with --trust. `ranks`:
    processes that train together on this machine.

    >>> resume_command(Path("my runs/a"), "digits_impaired", rounds=10)
    "esper train ppo --resume 'my runs/a' --rounds 10"
    """
    words = ["esper", "train"]
    if ranks > 1:
        job = ["torchrun", "--standalone", "--nproc-per-node", str(ranks)]
        words = [*job, "-m", "esper.scripts.train"]
    words += [policy, "--resume", str(folder)]
    words += ["--rounds", str(rounds)] if rounds else []
    words += ["--trust"] if is_file_reference(task) else []
    return shlex.join(words)
