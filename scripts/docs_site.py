"""The pages of the documentation site that no file in docs/ holds; mkdocs.yml loads it as a hook.

For each module that docs/api.md lists: a page with the docstrings of what it offers, which
the names on that page link to. CHANGELOG.md and CONTRIBUTING.md are pages, too.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from api_tables import BLOCK, PAGE, ROOT, documented, tree_of

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

COPIED = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}
NAME = re.compile(r"`(\w+)`")
FIRST_CELL = re.compile(r"^\| `(\w+)(.*?)` \|", re.MULTILINE)


def modules() -> list[str]:
    """The modules that docs/api.md lists."""
    return [found[1] for found in BLOCK.finditer(PAGE.read_text())]


def reference(module: str) -> str:
    """The page of a module, as Markdown that mkdocstrings fills."""
    said = ast.get_docstring(tree_of(module)) or ""
    names = "\n\n".join(f"::: {module}.{name}" for name in documented(module))
    return f"# {module}\n\n{said.partition(chr(10))[0]}\n\n{names}\n"


def linked(found: re.Match[str]) -> str:
    """A table or list of docs/api.md whose names link to the page of the module."""
    if found[2]:
        return NAME.sub(lambda name: f"[`{name[1]}`][{found[1]}.{name[1]}]", found[0])
    return FIRST_CELL.sub(
        lambda cell: f"| [`{cell[1]}{cell[2]}`][{found[1]}.{cell[1]}] |", found[0]
    )


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages of the modules below the reference."""
    pages = [{module: f"reference/{module}.md"} for module in modules()]
    (section,) = [part["Reference"] for part in config.nav or [] if "Reference" in part]
    section.append({"Modules": pages})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    from mkdocs.structure.files import File

    texts = {f"reference/{module}.md": reference(module) for module in modules()}
    texts |= {page: (ROOT / source).read_text() for page, source in COPIED.items()}
    for page, text in texts.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Link the names in docs/api.md."""
    return BLOCK.sub(linked, markdown) if page.file.src_uri == PAGE.name else markdown
