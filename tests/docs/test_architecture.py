"""The map of the code and the decisions: what they name exists, and the order is the contracts'."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "esper"
MAP = ROOT / "docs" / "architecture.md"
MAX_LINES = 120
MAX_COLUMNS = 140
STRICT = ("docs/architecture.md", "docs/decisions.md", "CONTRIBUTING.md")
PAGES = [*STRICT, *sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "docs").glob("*.md"))]
HOMES = (ROOT, SOURCE, SOURCE.parent, ROOT / "lab" / "src", ROOT / "tests", ROOT / "lab")
SUFFIXES = r"\.(?:py|cu|c|h|toml|txt|md)"
FILES = {
    path.relative_to(ROOT).as_posix()
    for home in ("src", "tests", "lab", "scripts", "docs")
    for path in (ROOT / home).rglob("*")
    if path.is_file()
}


def code_of(text: str) -> list[str]:
    """What each line of a page has as code."""
    lines, fenced = [], False
    for line in text.splitlines():
        fenced ^= line.startswith("```")
        lines.append(line if fenced else " ".join(re.findall(r"`([^`]+)`", line)))
    return lines


def paths(text: str) -> set[str]:
    """Files and folders that a page names as code; a bare name lies beside the file before it."""
    named, found = rf"(?<![\w./~$<-])((?:[\w*-]+/)*)([\w*-]+{SUFFIXES})?(?![\w./<-])", set()
    for line in code_of(text):
        before = ""
        for folder, file in re.findall(named, line):
            if folder or file:
                beside = not folder and not exists(file)
                before = before if beside else folder
                found.add(before + file)
    return found


def exists(path: str) -> bool:
    return any(any(home.glob(path)) for home in HOMES)


def package_rows() -> list[str]:
    """Packages of the map's first table, from the top to the ground."""
    table = MAP.read_text().split("## Packages")[1].split("\n## ")[0]
    return re.findall(r"^\| `(\w+)`", table, flags=re.MULTILINE)


@pytest.mark.parametrize("page", STRICT)
def test_every_file_and_folder_that_the_map_names_exists(page):
    named = paths((ROOT / page).read_text())
    assert len(named) > 20, "no paths found: is the page still written with `paths` as code?"
    assert not sorted(path for path in named if not exists(path)), page


@pytest.mark.parametrize("page", sorted(set(PAGES) - set(STRICT)))
def test_modules_that_a_page_names_exist(page):
    """Other pages may name the end of a path; files of a user have no folder or another one."""
    ours = {home for path in FILES if path.endswith(".py") for home in path.split("/")[:-1]}
    named = {path for path in paths((ROOT / page).read_text()) if path.endswith(".py")}
    named = {path for path in named if path.split("/")[0] in ours and path.islower()}
    ends = [f"/{path}" for path in FILES]
    assert not [path for path in named if not any(end.endswith(f"/{path}") for end in ends)], page


@pytest.mark.parametrize("page", STRICT)
def test_names_are_in_the_files_that_the_map_gives_for_them(page):
    """`file.py`: `Name`, `other` says that the file defines both."""
    pair = r"`([\w/]+\.py)`: ((?:`\w+(?:\.\w+)?`(?:, | and )?)+)"
    for path, names in re.findall(pair, (ROOT / page).read_text()):
        (file,) = (home / path for home in HOMES if (home / path).is_file())
        for name in re.findall(r"`(?:\w+\.)?(\w+)`", names):
            defined = rf"^\s*(?:def|class) {name}\b|^{name}\b.*="
            assert re.search(defined, file.read_text(), flags=re.MULTILINE), f"{path}: {name}"


def test_the_map_has_a_row_for_every_package():
    packages = {p.name for p in SOURCE.iterdir() if (p / "__init__.py").exists()} | {"sklearn"}
    assert sorted(package_rows()) == sorted(packages)


def test_the_map_orders_packages_as_the_import_contract_does():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = (c["layers"] for c in contracts["contracts"] if c["id"] == "layers")
    level = {name: at for at, layer in enumerate(layers) for name in re.findall(r"\w+", layer)}
    rows = [level[name] for name in package_rows() if name != "karn"]
    assert rows == sorted(rows)


def test_the_map_is_two_pages():
    lines = MAP.read_text().splitlines()
    assert len(lines) <= MAX_LINES
    assert not [line for line in lines if len(line) > MAX_COLUMNS]
