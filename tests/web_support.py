"""Runs and browser pages for tests of the dashboard."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import serve_browser
from serve_browser import CHROMIUM as CHROMIUM
from serve_browser import command
from serve_browser import server as server

REQUIRED = os.environ.get("ESPER_BROWSER") == "required"
"""Set by `make test-browser`: a test fails where a browser or its driver is missing."""
TRAIN = ("--task", "synthetic", "--envs", "4", "--episode-length", "12", "--batches-per-step", "1",
         "--batch-size", "16", "--device", "cpu", "--quiet")  # fmt: skip

HOSTILE = '<img src=x onerror="alert(1)"> & ün\udcffiçode'
"""Name of a run folder: markup, spaces, bytes that are no UTF-8."""

REPORT = "<script>document.title = 'script ran'</script><h1>Report</h1>"
"""A report page whose script must not run."""
ADDRESS, SOCKETS = "http://127.0.0.1:8642", "ws://127.0.0.1:8642"
"""Of a client in the same process."""


def comparison(path: Path) -> Path:
    """The files of a comparison of two policies that go on, and a report page."""
    (path / "policies").mkdir(parents=True)
    (path / "settings.json").write_text(json.dumps({"task": "synthetic"}))
    for place, label in enumerate(("wait", "random")):
        result = {"score_N": [0.5 + place / 10, 0.6], "accuracy_N": [0.5, 0.6]}
        saved = {"label": label, "identity": {"policy": label}, "result": result}
        (path / "policies" / f"{label}.json").write_text(json.dumps(saved))
    (path / "report.html").write_text(REPORT)
    return path


@contextmanager
def browser(
    width: int = 1280, scheme: str = "light", messages: list[str] | None = None
) -> Iterator[Any]:
    """A page; its errors and foreign requests are added to `messages`."""
    with serve_browser.browser(width, scheme=scheme) as page:
        if messages is not None:
            listen(page, messages)
        yield page


def listen(page: Any, messages: list[str]) -> None:
    """Note errors of a page, and requests to any server but its own."""
    page.on("pageerror", lambda error: messages.append(f"error: {error}"))
    page.on(
        "console",
        lambda said: messages.append(f"console: {said.text}") if said.type == "error" else None,
    )
    page.on(
        "request",
        lambda asked: (
            None if "://127.0.0.1" in asked.url else messages.append(f"asked for {asked.url}")
        ),
    )


def train(runs: Path, rounds: int, argv: Sequence[str] = ()) -> subprocess.Popen[str]:
    """A small training run in a process of its own."""
    return command("train", "ppo", *TRAIN, "--rounds", str(rounds), "--runs", str(runs), *argv)
