"""CUDA C++ compiled at run time by NVRTC, the library that torch for CUDA brings along; no nvcc.

`find_nvrtc` finds it, `Nvrtc.compile` makes machine code (a cubin) of a source. No GPU is needed.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Final

import torch

from esper.leyline.errors import EsperError

_MAJORS: Final = (13, 12)
"""Major versions of CUDA whose NVRTC is known to work, if torch does not say its own."""


class CompileError(EsperError):
    """NVRTC rejected a source, or is not there."""


class Nvrtc:
    """NVRTC's functions that we use."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.nvrtcGetErrorString.restype = ctypes.c_char_p

    @property
    def version(self) -> tuple[int, int]:
        """Major and minor version."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        return major.value, minor.value

    def compile(
        self, source: str, name: str, headers: Mapping[str, str], options: Iterable[str]
    ) -> bytes:
        """Return the machine code of a source; `headers`: what it may include, by name."""
        library, program = self._library, ctypes.c_void_p()
        names = [key.encode() for key in headers]
        texts = [text.encode() for text in headers.values()]
        strings = ctypes.c_char_p * len(names)
        self._check(
            library.nvrtcCreateProgram(
                ctypes.byref(program),
                source.encode(),
                name.encode(),
                len(names),
                strings(*texts),
                strings(*names),
            )
        )
        try:
            given = [option.encode() for option in options]
            array = (ctypes.c_char_p * len(given))(*given)
            if library.nvrtcCompileProgram(program, len(given), array) != 0:
                log = self._text(program, "ProgramLog").decode(errors="replace")
                raise CompileError(f"NVRTC cannot compile {name}: {log.strip()}")
            return self._text(program, "CUBIN")
        finally:
            library.nvrtcDestroyProgram(ctypes.byref(program))

    def _text(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        buffer = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._library, f"nvrtcGet{what}")(program, buffer))
        return buffer.raw

    def _check(self, code: int) -> None:
        if code != 0:
            raise CompileError(f"NVRTC: {self._library.nvrtcGetErrorString(code).decode()}")


@cache
def find_nvrtc() -> Nvrtc | None:
    """Return NVRTC of torch's CUDA version, or any known one if torch has none; None if missing."""
    own = torch.version.cuda
    majors = _MAJORS if own is None else (int(own.partition(".")[0]),)
    for major in majors:
        for path in [*_packaged(major), f"libnvrtc.so.{major}"]:
            try:
                return Nvrtc(ctypes.CDLL(str(path)))
            except OSError:
                continue
    return None


def _packaged(major: int) -> list[Path]:
    """NVRTC in the Python packages that torch depends on, in torch, and in a CUDA toolkit."""
    spec = importlib.util.find_spec("nvidia")
    folders = [] if spec is None else spec.submodule_search_locations or []
    found = [p for f in folders for p in sorted(Path(f).glob(f"*/lib/libnvrtc.so.{major}"))]
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    for folder in (Path(torch.__file__).parent / "lib", toolkit / "lib64"):
        found += sorted(folder.glob(f"libnvrtc*.so.{major}"))
    return found
