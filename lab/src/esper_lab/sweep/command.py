"""The `esper sweep` command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial

from esper.scripts.cli.command import exit_status_of


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the command."""
    return exit_status_of(lambda: sweep(sys.argv[1:] if argv is None else argv))


def sweep(argv: Sequence[str]) -> None:
    """Parse, check, search, report. Imports are local, so that --help is fast."""
    from esper_lab.sweep.config import read_sweep

    config = read_sweep(argv)
    space = config.check()
    from esper.jobs.run import run_jobs
    from esper.karn.resuming import command_line, resumable
    from esper.karn.terminal import console_for_report
    from esper.storage.folder_lock import FolderLock
    from esper_lab.progress.sweep import SweepProgress
    from esper_lab.sweep.report import report
    from esper_lab.sweep.study import StudyJobs, finished, open_study
    from esper_lab.sweep.trials import TrialWorker

    folder = config.folder(config.training.task.spec().name)
    folder.mkdir(parents=True, exist_ok=True)
    lock = FolderLock(folder)
    try:
        study = open_study(config, space, folder)
        left = config.trials - len(finished(study))
        rounds = max(0, left) * config.training.rounds * config.repeats
        shown = SweepProgress(rounds, console_for_report())
        jobs = StudyJobs(config, space, study, None if config.quiet else shown)
        make = partial(TrialWorker, config.repeats, config.evaluation_envs, config.data_dir)

        def progress() -> str:
            return f"{len(finished(study))} of {config.trials} trials done, saved in {folder}"

        with (
            resumable(command_line("sweep", argv), progress),
            nullcontext() if config.quiet else shown,
        ):
            if jobs.most:
                places = config.jobs.on_device(config.training.population.device)
                run_jobs(make, jobs, places, say=None if config.quiet else shown.say)
        report(config, space, study, folder)
    finally:
        lock.release()
