"""Takes the pictures of docs/serve.md: `python scripts/serve_screenshots.py RUNS`.

RUNS holds two training runs or more. Needs the extras `serve` and `test-extra`, and Chromium.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

from esper.karn import views
from esper.karn.web.places import id_of
from serve_browser import browser, server

PICTURES: Final = Path(__file__).parents[1] / "docs" / "img"
WIDE: Final = (1200, 860)
NARROW: Final = (400, 860)


def main(runs: Path) -> None:
    """Write `serve_*.png`."""
    trained = [run for run in views.list_runs(runs) if run.kind is views.RunKind.TRAIN]
    ids = [id_of(run.name) for run in trained]
    if len(ids) < 2:
        sys.exit(f"{runs} has {len(ids)} training runs: two are needed")
    compared = f"compare?run={ids[-1]}&run={ids[0]}"
    with server(runs) as (address, _):
        for name, path, size, scheme in (
            ("list", "", WIDE, "light"),
            ("run", f"runs/{ids[-1]}", WIDE, "light"),
            ("compare", compared, WIDE, "dark"),
            ("phone", f"runs/{ids[-1]}", NARROW, "dark"),
        ):
            with browser(*size, scheme) as page:
                page.goto(address + path)
                _settle(page)
                page.screenshot(path=PICTURES / f"serve_{name}.png")


def _settle(page: Any) -> None:
    page.locator("main canvas, main tbody tr").first.wait_for()
    page.wait_for_timeout(1500)  # plots follow one after the other


if __name__ == "__main__":
    main(Path(sys.argv[1]))
