"""Settings every test runs under."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from esper.simic.training.runs.kept_members import KeptMembers

SLOW_TESTS = Path(__file__).parent / "slow_tests.txt"


@pytest.hookimpl(tryfirst=True)  # before -m deselects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the list as slow."""
    lines = SLOW_TESTS.read_text().splitlines()
    listed = {line for line in lines if line and not line.startswith("#")}
    for item in items:
        if {item.nodeid, item.nodeid.split("::")[0]} & listed:
            item.add_marker(pytest.mark.slow)


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
