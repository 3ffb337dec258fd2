"""Takes the pictures of docs/serve.md: `python scripts/serve_screenshots.py RUNS`.

RUNS holds two training runs or more, and a grow run. Needs the extras `serve` and `test-extra`, and
Chromium.
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
    grown = [run for run in views.list_runs(runs) if run.kind is views.RunKind.GROW]
    ids = [id_of(run.name) for run in trained]
    if len(ids) < 2 or not grown:
        sys.exit(f"{runs} has {len(ids)} training runs, {len(grown)} grow runs: give two and one")
    compared = f"compare?run={ids[-1]}&run={ids[0]}"
    with server(runs) as (address, _):
        with browser(*WIDE) as page:
            shoot(page, address, "list")
            shoot(page, f"{address}runs/{ids[-1]}", "run")
            shoot(page, f"{address}runs/{id_of(grown[-1].name)}", "grow", "validation")
        with browser(*WIDE, "dark") as page:
            shoot(page, address + compared, "compare")
        with browser(*NARROW, "dark") as page:
            shoot(page, f"{address}runs/{ids[-1]}", "phone")


def shoot(page: Any, address: str, name: str, score: str = "") -> None:
    """Write `serve_NAME.png`; `score`: the one that is chosen."""
    page.goto(address)
    page.locator("main canvas, main tbody tr").first.wait_for()
    if score:
        page.locator("#frontier select").first.select_option(score)
    page.wait_for_timeout(3000)  # plots follow one after the other
    page.screenshot(path=PICTURES / f"serve_{name}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
