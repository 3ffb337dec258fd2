"""README is a shop window: short, two pictures, code that runs, commands and links that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import esper
from esper.scripts.cli.command import read_command_line
from esper.scripts.grow import Grow
from page_support import shell_lines

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text()
FRONT = [ROOT / "README.md", *(DOCS / f"{name}.md" for name in
         ("index", "grow", "grow-reference", "results", "study"))]  # fmt: skip
MAX_LINES = 120
MAX_WORDS = {"grow": 900, "results": 2000, "index": 500}
MAX_WORDS_OF_GROW = 3500


def words(name: str) -> int:
    return len((DOCS / f"{name}.md").read_text().split())


def test_its_code_is_that_of_a_tutorial_which_is_run():
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert code in (DOCS / "tutorials" / "image_classifier.md").read_text(), "test_tutorials.py"


def test_it_fits_its_frame():
    assert len(README.splitlines()) <= MAX_LINES
    assert re.findall(r"!\[.*?\]\((.*?)\)", README) == [
        "docs/img/duel_cuda.svg", "docs/img/serve_grow.png",
    ]  # fmt: skip
    sections = re.findall(r"^## (.*)$", README, flags=re.MULTILINE)
    assert sections == ["Install", "Two commands", "Grow your model",
                        "Study growth with a learned controller", "More"]  # fmt: skip


def test_the_pages_of_grow_and_of_results_stay_short():
    assert {name: words(name) for name, most in MAX_WORDS.items() if words(name) > most} == {}
    assert words("grow") + words("grow-reference") <= MAX_WORDS_OF_GROW


@pytest.mark.parametrize("name", ["index", "grow", "results"])
def test_a_page_that_convinces_begins_with_a_picture(name):
    text = (DOCS / f"{name}.md").read_text()
    assert "![" in text.split("```")[0], "before any code"


@pytest.mark.parametrize("page", FRONT, ids=lambda page: page.stem)
def test_the_texts_of_links_are_words(page):
    texts = re.findall(r"\[([^\]]*)\]\([^)]+\)", page.read_text())
    assert texts
    assert not [text for text in texts if re.search(r"\.(md|py|json)`?$", text)]


def test_its_commands_and_links_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    made = re.findall(r"^make ([a-z-]+)", README, flags=re.MULTILINE)
    assert made == ["run", "test"]
    assert set(made) <= targets
    grown = [argv[2:] for argv in shell_lines(ROOT / "README.md") if argv[:2] == ["esper", "grow"]]
    assert [read_command_line(Grow, argv).demo for argv in grown] == [True, False]
    for link in re.findall(r"\]\(([^)h][^)#]*)", README):
        assert (ROOT / link).exists(), link


def test_the_citation_names_the_version_of_the_package():
    cited = (ROOT / "CITATION.cff").read_text().splitlines()
    assert f"version: {esper.__version__}" in cited
