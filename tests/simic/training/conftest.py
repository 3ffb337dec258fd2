"""Runs to resume, and a process that forks trainers for tests that kill or interrupt them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from resume_support import trained
from run_driver import small_run
from run_server import run_server


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    with run_server(tmp_path_factory.mktemp("jobs")) as it:
        yield it


@pytest.fixture(scope="session")
def four(tmp_path_factory) -> Path:
    """A run of four rounds that nothing stopped, not to be changed."""
    return trained(tmp_path_factory.mktemp("four"), small_run(4))


@pytest.fixture(scope="session")
def two(tmp_path_factory) -> Path:
    """A run of two rounds, not to be changed."""
    return trained(tmp_path_factory.mktemp("two"), small_run(2))


@pytest.fixture
def copied(two, tmp_path) -> Path:
    return Path(shutil.copytree(two, tmp_path / two.name))
