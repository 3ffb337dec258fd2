"""A training run that tests only read, or copy first."""

from __future__ import annotations

from pathlib import Path

import pytest

from view_support import ppo_run


@pytest.fixture(scope="session")
def ppo(tmp_path_factory) -> Path:
    """A learner, three rounds of two members, every step recorded."""
    return ppo_run(tmp_path_factory.mktemp("runs") / "ppo")
