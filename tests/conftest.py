"""Settings every test runs under."""

from __future__ import annotations

import pytest
import torch

from esper.simic.training.runs.kept_members import KeptMembers


@pytest.fixture(autouse=True, scope="session")
def no_exports_of_kept_members():
    """Exporting takes seconds a run; tests/simic/training/test_kept_members.py restores it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KeptMembers, "export", lambda self, engine: None)
        yield


@pytest.fixture(autouse=True)
def full_precision():
    """No TF32 on a GPU: executors are compared in real float32."""
    kept = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = kept
