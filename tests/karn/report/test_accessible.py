"""Report pages pass an HTML validator and axe's accessibility check, in light and dark.

`make test-browser` installs Chromium, axe-core and html-validate; ESPER_NODE_MODULES names their
folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest

from esper.growing.result import GrowResult
from esper.karn.report.page import page
from esper.storage.sessions import recorded_session
from serve_browser import CHROMIUM, FLAGS
from view_support import compare_run, grow_run, policy_run
from web_support import REQUIRED

MODULES = Path(os.environ.get("ESPER_NODE_MODULES", "node_modules"))
RULES = {
    "extends": ["html-validate:recommended"],
    "rules": {
        "long-title": "off",  # names of runs are long
        "no-inline-style": "error",
        "svg-focusable": "off",  # for Internet Explorer
        "no-redundant-role": "error",
    },
}
ASK = """
<script>%s</script>
<script>axe.run().then(found => {
  const said = found.violations.map(one => one.id + ": " + one.nodes[0].html.slice(0, 200));
  document.body.innerHTML = "<pre id=said>" + JSON.stringify(said).replace(/</g, "&lt;") + "</pre>";
});</script>
"""

pytestmark = pytest.mark.skipif(
    not REQUIRED and (CHROMIUM is None or not (MODULES / "axe-core").exists()),
    reason="needs Chromium, axe-core and html-validate: make test-browser",
)


def judged(run: Path) -> Path:
    """A learner whose evaluation is written."""
    outcome = {"score_E": [0.5, 0.6], "added_params_E": [8, 9], "added_macs_E": [8, 9]}
    one = {"outcome": outcome, "test_E": [0.5, 0.6], "compute_E": [1.0, 1.0]}
    (run / "report").mkdir(exist_ok=True)
    names = ("ppo", "static-final", "wait")
    (run / "report" / "learning.json").write_text(json.dumps({"judged": dict.fromkeys(names, one)}))
    return run


def interrupted(run: Path) -> Path:
    """A comparison that can be resumed."""
    with contextlib.suppress(KeyboardInterrupt), recorded_session(run, "esper compare wait 'a b'"):
        raise KeyboardInterrupt
    return run


@pytest.fixture(scope="module")
def pages(tmp_path_factory, ppo) -> Path:
    root = tmp_path_factory.mktemp("accessible")
    grown = grow_run(root / "grown")
    texts = {
        "ppo": page(ppo),
        "policy": page(policy_run(root / "policy")),
        "grow": page(grown),
        "judged": page(judged(shutil.copytree(ppo, root / "judged"))),
        "compare": page(compare_run(root / "compare")),
        "interrupted": page(interrupted(root / "compare")),
    }
    (root / "pages").mkdir()
    for name, text in texts.items():
        (root / "pages" / f"{name}.html").write_text(text)
    GrowResult.load(grown).report(root / "pages" / "grown.html")
    return root / "pages"


def violations(path: Path, dark: bool) -> list[str]:
    """What axe complains about; the copy it runs in may run scripts."""
    axe = (MODULES / "axe-core" / "axe.min.js").read_text()
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", path.read_text())
    copy = path.with_suffix(".axe.html")
    copy.write_text(text.replace("</body>", f"{ASK % axe}</body>"))
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless", *FLAGS, *scheme, "--virtual-time-budget=20000",
               "--dump-dom", f"file://{copy}"]  # fmt: skip
    said = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    copy.unlink()
    match = re.search(r'<pre id="said">(.*?)</pre>', said, re.DOTALL)
    assert match, said[-500:]
    found: list[str] = json.loads(unescape(match[1]))
    return found


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing(pages, dark):
    found = {path.stem: violations(path, dark) for path in sorted(pages.glob("*.html"))}
    assert found == {name: [] for name in found}


def test_the_pages_are_valid_html(pages):
    (pages / ".htmlvalidate.json").write_text(json.dumps(RULES | {"root": True}))
    command = [str(MODULES / ".bin" / "html-validate"), *map(str, sorted(pages.glob("*.html")))]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=pages)
    assert ran.returncode == 0, ran.stdout[-4000:]


def test_the_pages_are_small(pages):
    assert all(path.stat().st_size < 3_000_000 for path in pages.glob("*.html"))
