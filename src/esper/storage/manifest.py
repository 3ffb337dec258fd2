"""What belongs to a folder, and is it whole? A sealed JSON document that lists files and checksums.

Saves of tensors (`saves.py`) and checkpoints of runs have manifests of this one form:

    {"format": ..., "schema": ..., ..., "checksum": ...}

The envelope (`format`, `schema`, `checksum`) never changes. `schema` grows with every change that
older readers would not understand, so that they can say which version is needed.
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
from esper.storage.sealed_json import is_sealed, parse_json, seal


class NewerFormatError(EsperError):
    """A manifest that this Esper is too old for: sound, so nobody may pass it over."""


@dataclass(frozen=True, slots=True)
class FolderFormat:
    """One kind of folder with a manifest."""

    name: str
    """What its manifests carry as `format`."""
    schema: int
    """The newest one this Esper reads, and the one it writes."""
    holds: str
    """What such a folder is, for messages."""
    advice: str = ""
    """What to do about a damaged one; it ends every message."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A file that belongs to a manifest."""

    name: str
    """From the manifest's folder on, parts joined by '/'."""
    bytes: int
    sha256: str


def record_of(name: str, blob: bytes) -> FileRecord:
    """The record of a file with this content."""
    return FileRecord(name, len(blob), hashlib.sha256(blob).hexdigest())


def check_file(record: FileRecord, path: Path, blob: bytes, advice: str = "") -> None:
    """Refuse content that is not the recorded one."""
    if len(blob) != record.bytes:
        raise EsperError(f"{path} is damaged, {len(blob)} bytes of {record.bytes}{advice}")
    if hashlib.sha256(blob).hexdigest() != record.sha256:
        raise EsperError(f"{path} is damaged, its checksum is wrong{advice}")


def write_manifest(path: Path, form: FolderFormat, fields: Mapping[str, Json]) -> None:
    """Write a manifest with its envelope; the last file of a folder to be written."""
    document: dict[str, Json] = {"format": form.name, "schema": form.schema, **fields}
    # No newline at the end: every byte counts, so a file that was cut anywhere is noticed.
    write_atomic(path, json.dumps(seal(document), indent=1).encode())


def read_manifest(path: Path, form: FolderFormat) -> dict[str, Json]:
    """A manifest whose checksum and schema are right; anything else is refused in one line."""
    raw = read_bytes(path, form.advice)
    try:
        document = parse_json(raw)
    except ValueError as error:
        raise EsperError(f"{path} is damaged, not JSON ({error}){form.advice}") from None
    if not isinstance(document, dict) or document.get("format") != form.name:
        raise EsperError(
            f"{path} is no manifest of a {form.holds} of Esper: give the folder of one"
        )
    if not is_sealed(document):
        raise EsperError(f"{path} is damaged, its checksum is wrong{form.advice}")
    _check_schema(path, form, document)
    return document


def _check_schema(path: Path, form: FolderFormat, document: Mapping[str, Json]) -> None:
    schema = document.get("schema")
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise EsperError(f"{path}: schema {schema!r}, expected a number from 1 to {form.schema}")
    if schema > form.schema:
        versions = document.get("versions")
        by = "" if versions is None else f", versions {versions!r}"
        raise NewerFormatError(
            f"{path} was written by a newer Esper (schema {schema}{by}); this one reads up to "
            f"schema {form.schema}: update esper"
        )


def read_bytes(path: Path, advice: str = "") -> bytes:
    """The content of a file of a folder; a file that cannot be read is named in one line."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise EsperError(f"{path} is missing{advice}") from None
    except OSError as error:
        raise EsperError(f"cannot read {path}: {error.strerror or error}") from error
