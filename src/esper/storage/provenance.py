"""Package versions and the git commit of Esper's source, recorded with every session."""

from __future__ import annotations

import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version
from typing import Final

import esper

_PACKAGES: Final = ("torch", "numpy", "safetensors")


def versions() -> tuple[tuple[str, str], ...]:
    """(package, version) pairs that results depend on."""
    own = [("esper", esper.__version__), ("python", python_version())]
    return (*own, *((name, package_version(name) or "unknown") for name in _PACKAGES))


def package_version(package: str) -> str:
    """Version of a package; empty if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def git_revision() -> str | None:
    """Git commit of Esper's source; None if it is not in its own repository."""
    home = Path(esper.__file__).parent
    if _git(home, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None  # installed, or inside another repository
    return _git(home, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _git(home: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(home), *arguments], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
