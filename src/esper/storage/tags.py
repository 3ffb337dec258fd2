"""Tags of a run: words that people give it, in a small file of their own.

Nothing that a run resumes from knows of the file, so a run is tagged while it is written, too.
"""

from __future__ import annotations

import fcntl
import json
import os
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from esper.leyline.errors import EsperError, shown
from esper.storage.atomic import save_file
from esper.storage.run_files import TAGS
from esper.storage.sealed_json import read_document

MAX_TAGS: Final = 20
MAX_TAG_CHARS: Final = 40
_MAX_BYTES: Final = 20_000
"""Of the file; 20 tags of 40 characters take less, escapes included."""


def read_tags(run: Path) -> tuple[str, ...]:
    """Tags of the run in a folder, sorted; raises in one line if their file is damaged."""
    path = run / TAGS
    if not path.exists():
        return ()
    if path.stat().st_size > _MAX_BYTES:
        raise EsperError(f"{path} is damaged: larger than {_MAX_BYTES:,} bytes")
    document = read_document(path)
    found = document.get("tags") if isinstance(document, dict) else None
    if not isinstance(found, list) or len(found) > MAX_TAGS:
        raise EsperError(f"{path} is damaged: expected a list of at most {MAX_TAGS} tags")
    try:
        return tuple(sorted({checked_tag(one) for one in found}))
    except EsperError as error:
        raise EsperError(f"{path} is damaged: {error}") from None


def checked_tag(tag: object) -> str:
    """The tag in its composed form; raises unless it is a word that can be shown and typed.

    >>> checked_tag("baseline")
    'baseline'
    """
    found = unicodedata.normalize("NFC", tag) if isinstance(tag, str) else ""
    fits = 0 < len(found) <= MAX_TAG_CHARS and found.isprintable() and found[0] != "-"
    if not fits or any(one.isspace() or one == "," for one in found):
        raise EsperError(
            f"tag {shown(tag)}: a tag is one word of at most {MAX_TAG_CHARS} characters, without "
            f"spaces, commas or a leading dash"
        )
    return found


def change_tags(run: Path, add: Iterable[str] = (), remove: Iterable[str] = ()) -> tuple[str, ...]:
    """Add and remove tags, and return those the run has then."""
    more, less = {checked_tag(one) for one in add}, {checked_tag(one) for one in remove}
    folder = os.open(run, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # two commands at once: none loses its tag
        before = read_tags(run)
        missing = sorted(less.difference(before))
        if missing:
            has = f"it has {', '.join(before)}" if before else "it has no tags"
            raise EsperError(f"{run} has no tag {', '.join(missing)}: {has}")
        found = tuple(sorted(more.union(before) - less))
        if len(found) > MAX_TAGS:
            raise EsperError(f"{run} would have {len(found)} tags: at most {MAX_TAGS}")
        if found != before:
            save_file(run / TAGS, (json.dumps({"tags": found}, indent=1) + "\n").encode())
        return found
    finally:
        os.close(folder)
