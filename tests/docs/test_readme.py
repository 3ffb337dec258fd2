"""The README's code runs as written, and its commands exist."""

from __future__ import annotations

import re
from pathlib import Path

import esper

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_the_code_runs_as_written(tmp_path, monkeypatch):
    first, block = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    tutorial = (ROOT / "docs" / "tutorials" / "image_classifier.md").read_text()
    assert first in tutorial, "test_tutorials.py runs it"
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(block, "README.md", "exec"), names)
    assert (tmp_path / "out" / "my_population" / "manifest.json").exists()
    stats = names["stats"]
    seeded = stats.shadow_loss_ES.isfinite().any(dim=1)
    assert seeded.nonzero().flatten().tolist() == [0, 3]


def test_its_commands_and_links_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for command in re.findall(r"^make ([a-z-]+)", README, flags=re.MULTILINE):
        assert command in targets
    for link in re.findall(r"\]\(([^)h][^)]*)\)", README):
        assert (ROOT / link).exists(), link


def test_the_citation_names_the_version_of_the_package():
    cited = (ROOT / "CITATION.cff").read_text().splitlines()
    assert f"version: {esper.__version__}" in cited
