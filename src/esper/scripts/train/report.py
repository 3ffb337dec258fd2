"""Report of `esper train` with a policy that does not learn."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Final

from esper.scripts.cli.report_files import write_before_printing
from esper.scripts.cli.run_report import RunReport, print_report, report_files, settings_json
from esper.scripts.train.config import Train
from esper.storage.atomic import printable
from esper.tamiyo.grammar import ParsedPolicy
from esper.tolaria.round_results import RunResult

LONGEST_NAME: Final = 80
"""Maximum characters of a policy in a file name."""


def report_paths(config: Train, task: str) -> tuple[Path, Path]:
    """Paths of the plot and the numbers."""
    stem = f"train_{file_name_of(config.parsed)}_{task}"
    return config.out / f"{stem}.png", config.out / f"{stem}.json"


def file_name_of(policy: ParsedPolicy) -> str:
    """The policy as part of a file name, without special characters.

    >>> file_name_of(ParsedPolicy("mine", "fixed:norm@3:r0c0,r0c1", "fixed"))
    'fixed-norm-3-r0c0-r0c1'
    """
    text = printable(policy.text)
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-")
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[:LONGEST_NAME]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def report_train(config: Train, result: RunResult) -> None:
    """Write and print the report."""
    picture, numbers = report_paths(config, result.task)
    report = RunReport(
        policy=config.parsed.label,
        episodes=config.population.envs * config.rounds,
        picture=picture,
        numbers=numbers,
        settings=settings_json(config),
    )
    with write_before_printing(*report_files(report, result)):
        print_report(report, result)
