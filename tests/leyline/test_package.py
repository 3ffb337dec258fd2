"""The package as a whole: frozen and slotted, lazy, complete, free of torch."""

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from dataclasses import is_dataclass
from pathlib import Path
from types import ModuleType
from typing import get_origin, get_type_hints

import numpy as np
import pytest

import esper.leyline
from esper.leyline import ActionOutcome, ActionSpec
from esper.leyline.arrays import ArrayStruct

HOME = Path(esper.leyline.__path__[0])
MODULES = [
    importlib.import_module(f"esper.leyline.{found.name}")
    for found in pkgutil.iter_modules(esper.leyline.__path__)
]
DATACLASSES = [
    value
    for module in MODULES
    for value in vars(module).values()
    if isinstance(value, type) and is_dataclass(value) and value.__module__ == module.__name__
]

PUBLIC_API = (
    "SeedStage",
    "LifecycleOp",
    "ActionSpec",
    "ActionOutcome",
    "RewardInputs",
    "BatchSummary",
    "TelemetryEvent",
    "TelemetryEventType",
    "TelemetryLevel",
    "HostProtocol",
    "PolicyProtocol",
    "RewardProtocol",
    "EngineListener",
    "PlantingPolicy",
    "AnomalyReport",
    "RewardComponentsTelemetry",
    "TelemetryConfig",
    "LayerGradientStats",
    "ActionExecutionResult",
)


def loaded_by(code: str) -> set[str]:
    """Modules in memory after `code`, in a fresh interpreter."""
    source = str(HOME.parents[1])
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; sys.path.insert(0, {source!r})\n{code}\nprint(*sys.modules)",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


def defined_in(module: ModuleType) -> set[str]:
    """Public names a module's own source defines, type variables left out."""
    names: set[str] = set()
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return {name for name in names if not name.startswith("_")}


def test_there_are_dataclasses_to_check():
    assert len(DATACLASSES) > 40


@pytest.mark.parametrize("cls", DATACLASSES, ids=lambda cls: cls.__name__)
def test_dataclasses_are_frozen_and_slotted(cls: type):
    assert cls.__dataclass_params__.frozen
    assert not any("__dict__" in vars(base) for base in cls.__mro__)


@pytest.mark.parametrize("cls", DATACLASSES, ids=lambda cls: cls.__name__)
def test_array_fields_are_checked_by_their_names(cls: type):
    """An array without shape letters, or outside an ArrayStruct, would not be checked."""
    hints = get_type_hints(cls)
    arrays = {name for name, hint in hints.items() if get_origin(hint) is np.ndarray}
    lettered = {name for name in hints if name[-1].isupper()}
    if cls in (ActionSpec, ActionOutcome):  # all [E], checked by their own __post_init__
        assert arrays
        assert not lettered
        return
    assert arrays == lettered
    if arrays:
        assert issubclass(cls, ArrayStruct)
        assert cls.__eq__ is ArrayStruct.__eq__


def test_what_is_exported_is_that_of_a_module():
    defined = set().union(*(defined_in(module) for module in MODULES))
    assert set(esper.leyline.__all__) <= defined


@pytest.mark.parametrize("name", PUBLIC_API)
def test_public_api_is_importable(name: str):
    assert hasattr(esper.leyline, name)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'SeedStages'"):
        _ = esper.leyline.SeedStages


def test_importing_the_package_loads_no_numpy():
    assert "numpy" not in loaded_by("import esper.leyline")


def test_stages_and_slots_load_no_numpy():
    assert "numpy" not in loaded_by(
        "from esper.leyline import SeedStage, InjectionSpec, EsperError"
    )


def test_no_name_loads_torch_or_another_part_of_esper():
    loaded = loaded_by("from esper.leyline import *")
    assert "esper.leyline.telemetry" in loaded
    assert "torch" not in loaded
    ours = {name for name in loaded if name.startswith("esper.")}
    assert {name for name in ours if not name.startswith("esper.leyline")} == set()


@pytest.mark.parametrize("path", sorted(HOME.glob("*.py")), ids=lambda path: path.name)
def test_files_stay_short(path: Path):
    assert len(path.read_text().splitlines()) < 600
