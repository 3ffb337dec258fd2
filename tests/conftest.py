"""Settings every test runs under."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def full_precision():
    """No TF32 on a GPU: executors are compared in real float32."""
    kept = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = kept
