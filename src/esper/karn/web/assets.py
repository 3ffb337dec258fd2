"""The files of the pages, and the pages: one frame, with the script of most."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from fastapi import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

STATIC: Final = Path(__file__).parent / "static"
_FRAME: Final = Path(__file__).parent / "page.html"
"""What all pages share; not served itself."""
_NEEDS_SCRIPT: Final = (
    "<noscript><p>These pages need JavaScript; <code>esper runs</code> and <code>esper show</code> "
    "show the same in a terminal.</p></noscript>"
)
_PAGES: Final = {
    "list": ("Runs", _NEEDS_SCRIPT),
    "compare": ("Compare runs", _NEEDS_SCRIPT),
    "run": ("Run", _NEEDS_SCRIPT),
    "missing": (
        "Not found",
        '<h1>Not found</h1>\n<p><!--reason--></p>\n<p><a class="button" href="/">All runs</a></p>',
    ),
}
"""Name of each page, and of its script if it has one -> title, and what it shows before that."""


class PageFiles(StaticFiles):
    """Scripts, styles and pictures; browsers ask each time whether a file has changed."""

    def file_response(
        self,
        full_path: str | os.PathLike[str],
        stat_result: os.stat_result,
        scope: Scope,
        status_code: int = 200,
    ) -> Response:
        """A file, or that it is unchanged."""
        found = super().file_response(full_path, stat_result, scope, status_code)
        found.headers["cache-control"] = "no-cache"
        return found


def page(name: str) -> str:
    """A page as HTML."""
    title, content = _PAGES[name]
    frame = _FRAME.read_text(encoding="utf-8")
    script = f'<script type="module" src="/static/js/{name}.js"></script>\n'
    frame = frame.replace("<!--title-->", title)
    frame = frame.replace("<!--script-->", "" if name == "missing" else script)
    return frame.replace("<!--content-->", content)
