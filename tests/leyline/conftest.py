"""What the tests of leyline share."""

from collections.abc import Callable
from typing import Any

import pytest

from payload_support import build


@pytest.fixture(name="build")
def build_fixture() -> Callable[..., Any]:
    return build
