"""Esper grows neural networks while they train.

This module imports nothing, so `import esper` and `--help` stay fast; names live in the packages.
"""

__version__ = "0.1.0"
"""The one place of the version: the build reads it from here."""

__all__ = ["__version__"]
