"""A server of `esper serve` and a headless Chromium, for the browser tests and the screenshots."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM: Final = next((path for name in _NAMES if (path := shutil.which(name))), None)
"""The browser; None if there is none."""
FLAGS: Final = (
    "--no-sandbox",  # Chromium's own sandbox needs rights that containers lack
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
"""For a browser that asks no server but ours, also as root."""


def command(*arguments: str) -> subprocess.Popen[str]:
    """A process of `esper` on one thread, with a pipe for its output."""
    return subprocess.Popen(
        [sys.executable, "-m", "esper", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
    )


@contextmanager
def server(runs: Path, *arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """(address, process) of a server on a free port; the address holds the token, if any."""
    process = command("serve", str(runs), "--port", "0", *arguments)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        found = re.search(r"http://\S+", line)
        if found is None:
            raise RuntimeError(f"esper serve: {line}{process.stdout.read()}")
        yield found[0], process
    finally:
        process.terminate()
        process.wait(timeout=20)
        process.stdout.close()


@contextmanager
def browser(
    width: int = 1280, height: int = 900, scheme: Literal["light", "dark"] = "light"
) -> Iterator[Any]:
    """A page of a headless Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        context = chromium.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme
        )
        try:
            yield context.new_page()
        finally:
            chromium.close()


def take_picture(part: Any, path: Path) -> None:
    """A screenshot of a page or a part of it, in the few colours that plots and words have."""
    from PIL import Image

    part.screenshot(path=path)
    few = Image.open(path).convert("RGB").quantize(128, dither=Image.Dither.NONE)
    few.save(path, optimize=True)
