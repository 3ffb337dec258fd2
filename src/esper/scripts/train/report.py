"""Report of `esper train` with a policy that does not learn."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Final

from esper.karn.display import say
from esper.karn.terminal import console_for_report
from esper.scripts.cli.report_files import write_before_printing
from esper.scripts.cli.run_report import RunReport, print_report, report_file, settings_json
from esper.scripts.train.config import Train
from esper.scripts.train.run import Trained
from esper.simic.training.runs.folder import members_dir, report_dir
from esper.storage.atomic import printable
from esper.tamiyo.grammar import ParsedPolicy

MAX_NAME_CHARS: Final = 80
"""Maximum characters of a policy in a file name."""


def report_path(config: Train, task: str, folder: Path | None = None) -> Path:
    """Path of the numbers; `folder`: report folder of the run, without --out."""
    if config.out is None and folder is not None:
        return folder / "train.json"
    return (config.out or Path()) / f"train_{_file_name_of(config.parsed)}_{task}.json"


def _file_name_of(policy: ParsedPolicy) -> str:
    """The policy as part of a file name, without special characters.

    >>> _file_name_of(ParsedPolicy("mine", "fixed:norm@3:r0c0,r0c1", "fixed"))
    'fixed-norm-3-r0c0-r0c1'
    """
    text = printable(policy.text)
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-")
    if len(name) <= MAX_NAME_CHARS:
        return name
    return f"{name[:MAX_NAME_CHARS]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def run_name_of(policy: ParsedPolicy) -> str:
    """The policy as a run name."""
    name = _file_name_of(policy)
    if len(name) <= MAX_NAME_CHARS:
        return name
    tail = name[-9:]  # the checksum
    return name[: MAX_NAME_CHARS - len(tail)] + tail


def report_train(config: Train, trained: Trained) -> None:
    """Write and print the report."""
    result = trained.result
    report = RunReport(
        policy=config.parsed.label,
        episodes=config.population.envs * config.rounds,
        numbers=report_path(config, result.task, report_dir(trained.folder.path)),
        settings=settings_json(config),
    )
    with write_before_printing(report_file(report, result)):
        print_report(report, result)
        console = console_for_report()
        for line in _kept(trained):
            say(console, line)


def _kept(trained: Trained) -> list[str]:
    """Lines on the kept members and the folder."""
    lines, folder = [], trained.folder
    if trained.members:
        best = trained.members[0]
        grown = ", ".join(best.topology) or "the host"
        lines = [
            f"best member: score {best.score:.4f}, {best.parameters:,} parameters, {grown} "
            f"({members_dir(folder.path) / best.name})"
        ]
    return [*lines, f"run folder: {folder.path}"]
