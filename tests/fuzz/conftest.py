"""One process that has imported everything and forks a process per command."""

from __future__ import annotations

import pytest

from fuzz_support import command_server


@pytest.fixture(scope="session")
def commands(tmp_path_factory):
    with command_server(tmp_path_factory.mktemp("commands")) as it:
        yield it
