"""Settings that tests on a GPU run under."""

from __future__ import annotations

from cuda_support import exact as exact
