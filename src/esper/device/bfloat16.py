"""bfloat16 on CPUs, with no effect on float32 results later in the process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def bfloat16_passes(device_type: str, enabled: bool = True) -> Iterator[None]:
    """Context of forward and backward passes under autocast to bfloat16.

    On a CPU without bfloat16 instructions torch switches oneDNN off for the whole process as soon
    as a product in bfloat16 fails there, in either pass; float32 results then differ in their last
    bits from those of a fresh process. Inside this block oneDNN is off on such a CPU from the
    start; afterwards it is as it was.
    """
    mkldnn = torch.backends.mkldnn
    if not enabled or device_type != "cpu" or _computes_bfloat16():
        yield
        return
    before = mkldnn.enabled
    mkldnn.enabled = False  # type: ignore[assignment]
    try:
        yield
    finally:
        mkldnn.enabled = before


def _computes_bfloat16() -> bool:
    """Whether oneDNN has bfloat16 kernels for this CPU; True where torch is without oneDNN."""
    here = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return not here or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
