"""One process that has imported everything and forks a process per command; a run to damage."""

from __future__ import annotations

import pytest

from damage_support import Sound
from fuzz_support import command_server


@pytest.fixture(scope="session")
def commands(tmp_path_factory):
    with command_server(tmp_path_factory.mktemp("commands")) as it:
        yield it


@pytest.fixture(scope="session")
def sound(commands, tmp_path_factory) -> Sound:
    return Sound(commands, tmp_path_factory.mktemp("sound"))
