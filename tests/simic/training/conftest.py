"""One process that forks trainers, for all tests that kill or interrupt them."""

from __future__ import annotations

import pytest

from run_server import run_server


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    with run_server(tmp_path_factory.mktemp("jobs")) as it:
        yield it
