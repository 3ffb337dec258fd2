"""Deterministic kernels on a GPU, for as long as a trainer computes."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import Final

import torch
from torch.utils import deterministic

CUBLAS: Final = "CUBLAS_WORKSPACE_CONFIG"
CUBLAS_SIZE: Final = ":4096:8"
"""Workspaces with which cuBLAS is deterministic."""
_MESSAGE: Final = "does not have a deterministic implementation"


def lacks_kernel(error: BaseException) -> bool:
    """Whether an operation failed because it has no deterministic kernel."""
    return _MESSAGE in str(error)


@contextlib.contextmanager
def deterministic_kernels(device: torch.device) -> Iterator[None]:
    """Use deterministic kernels and no autotuning on a GPU; afterwards all is as it was."""
    if device.type != "cuda":
        yield
        return
    cudnn, workspace = torch.backends.cudnn, os.environ.get(CUBLAS)
    mode = torch.get_deterministic_debug_mode()
    before = cudnn.deterministic, cudnn.benchmark
    filled = deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    os.environ.setdefault(CUBLAS, CUBLAS_SIZE)
    # Not `use_deterministic_algorithms`, which imports inductor (1.6 s).
    torch.set_deterministic_debug_mode("error")
    cudnn.deterministic, cudnn.benchmark = True, False
    deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        cudnn.deterministic, cudnn.benchmark = before
        deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
        if workspace is None:
            del os.environ[CUBLAS]


@contextlib.contextmanager
def tolerate_others(needed: bool) -> Iterator[None]:
    """Let operations run that have no deterministic kernel, if needed."""
    if not needed:
        yield
        return
    mode = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("warn")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", f".*{_MESSAGE}")
            yield
    finally:
        torch.set_deterministic_debug_mode(mode)
