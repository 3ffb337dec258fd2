"""Names load when first used, from the home their package says, and type checkers see the same."""

import ast
import importlib
import importlib.util
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import esper
from support import refused

ROOT = Path(esper.__file__).parent
LAZY = sorted(p for p in ROOT.rglob("*.py") if "= attach(" in p.read_text() and p.stem != "lazy")


def dotted_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def seen_by_type_checkers(path: Path) -> dict[str, str]:
    """Name -> module it is imported from under TYPE_CHECKING."""
    guard = next(node for node in ast.parse(path.read_text()).body if isinstance(node, ast.If))
    imports = [node for node in guard.body if isinstance(node, ast.ImportFrom)]
    assert all(alias.asname == alias.name for node in imports for alias in node.names)
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def test_there_are_lazy_modules_to_check():
    assert len(LAZY) >= 10


EXTRAS = {"esper.gym.sb3_env": "stable_baselines3"}
"""Modules that need a package which the default tests do without."""


@pytest.mark.parametrize("path", LAZY, ids=dotted_name)
def test_what_is_offered_is_what_type_checkers_see(path: Path):
    module = importlib.import_module(dotted_name(path))
    seen = seen_by_type_checkers(path)
    assert sorted(seen) == module.__all__ == dir(module)
    for name, home in seen.items():
        if importlib.util.find_spec(EXTRAS.get(home, "esper")) is None:
            assert "pip install" in refused(lambda name=name: getattr(module, name))
            continue
        assert getattr(module, name) is getattr(importlib.import_module(home), name)


@pytest.mark.parametrize("path", LAZY, ids=dotted_name)
def test_a_misspelt_name_is_named_with_its_module(path: Path):
    name = dotted_name(path)
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'misspelt'"):
        _ = importlib.import_module(name).misspelt


def test_a_home_loads_at_first_use_and_once(tmp_path: Path):
    """In a fresh interpreter: not at import, at the first access, and no second time."""
    package = tmp_path / "shop"
    package.mkdir()
    (package / "tea.py").write_text("price = object()\n")
    (package / "__init__.py").write_text(
        "from esper.leyline.lazy import attach\n"
        "if 0:\n    from math import pi\n    from shop.tea import price\n"
        "else:\n    __getattr__, __dir__, __all__ = attach(__name__)\n"
    )
    code = """
        import sys, math
        sys.path.insert(0, sys.argv[1])
        import shop
        assert "shop.tea" not in sys.modules and "price" not in vars(shop)
        price = shop.price
        assert vars(shop)["price"] is price is sys.modules["shop.tea"].price
        assert shop.pi is math.pi
        from shop import *
        assert pi is math.pi and dir(shop) == ["pi", "price"]
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
