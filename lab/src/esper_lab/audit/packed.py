"""Packed records: an audit as two small files, and those that ship with the package.

    FOLDER/audit.json         what was run (`AuditInfo`), with a checksum
    FOLDER/records.parquet    the rows of all contexts, as `rows.py` describes them

Topologies that were grown are left out: neither the bench nor the regrets use them.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Final

from esper.leyline.errors import EsperError, shown, unknown_name
from esper.storage.atomic import write_atomic
from esper_lab.audit.folder import AuditFolder
from esper_lab.audit.records import INFO, PACKED, identity_of, read_contexts, read_info, write_info
from esper_lab.audit.rows import packed_bytes

SHIPPED: Final = Path(__file__).with_name("recorded")
"""Folder of the records that ship with the package."""
_NAME: Final = re.compile(r"[a-z0-9_]+")


def pack_audit(source: Path, target: Path) -> Path:
    """Pack an audit folder into a new folder; equal records give equal bytes.

    Contexts that are missing stay missing. Raises if `target` exists.
    """
    info = replace(read_info(source), grown=())
    rows = list(read_contexts(source, info))
    if not rows:
        raise EsperError(f"{source} has no finished context: there is nothing to pack")
    content = packed_bytes(rows, info.topologies, identity_of(info))
    try:
        target.mkdir(parents=True)
    except FileExistsError:
        raise EsperError(f"{target} exists: choose another name, or remove it") from None
    try:
        write_atomic(target / PACKED, content)
        write_info(target, info)
    except BaseException:
        shutil.rmtree(target)
        raise
    return target


def unpack_audit(source: Path, target: Path) -> Path:
    """Write packed records as a new audit folder, which `esper audit --live` continues.

    Raises if `target` exists.
    """
    info = read_info(source)
    rows = list(read_contexts(source, info))
    if target.exists():
        raise EsperError(f"{target} exists: choose another name, or remove it")
    with AuditFolder(target, info) as folder:
        for context in rows:
            folder.write(context)
    return target


def require_name(name: str) -> str:
    """Return a name that records may be shipped under, or raise."""
    if not _NAME.fullmatch(name):
        raise EsperError(f"name {shown(name)}: use small letters, digits and underscores")
    return name


def shipped_names() -> tuple[str, ...]:
    """Names of the records that ship with the package."""
    return tuple(sorted(path.parent.name for path in SHIPPED.glob(f"*/{INFO}")))


def find_records(name: str) -> Path:
    """The folder of shipped records by their name, or the audit folder at a path.

    Shipped names come first; `./NAME` is a folder in any case.
    """
    if name in shipped_names():
        return SHIPPED / name
    if Path(name).exists() or not _NAME.fullmatch(name):
        return Path(name)
    raise unknown_name("records", name, shipped_names(), "(nor is there such a folder)")


def size_bytes(folder: Path) -> int:
    """Size of the records of a folder on disk."""
    return sum(path.stat().st_size for path in folder.rglob("*.parquet"))
