"""An interrupted command prints a command that continues when it is pasted."""

from __future__ import annotations

import shlex

import pytest

from esper.compare import policy_jobs
from esper.karn.resuming import resumable
from esper.karn.views import RunState, run_summary
from esper.scripts.compare import main as compare

TINY = ("--task", "synthetic", "--episode-length", "2", "--batches-per-step", "1",
        "--batch-size", "8", "--device", "cpu", "--seeds", "2", "--quiet")  # fmt: skip


def pasted(errors: str) -> list[str]:
    """Words of the command that was printed."""
    (line,) = [line for line in errors.splitlines() if "resume with: " in line]
    return shlex.split(line.partition("resume with: ")[2])


def test_a_pasted_command_finishes_a_comparison(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "it's here; now"
    real = policy_jobs.run_population

    def cut(config, entry, *rest):
        if entry.label == "random":
            raise KeyboardInterrupt
        return real(config, entry, *rest)

    monkeypatch.setattr(policy_jobs, "run_population", cut)
    assert compare(["wait", "random", *TINY, "--out", str(folder)]) == 130
    errors = capsys.readouterr().err
    assert f"1 of 2 policies done, saved in {folder}; resume with: esper compare" in errors
    found = run_summary(folder)
    assert (found.state, found.done, found.total) == (RunState.INTERRUPTED, 1, 2)
    assert shlex.split(found.resume) == pasted(errors)
    monkeypatch.setattr(policy_jobs, "run_population", real)
    program, verb, *argv = pasted(errors)
    assert (program, verb) == ("esper", "compare")
    assert compare(argv) == 0
    found = run_summary(folder)
    assert (found.state, found.done, found.total) == (RunState.FINISHED, 2, 2)


def test_in_python_the_same_call_resumes(capsys):
    with pytest.raises(KeyboardInterrupt), resumable("", lambda: "1 of 2 done"):
        raise KeyboardInterrupt
    assert capsys.readouterr().err == "1 of 2 done; the same call resumes\n"
