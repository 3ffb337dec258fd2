"""Settings that tests on a GPU run under."""

from __future__ import annotations

import pytest

from cuda_support import exact as exact
from esper.tolaria.runtime import CUBLAS_DETERMINISTIC, CUBLAS_ENV_VAR


@pytest.fixture(autouse=True)
def deterministic_cublas(monkeypatch):
    """What profile `exact` asks for on a GPU, also where a file runs alone."""
    monkeypatch.setenv(CUBLAS_ENV_VAR, CUBLAS_DETERMINISTIC[0])
