"""Shared fuzzing helpers: seeds, commands in processes, failure reports."""

from __future__ import annotations

import os
import shlex
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from run_server import Job, RunServer

C = TypeVar("C")
R = TypeVar("R")

CHOSEN: Final = "ESPER_FUZZ_SEEDS"
"""Environment variable: the seeds to take instead, `17`, `3,17` or `1000:2000`."""
COMMAND_DRIVER: Final = Path(__file__).parent / "command_driver.py"
SECONDS: Final = 90
"""A command that takes longer hangs; on an idle machine the longest take 5."""
MEMORY: Final = 2**31
"""Bytes a command may take beyond what is imported, so that a huge setting ends as an error."""
MAX_LINE: Final = 400
"""Characters of an error."""
AT_ONCE: Final = 2
"""Commands that run side by side."""


def seeds(first: int, count: int) -> list[int]:
    """Those of a test, or those that were chosen by hand."""
    chosen = os.environ.get(CHOSEN)
    if not chosen:
        return list(range(first, first + count))
    found: list[int] = []
    for part in chosen.split(","):
        begin, _, end = part.partition(":")
        found += range(int(begin), int(end) if end else int(begin) + 1)
    return found


# ---- commands -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended."""

    status: int
    """Minus the signal where one killed it."""
    output: str
    errors: str

    @property
    def error_lines(self) -> list[str]:
        return self.errors.splitlines()


class Commands:
    """Runs `esper` commands in processes forked from one that has imported everything."""

    def __init__(self, server: RunServer) -> None:
        self.server = server

    def start(self, argv: Sequence[str], folder: Path, seconds: int = SECONDS) -> Job:
        output, errors = self.server.place()
        pid = self.server.ask(
            argv=list(argv), output=str(output), errors=str(errors), folder=str(folder),
            seconds=seconds, memory=MEMORY,
        )  # fmt: skip
        return Job(self.server, pid, output, errors)

    def run(self, argv: Sequence[str], folder: Path, **settings: bool | int) -> Outcome:
        return outcome_of(self.start(argv, folder, **settings))


def outcome_of(job: Job) -> Outcome:
    """Waits for its end."""
    status = job.wait()
    output, errors = (path.read_text(errors="replace") for path in (job.output, job.errors))
    return Outcome(status, output, errors)


@contextmanager
def command_server(home: Path) -> Iterator[Commands]:
    server = RunServer(home, COMMAND_DRIVER)
    try:
        yield Commands(server)
    finally:
        server.close()


def side_by_side(cases: Iterable[C], start: Callable[[C], Job]) -> Iterator[tuple[C, Outcome]]:
    """Each case with how its command ended, a few commands at a time; the order is kept."""
    running: deque[tuple[C, Job]] = deque()
    for case in cases:
        running.append((case, start(case)))
        if len(running) == AT_ONCE:
            done, job = running.popleft()
            yield done, outcome_of(job)
    for done, job in running:
        yield done, outcome_of(job)


# ---- what is wrong ------------------------------------------------------------------------------


def complaint_about(outcome: Outcome) -> str | None:
    """What no command may do, whatever it was asked: hang, crash, or refuse in many words."""
    if outcome.status == -14:
        return f"hangs: it was ended after {SECONDS} s"
    if "Traceback" in outcome.errors + outcome.output:
        return f"traceback, exit status {outcome.status}"
    if outcome.status not in (0, 2):
        return f"exit status {outcome.status}"
    return None if outcome.status == 0 else complaint_about_refusal(outcome)


def complaint_about_refusal(outcome: Outcome) -> str | None:
    """A refusal is one line on stderr that says what is wrong."""
    lines = outcome.error_lines
    if len(lines) != 1:
        return f"refused in {len(lines)} lines instead of one"
    (line,) = lines
    if not line.startswith("error: ") or len(line) < len("error: ") + 10:
        return "refused without saying why"
    if len(line) > MAX_LINE:
        return f"refused in {len(line)} characters, at most {MAX_LINE} can be read"
    return None


def snapshot(folder: Path) -> dict[str, bytes | None]:
    """Every file below a folder with its content, and every folder with None."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def shorten_label(text: str, length: int = 700) -> str:
    """Both ends of a text."""
    if len(text) <= length:
        return text
    return f"{text[: length // 2]} [... {len(text) - length} more ...] {text[-length // 2 :]}"


def in_words(argv: Sequence[str]) -> str:
    """A command line to be typed, long arguments shortened; exact in the case of its seed."""
    return " ".join(shorten_label(shlex.quote(word), 120) for word in argv)


def require_none(broken: Sequence[str], file: str, test: str) -> None:
    """Fail with every break of a fuzz, and with how one is repeated."""
    again = f"{CHOSEN}=SEED python -m pytest -m slow {file} -k {test}"
    reported = "\n\n".join(broken)
    assert not broken, f"{len(broken)} broken; repeat one with\n  {again}\n\n{reported}"
