"""Deterministic kernels on a GPU, for as long as a trainer computes."""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Final

import torch
from torch.utils import deterministic

CUBLAS: Final = "CUBLAS_WORKSPACE_CONFIG"
CUBLAS_SIZE: Final = ":4096:8"
"""Workspaces with which cuBLAS is deterministic."""
_LACKING: Final = re.compile("does not have a deterministic implementation|non-deterministic alg")
_CUBLAS_MESSAGE: Final = "uses CuBLAS"


def lacks_kernel(message: str) -> bool:
    """Whether torch says that an operation has no deterministic kernel."""
    return _LACKING.search(message) is not None


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
    torch.set_deterministic_debug_mode("error" if _accepts_cublas(device) else "warn")
    cudnn.deterministic, cudnn.benchmark = True, False
    deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", f".*{_CUBLAS_MESSAGE}")
            yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        cudnn.deterministic, cudnn.benchmark = before
        deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
        if workspace is None:
            del os.environ[CUBLAS]


@cache
def _accepts_cublas(device: torch.device) -> bool:
    """Whether torch takes cuBLAS for deterministic: it looks at the environment once, at first use.

    Where it was used before, products are computed in torch's workspaces all the same.
    """
    mode = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("error")
    try:
        torch.ones(2, 2, device=device) @ torch.ones(2, 2, device=device)
    except RuntimeError as error:
        if _CUBLAS_MESSAGE not in str(error):
            raise
        return False
    finally:
        torch.set_deterministic_debug_mode(mode)
    return True


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
            warnings.filterwarnings("ignore", ".*deterministic")
            yield
    finally:
        torch.set_deterministic_debug_mode(mode)
