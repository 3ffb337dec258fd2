"""The documentation site: every page is in it, links lead somewhere, and `make docs` builds it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from api_tables import offered
from check_site import main as check_site
from docs_site import COPIED, modules, reference

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
NAV = (ROOT / "mkdocs.yml").read_text().split("\nnav:")[1].split("\n\n")[0]
MKDOCS = ROOT / ".venv-docs" / "bin" / "mkdocs"


def name_of(page: Path) -> str:
    return page.relative_to(DOCS).as_posix()


def text_of(page: Path) -> str:
    """A page without its code, where brackets are no links and `#` starts a comment."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", text_of(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_page_is_in_the_navigation_once():
    listed = re.findall(r": ([\w/-]+\.md)$", NAV, flags=re.MULTILINE)
    assert sorted(listed) == sorted([*map(name_of, PAGES), *COPIED]), "nav in mkdocs.yml"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_and_anchors_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)]+)\)", text_of(page)):
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_a_module_of_the_reference_lists_what_it_offers():
    assert {"esper", "esper.kasmina", "esper.leyline"} <= set(modules())
    shown = re.findall(r"^::: esper\.(\w+)$", reference("esper"), flags=re.MULTILINE)
    assert shown == offered("esper")


def test_the_gallery_has_every_picture_and_what_made_it():
    sections = (DOCS / "gallery.md").read_text().split("![")[1:]
    shown = {re.search(r"\((img/.*?)\)", part)[1]: part for part in sections}
    assert set(shown) == {name_of(picture) for picture in (DOCS / "img").iterdir()}
    for picture, part in shown.items():
        assert "```sh" in part or "Drawn by hand" in part, picture


def test_the_front_page_shows_code_that_a_tutorial_runs():
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / "index.md").read_text(), flags=re.DOTALL)
    assert code in (DOCS / "tutorials" / "image_classifier.md").read_text()


def site_of(folder: Path, body: str) -> Path:
    (folder / "other.html").write_text('<h1 id="top">other</h1>')
    (folder / "index.html").write_text(body)
    return folder


def test_a_site_whose_links_lead_somewhere_passes(tmp_path, capsys):
    body = '<a href="other.html#top"></a><a href="https://example.org/x#y"></a>'
    assert check_site([str(site_of(tmp_path, body))]) == 0
    assert "2 pages, 0 broken" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('<a href="gone.html">', "gone.html: no such file"),
        ('<a href="other.html#gone">', "other.html#gone: no such anchor"),
        ('<a href="#gone">', "#gone: no such anchor"),
        ('<img src="img/gone.png">', "img/gone.png: no such file"),
        ('<script src="https://cdn.example/x.js">', "x.js: loaded from the network"),
    ],
)
def test_what_leads_nowhere_is_named(body, said, tmp_path, capsys):
    assert check_site([str(site_of(tmp_path, body))]) == 1
    assert f"index.html: {said}" in capsys.readouterr().out.replace("https://cdn.example/", "")


@pytest.mark.slow
@pytest.mark.skipif(not MKDOCS.exists(), reason="`make docs` installs mkdocs")
def test_the_site_builds_without_a_warning(tmp_path):
    command = [str(MKDOCS), "build", "--quiet", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert check_site([str(tmp_path / "site")]) == 0
