"""Takes the pictures of docs/serve.md: `python scripts/serve_screenshots.py RUNS`.

RUNS holds two training runs or more, and a grow run; with a grow run alone the picture of a search
is taken. Needs the extras `serve` and `test-extra`, Pillow (which the lab brings) and Chromium.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

from esper.karn import views
from esper.karn.web.places import id_of
from serve_browser import browser, server, take_picture

PICTURES: Final = Path(__file__).parents[1] / "docs" / "img"
WIDE: Final = (1200, 860)
TALL: Final = (1280, 1280)
"""For a search: its plots, the card and the lineage."""
NARROW: Final = (400, 860)


def main(runs: Path) -> None:
    """Write `serve_*.png`."""
    trained = [run for run in views.list_runs(runs) if run.kind is views.RunKind.TRAIN]
    grown = [run for run in views.list_runs(runs) if run.kind is views.RunKind.GROW]
    ids = [id_of(run.name) for run in trained]
    if len(ids) == 1 or not grown:
        sys.exit(f"{runs} has {len(ids)} training runs, {len(grown)} grow runs: give two and one")
    with server(runs) as (address, _):
        with browser(*TALL) as page:
            shoot(page, f"{address}runs/{id_of(grown[-1].name)}", "grow", "validation")
        if ids:
            shoot_training(address, ids)


def shoot_training(address: str, ids: list[str]) -> None:
    """The list, a run, a comparison of two."""
    with browser(*WIDE) as page:
        shoot(page, address, "list")
        shoot(page, f"{address}runs/{ids[-1]}", "run")
    with browser(*WIDE, "dark") as page:
        shoot(page, f"{address}compare?run={ids[-1]}&run={ids[0]}", "compare")
    with browser(*NARROW, "dark") as page:
        shoot(page, f"{address}runs/{ids[-1]}", "phone")


def shoot(page: Any, address: str, name: str, score: str = "") -> None:
    """Write `serve_NAME.png`; `score`: the one that is chosen."""
    page.goto(address)
    page.locator("main canvas, main tbody tr").first.wait_for()
    if score:
        page.locator("#frontier select").first.select_option(score)
    page.wait_for_timeout(3000)  # plots follow one after the other
    take_picture(page, PICTURES / f"serve_{name}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
