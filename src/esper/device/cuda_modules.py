"""Machine code loaded and launched through the CUDA driver, on torch's context and stream."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Final

import torch

from esper.leyline.errors import EsperError

_MAX_DYNAMIC_SHARED: Final = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"""
_SHARED_CARVEOUT: Final = 9
"""CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, in percent; the rest is L1."""


class DriverError(EsperError):
    """The CUDA driver refused a call."""


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _check(code: int, what: str) -> None:
    if code != 0:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(code, ctypes.byref(text))
        raise DriverError(f"{what}: {(text.value or b'unknown error').decode()} ({code})")


def _ensure_context() -> None:
    """Make the device's primary context (torch's) current: new threads of autograd have none."""
    context = ctypes.c_void_p()
    _check(_driver().cuCtxGetCurrent(ctypes.byref(context)), "asking for the context")
    if context.value is None:
        index = torch.cuda.current_device()
        _check(_driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), index), "the context")
        _check(_driver().cuCtxSetCurrent(context), "setting the context")


class CudaModule:
    """Machine code in the current device's context; kept as long as the process runs."""

    def __init__(self, code: bytes) -> None:
        _ensure_context()
        self._handle = ctypes.c_void_p()
        _check(_driver().cuModuleLoadData(ctypes.byref(self._handle), code), "loading a kernel")

    def function(self, name: str, shared_bytes: int) -> CudaFunction:
        """Return a kernel that may use so much dynamic shared memory."""
        handle = ctypes.c_void_p()
        found = _driver().cuModuleGetFunction(ctypes.byref(handle), self._handle, name.encode())
        _check(found, f"kernel {name}")
        setting = _driver().cuFuncSetAttribute(handle, _MAX_DYNAMIC_SHARED, shared_bytes)
        _check(setting, f"{shared_bytes} bytes of shared memory for {name}")
        _check(_driver().cuFuncSetAttribute(handle, _SHARED_CARVEOUT, 100), f"settings of {name}")
        return CudaFunction(name, handle, shared_bytes)


class CudaFunction:
    """A kernel whose only argument is a structure."""

    def __init__(self, name: str, handle: ctypes.c_void_p, shared_bytes: int) -> None:
        self._name, self.handle, self._shared_bytes = name, handle, shared_bytes

    def launch(self, grid: tuple[int, int, int], threads: int, args: ctypes.Structure) -> None:
        """Launch on torch's current stream; never synchronises."""
        _ensure_context()
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(args))
        code = _driver().cuLaunchKernel(
            self.handle, *grid, threads, 1, 1, self._shared_bytes, stream, parameters, None
        )
        _check(code, f"launching {self._name} on a grid of {grid}")
