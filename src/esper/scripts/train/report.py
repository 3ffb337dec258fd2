"""The report of a run under a policy that does not learn, and where it goes."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Final

from esper.scripts.cli.report_files import written_first
from esper.scripts.cli.run_report import Shown, files_of, settings_of, show
from esper.scripts.train.config import Train
from esper.storage.atomic import printable
from esper.tamiyo.grammar import ParsedPolicy
from esper.tolaria.round_results import RunResult

LONGEST_NAME: Final = 80
"""Characters of a policy's word in the name of a file."""


def place_of_report(config: Train, task: str) -> tuple[Path, Path]:
    """Where a run under a policy that does not learn puts its picture and its numbers."""
    stem = f"train_{file_name_of(config.parsed)}_{task}"
    return config.out / f"{stem}.png", config.out / f"{stem}.json"


def file_name_of(policy: ParsedPolicy) -> str:
    """A policy as part of a file's name: its word, without what a path or a shell would mind.

    >>> file_name_of(ParsedPolicy("mine", "fixed:norm@3:r0c0,r0c1", "fixed"))
    'fixed-norm-3-r0c0-r0c1'
    """
    text = printable(policy.text)
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-")
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[:LONGEST_NAME]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def report_train(config: Train, result: RunResult) -> None:
    """The report of a run under a policy that does not learn."""
    picture, numbers = place_of_report(config, result.task)
    shown = Shown(
        policy=config.parsed.label,
        episodes=config.population.envs * config.rounds,
        picture=picture,
        numbers=numbers,
        settings=settings_of(config),
    )
    with written_first(*files_of(shown, result)):
        show(shown, result)
