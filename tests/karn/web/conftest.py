"""A folder of real runs and a client of its dashboard; tests only read the runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")
pytest.importorskip("httpx", reason="needs httpx")

from fastapi.testclient import TestClient

from esper.karn.web.access import access_for
from esper.karn.web.app import make_app
from esper.karn.web.places import RunsFolder
from view_support import ppo_run
from web_support import ADDRESS, HOSTILE, REPORT, comparison


@pytest.fixture(scope="session")
def runs(tmp_path_factory) -> Path:
    """`ppo` and a comparison; the same run under a hostile name; `broken` cannot be read."""
    root = tmp_path_factory.mktemp("served") / "runs"
    run = ppo_run(root / "ppo", rounds=2)
    (run / "report.html").write_text(REPORT)
    shutil.copytree(run, root / HOSTILE)
    shutil.copytree(run, root / "broken")
    (root / "broken" / "run.json").write_text("{")
    comparison(root / "cmp")
    return root


@pytest.fixture
def client(runs) -> TestClient:
    """A browser on this machine."""
    app = make_app(RunsFolder(runs), access_for("127.0.0.1", None))
    return TestClient(app, base_url=ADDRESS, follow_redirects=False)
