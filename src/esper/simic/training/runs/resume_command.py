"""The command that resumes a run, to be pasted into a shell."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from esper.storage.sessions import resume_training
from esper.tasks.task_files import is_file_reference

LEARNER: Final = "ppo"
"""The policy that learns, as commands name it."""


def resume_command(
    folder: Path, task: str, policy: str = LEARNER, rounds: int = 0, ranks: int = 1
) -> str:
    """Command for the run in `folder`; `task`: as its settings name it.

    `ranks`: processes that train together on this machine.

    >>> resume_command(Path("runs/a"), "mine.py:task", "wait")
    'esper train wait --resume runs/a --trust'
    """
    return resume_training(folder, policy, rounds, is_file_reference(task), ranks)
