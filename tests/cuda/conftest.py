"""Settings that tests on a GPU run under."""

from __future__ import annotations

import os

import pytest
import torch

from esper.tolaria.runtime import CUBLAS_DETERMINISTIC, CUBLAS_ENV_VAR, set_profile


@pytest.fixture
def exact(monkeypatch):
    """Profile `exact`, and afterwards torch's own settings."""
    monkeypatch.setitem(os.environ, CUBLAS_ENV_VAR, CUBLAS_DETERMINISTIC[0])
    set_profile("exact", torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark = False
