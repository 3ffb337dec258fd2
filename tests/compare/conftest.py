"""Commands run in an empty folder: those that train create ./runs in it."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path_factory.mktemp("cwd"))
