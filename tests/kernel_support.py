"""Where kernels of our own can be tried: on a CUDA device, or on a CPU by Triton's interpreter.

The interpreter is chosen before Triton is loaded: `make test-kernels`.
"""

from __future__ import annotations

import os

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu")


def examples(count: int) -> int:
    """How many cases of a property to try; all of them take minutes, as on a GPU each new shape is
    compiled first."""
    return count if os.environ.get("ESPER_KERNEL_EXAMPLES") == "all" else max(2, count // 8)


def require_kernels() -> None:
    """Skip the test module where kernels cannot run."""
    pytest.importorskip("triton", reason="triton is not installed")
    if DEVICE.type == "cpu" and not INTERPRETED:
        pytest.skip("no CUDA device, and TRITON_INTERPRET is not 1", allow_module_level=True)


def choose_kernels(monkeypatch: pytest.MonkeyPatch, module: str, ours: bool) -> None:
    """Let one door take our kernels (also for a CPU, where they are interpreted), or torch's."""
    monkeypatch.setattr(f"{module}.can_use_kernels", lambda tensor: ours)


HALF = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32
"""What kernels are tried in: the interpreter has no arithmetic in half precision."""


def numbers(shape, seed: int = 0, dtype: torch.dtype = HALF) -> torch.Tensor:
    """Random numbers, the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(tuple(shape), generator=generator).to(DEVICE, dtype)


def close(found: torch.Tensor, expected: torch.Tensor, terms: int = 1) -> None:
    """Equal to the rounding of what kernels are tried in, measured against the largest number.

    `terms`: each is a sum of so many numbers of size 1, which may cancel; their rounding does not.
    """
    assert found.shape == expected.shape
    scale = expected.detach().abs().max().clamp(min=1e-3 if terms == 1 else terms**0.5)
    error = (found.detach().float() - expected.detach().float()).abs().max() / scale
    assert float(error) < (2e-2 if HALF is torch.bfloat16 else 1e-5)
