"""What docs, messages and tests say about installing extras can be followed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = {
    path: path.read_text()
    for pattern in ("*.md", "docs/**/*.md", "{}src/**/*.py", "{}tests/**/*.py", "{}scripts/*.py")
    for above in ("", "lab/")
    for path in ROOT.glob(pattern.format(above))
    if path != Path(__file__)
}
HINT = re.compile(r"pip install\s[^`']*'([^'\[\n]*)\[([a-z,-]+)\]")
OWNED = re.compile(r"install_hint\(['\"]([a-z]+)")


def test_extras_are_installed_from_a_checkout():
    """No package is published under the name of the project."""
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    hints = [
        (path, *match.groups()) for path, text in TEXT.items() for match in HINT.finditer(text)
    ]
    owned = [(path, ".", name) for path, text in TEXT.items() for name in OWNED.findall(text)]
    assert len(hints) > 15
    assert len(owned) > 10
    for path, package, extras in hints + owned:
        assert package == ".", f"{path}: {package}[{extras}]"
        assert set(extras.split(",")) <= known.keys(), f"{path}: {extras}"


def test_messages_take_the_hint_from_its_owner():
    wrong = [path for path, text in TEXT.items() if "src" in path.parts and "pip install '" in text]
    assert [path.name for path in wrong] == ["errors.py"]
