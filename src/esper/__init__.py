"""Esper grows neural networks while they train.

This module imports nothing: each public name is loaded when it is first used (PEP 562), so
`import esper` and `--help` stay fast.
"""

__version__: str

__all__ = ["__version__"]


def __getattr__(name: str) -> str:
    if name != "__version__":
        raise AttributeError(f"module 'esper' has no attribute {name!r}")
    from importlib.metadata import version  # tens of milliseconds: only when asked

    found = globals()[name] = version("esper-morph")
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
