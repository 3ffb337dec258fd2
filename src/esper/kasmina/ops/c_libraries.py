"""C code compiled at first use by this machine's compiler, then read from the disk.

A library is one file in the cache of kernels (`device.kernel_cache`), named by a hash of
source, options and compiler. Files are written whole or not at all, and end with a checksum: a
damaged library would end the process where it is first used.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import logging
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from esper.device.kernel_cache import CACHE_VARIABLE, cache_folder
from esper.leyline.errors import EsperError
from esper.storage.atomic import write_atomic

logger = logging.getLogger(__name__)

OPTIONS: Final = ("-O2", "-ffp-contract=off", "-std=gnu11", "-shared", "-fPIC", "-pthread")
"""Numbers do not depend on the compiler: it may neither reorder nor contract operations. -O3 takes
a third longer to compile and is not faster here."""


@cache
def find_compiler() -> tuple[str, ...] | None:
    """Return the command of the C compiler: $CC, else cc, gcc or clang; None if there is none."""
    given = shlex.split(os.environ.get("CC", ""))
    found = [shutil.which(name) for name in (given[:1] or ("cc", "gcc", "clang"))]
    paths = [path for path in found if path is not None]
    return (paths[0], *given[1:]) if paths else None


@cache
def _version(compiler: tuple[str, ...]) -> str:
    said = subprocess.run([*compiler, "--version"], capture_output=True, check=False)
    return said.stdout.decode(errors="replace")


def load_library(
    path: Path, constants: Mapping[str, int], options: Sequence[str] = ()
) -> ctypes.CDLL:
    """Return a C file compiled with these definitions, from the disk if it is there.

    `options`: further ones of the compiler. Raises EsperError if there is none, or it fails.
    """
    compiler = find_compiler()
    if compiler is None:
        raise EsperError("no C compiler (cc, gcc or clang; or set CC)")
    defined = (f"-D{name}={value}" for name, value in constants.items())
    command = [*compiler, *OPTIONS, *options, *defined]
    key = hashlib.sha256("\n".join([_version(compiler), *command]).encode())
    key.update(path.read_bytes())
    kept = cache_folder() / f"{path.stem}-{key.hexdigest()[:32]}.so"
    if _is_whole(kept):
        with contextlib.suppress(OSError):  # perhaps of another kind of machine: build it again
            return ctypes.CDLL(str(kept))
    with tempfile.TemporaryDirectory(prefix="esper-c-") as folder:
        made = Path(folder) / kept.name
        _compile([*command, str(path), "-o", str(made)])
        try:
            kept.parent.mkdir(parents=True, exist_ok=True)
            code = made.read_bytes()
            write_atomic(kept, code + hashlib.sha256(code).digest())
            made = kept
        except OSError as error:
            logger.warning("compiled kernels are not kept: %s; set %s", error, CACHE_VARIABLE)
        return ctypes.CDLL(str(made))


def _is_whole(path: Path) -> bool:
    """Whether there is such a file, with the checksum that it was written with."""
    try:
        held = path.read_bytes()
    except OSError:
        return False
    size = hashlib.sha256().digest_size
    return hashlib.sha256(held[:-size]).digest() == held[-size:]


def _compile(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except OSError as error:
        raise EsperError(f"C compiler {command[0]}: {error}") from error
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        raise EsperError(f"C compiler {shlex.join(command)}: {lines[0]}")
