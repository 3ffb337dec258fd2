"""Takes the pictures of sections of reports: `python scripts/report_screenshots.py RUN`.

RUN is a training run of a learner that was judged. Needs the extra `test-extra`, Pillow
(which the lab brings) and Chromium.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from esper.karn.report.page import write_page
from serve_browser import browser, take_picture

PICTURES: Final = Path(__file__).parents[1] / "docs" / "img"
SECTIONS: Final = {
    "report_lives": "Life lines of seeds",
    "report_judged": "Judged on fresh hosts",
    "report_network": "Best network",
}
"""Name of the picture -> heading of the section."""


def main(run: Path) -> None:
    """Write `report_*.png`."""
    path = write_page(run)
    with browser(1000, 900) as page:
        page.goto(path.absolute().as_uri())
        for name, title in SECTIONS.items():
            heading = page.get_by_role("heading", name=title)
            section = page.locator("main > section").filter(has=heading)
            take_picture(section, PICTURES / f"{name}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
