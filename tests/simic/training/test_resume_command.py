"""The command that resumes a run can be pasted into a shell."""

from __future__ import annotations

import shlex
from pathlib import Path

from esper.simic.training.runs.resume_command import resume_command


def test_paths_and_policies_are_quoted():
    folder, policy = Path("my runs/it's; one"), "fixed:r0c0=norm,r0c1=norm@3"
    argv = shlex.split(resume_command(folder, "digits_impaired", policy, rounds=8))
    assert argv == ["esper", "train", policy, "--resume", str(folder), "--rounds", "8"]


def test_the_code_of_a_task_file_is_run_again():
    command = resume_command(Path("runs/a"), "/home/me/mine.py:task")
    assert command == "esper train ppo --resume runs/a --trust"
