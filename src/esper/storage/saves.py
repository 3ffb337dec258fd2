"""Saves: a folder with a manifest and one file of tensors, replaced atomically.

    folder/manifest.json                  kind, versions, checksums, everything but tensors
    folder/tensors-<hash>.safetensors     the tensors, named after their content

Each file is written under a temporary name, synced and renamed; the manifest comes last. Its rename
replaces the old save by the new one, whenever the process dies. Files left by an interrupted save
are removed by the next one. There may be only one writer at a time.

Nothing is unpickled, and nothing is parsed before its checksum is verified.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

import esper
from esper.leyline.codec import Json, read_record, to_json
from esper.leyline.errors import EsperError, unknown_name
from esper.storage.atomic import require_folder, sync_folder, write_advice, write_atomic
from esper.storage.manifest import (
    FileRecord,
    FolderFormat,
    check_file,
    read_bytes,
    read_manifest,
    write_manifest,
)
from esper.storage.sealed_json import is_sealed, parse_json

SCHEMA: Final = 3
"""Increase with every change of the manifest or the tensor names."""
FORMAT: Final = FolderFormat("esper-save", SCHEMA, "save", ": load another save")
MANIFEST: Final = "manifest.json"

Kind = Literal["population", "member", "network", "controller"]
_LOADER: Final[dict[Kind, str]] = {
    "population": "Population.load",
    "member": "MorphogeneticModel.load",
    "network": "esper.kasmina.plain_saves.load_plain",
    "controller": "PPOAgent.load",
}
_TENSORS: Final = re.compile(r"tensors-[0-9a-f]{16}\.safetensors")
_TEMPORARY: Final = re.compile(rf"\.({_TENSORS.pattern}|{re.escape(MANIFEST)})\.\w+\.tmp")

PathLike = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Saved:
    """A save read from disk, with verified checksums."""

    where: str
    """Folder, for error messages."""
    content: Json
    tensors: dict[str, Tensor]


# ---- writing ------------------------------------------------------------------------------


def write_save(path: PathLike, kind: Kind, content: object, tensors: Mapping[str, Tensor]) -> None:
    """Replace the save at `path` atomically.

    `content` is a record; tensors may be on any device (they are copied to the host).
    """
    folder = Path(path)
    # SYNC: a save waits for the device, between rounds; never in the step.
    blob = save_tensors({n: t.detach().cpu().contiguous() for n, t in tensors.items()})
    digest = hashlib.sha256(blob).hexdigest()
    file = FileRecord(f"tensors-{digest[:16]}.safetensors", len(blob), digest)
    fields: dict[str, Json] = {
        "kind": kind,
        "versions": {"esper": esper.__version__, "torch": str(torch.__version__)},
        "tensors": to_json(file),
        "content": to_json(content),
    }
    try:
        _make_folder(folder)
        _remove_leftovers(folder, _current_files(folder))
        write_atomic(folder / file.name, blob)
        write_manifest(folder / MANIFEST, FORMAT, fields)
    except OSError as error:
        with contextlib.suppress(OSError):
            _remove_leftovers(folder, _current_files(folder))
        raise _unwritable(folder, error) from error
    with contextlib.suppress(OSError):  # the save is complete; the next one cleans up again
        _remove_leftovers(folder, {file.name})


def _unwritable(folder: Path, error: OSError) -> EsperError:
    return EsperError(
        f"cannot save to {folder}: {error.strerror or error}; {write_advice(error)} or choose "
        f"another folder (an existing save is kept until the new one is complete)"
    )


def _make_folder(folder: Path) -> None:
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for place in missing:
        sync_folder(place.parent)


def _current_files(folder: Path) -> set[str]:
    """Return the tensor files that the folder's current save uses; all of them if unknown."""
    try:
        manifest = parse_json((folder / MANIFEST).read_bytes())
    except FileNotFoundError:
        return set()
    except ValueError:
        manifest = {"format": FORMAT.name}
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT.name:
        raise EsperError(f"{folder / MANIFEST} does not belong to Esper: choose another folder")
    file = manifest.get("tensors")
    if is_sealed(manifest) and isinstance(file, dict):
        return {str(file.get("name"))}
    return {name for name in os.listdir(folder) if _TENSORS.fullmatch(name)}


def _remove_leftovers(folder: Path, keep: set[str]) -> None:
    """Remove files of interrupted and earlier saves; other files stay."""
    for name in os.listdir(folder):
        if _TEMPORARY.fullmatch(name) or (_TENSORS.fullmatch(name) and name not in keep):
            os.unlink(folder / name)


# ---- reading ------------------------------------------------------------------------------


def read_save(path: PathLike, kind: Kind) -> Saved:
    """Read and verify a save; any problem raises in one line."""
    folder = Path(path)
    require_folder(folder, "give the folder of a save")
    manifest = read_manifest(folder / MANIFEST, FORMAT)
    file = read_record(FileRecord, manifest.get("tensors"), f"{folder / MANIFEST} tensors")
    _check_kind(folder, manifest.get("kind"), kind)
    return Saved(str(folder), manifest.get("content"), _read_tensors(folder, file))


def _check_kind(folder: Path, found: Json, wanted: Kind) -> None:
    if found not in _LOADER:
        raise unknown_name("kind", found, _LOADER, f"in {folder / MANIFEST}")
    if found != wanted:
        raise EsperError(f"{folder} holds a {found}, not a {wanted}: load it with {_LOADER[found]}")


def _read_tensors(folder: Path, file: FileRecord) -> dict[str, Tensor]:
    path = folder / file.name
    if not _TENSORS.fullmatch(file.name):
        raise EsperError(f"{folder / MANIFEST}: {file.name!r} is not the name of a tensor file")
    blob = read_bytes(path, FORMAT.advice)
    check_file(file, path, blob, FORMAT.advice)
    try:
        return load_tensors(blob)
    except SafetensorError as error:
        raise EsperError(f"{path} is not a safetensors file ({error}){FORMAT.advice}") from None
