"""What Esper's claims are measured with: audits, their records as a benchmark, and sweeps.

`esper` finds its commands by the entry points of the package; Esper itself never imports it.
"""

from pathlib import Path

from esper.leyline.user_errors import count_as_library

__version__ = "0.1.0"
"""The one place of the version: the build reads it from here."""

count_as_library(Path(__file__).parent)
