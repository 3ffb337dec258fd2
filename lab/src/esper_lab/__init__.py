"""What Esper's claims are measured with: audits, their records as a benchmark, and sweeps.

`esper` finds its commands by the entry points of the package; Esper itself never imports it.
"""

__version__ = "0.1.0"
"""The one place of the version: the build reads it from here."""
