"""The pages and their files, read once: addresses name them exactly or nothing."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

STATIC: Final = Path(__file__).parent / "static"
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Other files (licences) are not served."""
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
"""Name of each page and of its script -> title, and what it shows before that."""


@dataclass(frozen=True, slots=True)
class Asset:
    """A file as it is sent."""

    body: bytes
    media_type: str
    etag: str


def read_assets() -> dict[str, Asset]:
    """Every file by its path below `static`, and every page, `page.html` with its parts."""
    files = [path for path in sorted(STATIC.rglob("*")) if path.suffix in _TYPES]
    found = {path.relative_to(STATIC).as_posix(): path.read_bytes() for path in files}
    frame = found.pop("page.html").decode()
    for name, (title, content) in _PAGES.items():
        page = frame.replace("<!--title-->", title).replace("<!--script-->", name)
        found[f"{name}.html"] = page.replace("<!--content-->", content).encode()
    return {path: _asset(body, _TYPES[Path(path).suffix]) for path, body in found.items()}


def _asset(body: bytes, media_type: str) -> Asset:
    return Asset(body, media_type, f'"{hashlib.sha256(body).hexdigest()[:20]}"')
