"""Manifests: JSON documents with a checksum that list the files of a folder.

Tensor saves (`saves.py`) and checkpoints of runs share this format:

    {"format": ..., "schema": ..., ..., "checksum": ...}

`format`, `schema` and `checksum` never change. `schema` increases with every change of the
other entries, and a reader refuses any other than its own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from esper.leyline.codec import Json
from esper.leyline.errors import EsperError
from esper.storage.atomic import write_atomic
from esper.storage.sealed_json import is_sealed, parse_json, require_schema, seal


@dataclass(frozen=True, slots=True)
class FolderFormat:
    """Format of a folder with a manifest."""

    name: str
    """Value of `format` in its manifests."""
    schema: int
    """The one this Esper reads and writes."""
    holds: str
    """What such a folder contains, for messages."""
    advice: str = ""
    """What to do about a damaged one; appended to every message."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """Name, size and checksum of a file of a manifest."""

    name: str
    """Relative to the manifest's folder, with '/'."""
    bytes: int
    sha256: str


def record_of(name: str, blob: bytes) -> FileRecord:
    """Return the record of a file with this content."""
    return FileRecord(name, len(blob), hashlib.sha256(blob).hexdigest())


def check_file(record: FileRecord, path: Path, blob: bytes, advice: str = "") -> None:
    """Raise unless the content matches the record."""
    if len(blob) != record.bytes:
        raise EsperError(f"{path} is damaged: {len(blob)} bytes, expected {record.bytes}{advice}")
    if hashlib.sha256(blob).hexdigest() != record.sha256:
        raise EsperError(f"{path} is damaged, its checksum is wrong{advice}")


def write_manifest(path: Path, form: FolderFormat, fields: Mapping[str, Json]) -> None:
    """Write a manifest; must be the last file written to its folder."""
    document: dict[str, Json] = {"format": form.name, "schema": form.schema, **fields}
    # No trailing newline: then a file truncated anywhere is detected.
    write_atomic(path, json.dumps(seal(document), indent=1).encode())


def read_manifest(path: Path, form: FolderFormat) -> dict[str, Json]:
    """Read a manifest and verify its checksum and schema."""
    raw = read_bytes(path, form.advice)
    try:
        document = parse_json(raw)
    except ValueError as error:
        raise EsperError(f"{path} is damaged, not JSON ({error}){form.advice}") from None
    if not isinstance(document, dict) or document.get("format") != form.name:
        raise EsperError(
            f"{path} is not a manifest of an Esper {form.holds}: give the folder of one"
        )
    if not is_sealed(document):
        raise EsperError(f"{path} is damaged, its checksum is wrong{form.advice}")
    require_schema(path, document.get("schema"), form.schema)
    return document


def read_bytes(path: Path, advice: str = "") -> bytes:
    """Read a file of a folder; raises in one line if that fails."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise EsperError(f"{path} is missing{advice}") from None
    except OSError as error:
        raise EsperError(f"cannot read {path}: {error.strerror or error}") from error
