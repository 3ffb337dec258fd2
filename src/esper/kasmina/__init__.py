"""Kasmina: what grows. Hosts, blueprints, the lifecycle of seeds, and the stacked population."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esper.kasmina.blueprints.registry import BlueprintRegistry, blueprint
    from esper.kasmina.hosts.cnn import CNNHost
    from esper.kasmina.hosts.mlp import MLPHost
    from esper.kasmina.hosts.transformer import TransformerHost
    from esper.kasmina.lifecycle import Lifecycle, LifecycleConfig
    from esper.kasmina.member import MorphogeneticModel
    from esper.kasmina.optim import OptimConfig
    from esper.kasmina.population import Population, PopulationConfig

_HOME = {
    "BlueprintRegistry": "blueprints.registry",
    "CNNHost": "hosts.cnn",
    "Lifecycle": "lifecycle",
    "LifecycleConfig": "lifecycle",
    "MLPHost": "hosts.mlp",
    "MorphogeneticModel": "member",
    "OptimConfig": "optim",
    "Population": "population",
    "PopulationConfig": "population",
    "TransformerHost": "hosts.transformer",
    "blueprint": "blueprints.registry",
}

__all__ = [
    "BlueprintRegistry",
    "CNNHost",
    "Lifecycle",
    "LifecycleConfig",
    "MLPHost",
    "MorphogeneticModel",
    "OptimConfig",
    "Population",
    "PopulationConfig",
    "TransformerHost",
    "blueprint",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
