"""Runs that the tests of views share; tests only read them, or copy them first."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from view_support import compare_run, grow_run, policy_run


@pytest.fixture
def copy(ppo, tmp_path) -> Path:
    return shutil.copytree(ppo, tmp_path / "run")


@pytest.fixture(scope="session")
def policy(tmp_path_factory) -> Path:
    return policy_run(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="session")
def grown(tmp_path_factory) -> Path:
    return grow_run(tmp_path_factory.mktemp("grown"))


@pytest.fixture(scope="session")
def compared(tmp_path_factory) -> Path:
    return compare_run(tmp_path_factory.mktemp("compared") / "cmp")
