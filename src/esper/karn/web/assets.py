"""The files of the pages, read once: addresses name them exactly or nothing."""

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


@dataclass(frozen=True, slots=True)
class Asset:
    """A file as it is sent."""

    body: bytes
    media_type: str
    etag: str


def read_assets() -> dict[str, Asset]:
    """Every file by its path below `static`."""
    found = {}
    for path in sorted(STATIC.rglob("*")):
        if path.suffix in _TYPES and path.is_file():
            body = path.read_bytes()
            etag = f'"{hashlib.sha256(body).hexdigest()[:20]}"'
            found[path.relative_to(STATIC).as_posix()] = Asset(body, _TYPES[path.suffix], etag)
    return found
