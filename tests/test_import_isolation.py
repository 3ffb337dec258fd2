"""What does an import of Esper cost, and do both copies of the pins agree?

Each import is measured in a fresh interpreter, because this one may already hold torch.
"""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"

HEAVY = {"torch", "scipy", "sklearn", "pyarrow", "rich", "tyro"}
IMPORT_LIMIT_MS = 100.0


def run_python(code: str) -> str:
    """Standard output of `code` in a fresh interpreter; its traceback if it fails."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def loaded_by(*modules: str) -> set[str]:
    """Top-level packages in memory after importing `modules`."""
    out = run_python(f"import sys, {', '.join(modules)}; print(*sys.modules)")
    return {name.partition(".")[0] for name in out.split()}


def dotted_name(path: Path) -> str:
    """The import name of a source file."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def names_of(pattern: str) -> list[str]:
    """Import names of the source files that match a pattern."""
    return sorted(dotted_name(path) for path in SOURCE.glob(pattern))


@pytest.mark.parametrize("package", names_of("esper/**/__init__.py"))
def test_package_init_is_lazy(package: str):
    assert loaded_by(package) & HEAVY == set()


def test_import_esper_loads_no_numpy():
    assert loaded_by("esper") & {"numpy"} == set()


def test_no_module_of_leyline_loads_torch():
    """Its `__init__` is lazy, so every module is imported by name."""
    assert loaded_by(*names_of("esper/leyline/**/*.py")) & {"torch"} == set()


def test_import_esper_is_fast():
    code = (
        "from time import perf_counter; start = perf_counter(); import esper; "
        "print((perf_counter() - start) * 1000)"
    )
    best_ms = min(float(run_python(code)) for _ in range(5))
    assert best_ms < IMPORT_LIMIT_MS


def test_networks_and_members_grow_without_torchs_compiler():
    """Its import takes over a second; MACs are the same once it is there."""
    code = """if True:
    import sys, torch
    from esper.kasmina.tracing import planted_model, trace_model
    model, x = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)), torch.randn(4, 3)
    trace = trace_model(model, x)
    network = planted_model(trace, {"r0c0": trace.fitting["r0c0"][0]}, 1)
    network(x).sum().backward()
    print("esper.kasmina.stacked.network" in sys.modules, end=" ")
    from esper.kasmina import CNNHost, Population
    from esper.kasmina.layers.counting import count_macs
    x, y = torch.randn(2, 4, 3, 8, 8), torch.zeros(2, 4, dtype=torch.int64)
    population = Population(CNNHost, ("r0c0",), ("conv_light",), 2)
    population.plant([0], "r0c0", "conv_light")
    population.train_batch(x, y)
    before = count_macs(CNNHost(), x[0])
    print("torch._dynamo" in sys.modules, end=" ")
    import torch._dynamo
    print(count_macs(CNNHost(), x[0]) == before > 0)
    """
    assert run_python(code).split() == ["False", "False", "True"]


def test_version_is_that_of_the_installed_project():
    from importlib.metadata import version

    assert run_python("import esper; print(esper.__version__)").strip() == version("esper-morph")


def test_unknown_attribute_is_named():
    import esper

    with pytest.raises(AttributeError, match="'grwo'"):
        _ = esper.grwo


def constraints() -> list[str]:
    """The pins of constraints.txt without its comments."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_uv_reads_the_same_pins():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pins = constraints()
    block = "\n".join(f'    "{pin}",' for pin in pins)
    assert project["tool"]["uv"]["constraint-dependencies"] == pins, (
        f"set constraint-dependencies in [tool.uv] of pyproject.toml to:\n{block}"
    )


def test_pins_are_exact():
    assert all(pin.count("==") == 1 and "+" not in pin for pin in constraints())


def test_pins_name_no_cuda_package():
    names = [pin.partition("==")[0] for pin in constraints()]
    assert not [n for n in names if n.startswith(("nvidia", "cuda", "triton", "torchvision"))]
