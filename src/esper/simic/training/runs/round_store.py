"""Results of finished rounds on disk, for runs of policies that do not learn.

    rounds/round-000002.json    the second round: summary, task facts, result; carries a checksum

Rounds of such a policy are independent: their index decides all random draws. A run therefore
resumes after its last stored round. Files are written atomically. Does not import torch.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from esper.leyline.codec import Json, read_record, to_json
from esper.leyline.errors import EsperError
from esper.simic.training.runs.checkpoint_store import Summary
from esper.storage.atomic import write_advice, write_atomic
from esper.storage.run_files import ROUNDS as ROUNDS
from esper.storage.sealed_json import read_document, seal

_NAME: Final = re.compile(r"round-(\d{6,})\.json")


@dataclass(frozen=True, slots=True)
class _StoredRound:
    """One round, read from disk."""

    path: Path
    summary: Summary
    task: Json
    """Task facts."""
    result: Json
    """Everything measured."""


class RoundStore:
    """The finished rounds of one run."""

    def __init__(self, run: Path) -> None:
        """`run`: the run folder; `rounds` in it is created on the first write."""
        self.path = run / ROUNDS

    def path_of(self, number: int) -> Path:
        """Path of a round, counted from 1."""
        return self.path / f"round-{number:06d}.json"

    def numbers(self) -> list[int]:
        """Stored rounds, counted from 1, in order; not verified."""
        if not self.path.is_dir():
            return []
        found = (_NAME.fullmatch(name) for name in os.listdir(self.path))
        return sorted(int(match[1]) for match in found if match)

    def write(self, summary: Summary, task: Json, result: object) -> None:
        """Store the round `summary.round`."""
        content = seal({"summary": to_json(summary), "task": task, "result": to_json(result)})
        try:
            self.path.mkdir(exist_ok=True)
            write_atomic(self.path_of(summary.round), (json.dumps(content) + "\n").encode())
        except OSError as error:
            raise EsperError(
                f"cannot write to {self.path}: {error.strerror or error}; {write_advice(error)}"
            ) from error

    def read(self, number: int) -> _StoredRound:
        """Read and verify a round."""
        path = self.path_of(number)
        content = read_document(path)
        if not isinstance(content, dict):
            raise EsperError(f"{path} is damaged: expected an object")
        summary = read_record(Summary, content.get("summary"), f"{path} summary")
        return _StoredRound(path, summary, content.get("task"), content.get("result"))

    def read_all(self) -> tuple[list[_StoredRound], str]:
        """All rounds up to the first missing or damaged one, and the error of that one."""
        found: list[_StoredRound] = []
        for number in range(1, max(self.numbers(), default=0) + 1):
            try:
                found.append(self.read(number))
            except EsperError as error:
                return found, str(error)
        return found, ""
