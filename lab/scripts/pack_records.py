"""Packs an audit folder into records that ship with the package.

    python lab/scripts/pack_records.py out/audit_digits_impaired_small digits_impaired

`esper bench` lists them; `esper_lab.bench.load(NAME)` reads them. A name that exists is not
overwritten.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from esper.scripts.cli.command import run_command
from esper_lab.audit.packed import SHIPPED, pack_audit, require_name, size_bytes


@dataclass(frozen=True)
class PackRecords:
    """Pack an audit folder into records that ship with the package."""

    audit: Annotated[Path, tyro.conf.Positional]
    """Folder of an `esper audit`."""
    name: Annotated[str, tyro.conf.Positional]
    """What `esper bench` will call them."""
    folder: Path = SHIPPED
    """Where the folder NAME is made."""


def pack(config: PackRecords) -> None:
    """Pack, and print the sizes."""
    made = pack_audit(config.audit, config.folder / require_name(config.name))
    before, after = size_bytes(config.audit), size_bytes(made)
    print(f"{made}: {after:,} bytes of records ({before:,} in {config.audit})")


if __name__ == "__main__":
    sys.exit(run_command(PackRecords, pack))
