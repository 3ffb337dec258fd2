"""Checks the built documentation: links, anchors, and that nothing is loaded from the network.

python scripts/check_site.py site       prints what is broken; exit status 1 if anything is

Addresses of other sites in links are not opened.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "source": "src", "iframe": "src", "link": "href"}
"""Elements whose address a browser loads by itself, and the attribute that holds it."""


@dataclass
class Found:
    """What a page offers and asks for."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)


class PageReader(HTMLParser):
    """Collects anchors and addresses of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found = Found()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value}
        self.found.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.found.links.append(given["href"])
        elif tag in LOADED and LOADED[tag] in given and given.get("rel") != "canonical":
            self.found.loaded.append(given[LOADED[tag]])


def read_page(path: Path) -> Found:
    """What a page of the site offers and asks for."""
    reader = PageReader()
    reader.feed(path.read_text())
    return reader.found


def broken(page: Path, address: str, pages: dict[Path, Found]) -> str:
    """Why an address on a page leads nowhere; empty if it leads somewhere."""
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        return ""
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if target.is_dir():
        target /= "index.html"
    if not target.is_file():
        return "no such file"
    anchor = unquote(parts.fragment)
    if anchor and target in pages and anchor not in pages[target].anchors:
        return "no such anchor"
    return ""


def complaints(site: Path) -> Iterator[str]:
    """What is wrong in a built site, a line each."""
    pages = {path.resolve(): read_page(path) for path in sorted(site.rglob("*.html"))}
    for page, found in pages.items():
        if page.name == "404.html":  # its addresses start at the root of a server
            continue
        for address in dict.fromkeys([*found.links, *found.loaded]):
            if reason := broken(page, address, pages):
                yield f"{page.relative_to(site.resolve())}: {address}: {reason}"
        for address in dict.fromkeys(found.loaded):
            if urlsplit(address).netloc:
                yield f"{page.relative_to(site.resolve())}: {address}: loaded from the network"


def main(arguments: list[str]) -> int:
    """Check the site in the folder that is given."""
    site = Path(arguments[0])
    count = len(list(site.rglob("*.html")))
    if not count:
        print(f"{site}: no pages; `make docs` builds them", file=sys.stderr)
        return 1
    found = list(complaints(site))
    print("\n".join([*found, f"{count} pages, {len(found)} broken addresses"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
