"""docs/api.md lists what modules offer, in the words of their docstrings."""

from __future__ import annotations

import importlib
import importlib.util

import pytest

from api_tables import BLOCK, PAGE, definition, offered, written

MODULES = tuple(found[1] for found in BLOCK.finditer(PAGE.read_text()))


def test_tables_are_those_of_the_docstrings():
    page = PAGE.read_text()
    assert written(page) == page, "python scripts/api_tables.py writes docs/api.md anew"


def test_every_class_and_function_has_a_sentence():
    missing = [
        f"{module}.{name}"
        for module in MODULES
        for name in offered(module)
        if definition(module, name)[0] is not None and not definition(module, name)[1]
    ]
    assert not missing


@pytest.mark.parametrize("module", MODULES)
def test_what_a_module_offers_is_listed(module: str):
    if module == "esper.gym" and importlib.util.find_spec("gymnasium") is None:
        pytest.skip("gymnasium is not installed")
    public = {name for name in importlib.import_module(module).__all__ if name[0] != "_"}
    assert set(offered(module)) == public


def test_the_modules_for_users_are_listed():
    assert {"esper", "esper.sklearn", "esper.gym"} <= set(MODULES)
