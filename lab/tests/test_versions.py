"""The lab fits the Esper it stands beside."""

from __future__ import annotations

import tomllib
from pathlib import Path

import esper
import esper_lab

LAB = Path(__file__).parents[1]


def test_it_requires_the_version_of_esper_that_it_was_made_for():
    project = tomllib.loads((LAB / "pyproject.toml").read_text())["project"]
    assert f"esper-morph=={esper.__version__}" in project["dependencies"]
    assert esper_lab.__version__ == esper.__version__
