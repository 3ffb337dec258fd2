"""Small folders as messages: saved agents and members travel between ranks as bytes."""

from __future__ import annotations

import json
from pathlib import Path

from esper.storage.atomic import write_atomic
from esper.storage.saves import MANIFEST


def pack_folder(folder: Path) -> bytes:
    """The files of a save as one message: names and sizes as JSON, then the contents."""
    paths = sorted(folder.iterdir(), key=lambda path: (path.name == MANIFEST, path.name))
    bodies = [path.read_bytes() for path in paths]
    names = [(path.name, len(body)) for path, body in zip(paths, bodies, strict=True)]
    return json.dumps(names).encode() + b"\n" + b"".join(bodies)


def unpack_folder(message: bytes, folder: Path) -> None:
    """Write what `pack_folder` packed to `folder`, its manifest last."""
    folder.mkdir(parents=True, exist_ok=True)
    line, _, body = message.partition(b"\n")
    start = 0
    for name, size in json.loads(line):
        write_atomic(folder / Path(name).name, body[start : start + size])
        start += size
