"""A small audit that is run once for all tests of this folder."""

from __future__ import annotations

import pytest

from audit_support import FinishedAudit


@pytest.fixture(scope="session")
def small(tmp_path_factory) -> FinishedAudit:
    """Tests write elsewhere: its folder has records only."""
    return FinishedAudit(tmp_path_factory.mktemp("audit") / "small")
