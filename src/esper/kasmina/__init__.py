"""Kasmina: hosts, blueprints, the lifecycle of seeds, and the stacked population."""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper.leyline.lazy import attach

if TYPE_CHECKING:
    from esper.kasmina.blueprints.registry import BlueprintRegistry as BlueprintRegistry
    from esper.kasmina.blueprints.registry import blueprint as blueprint
    from esper.kasmina.export.member import MorphogeneticModel as MorphogeneticModel
    from esper.kasmina.hosts.cnn import CNNHost as CNNHost
    from esper.kasmina.hosts.cnn import SignalHost as SignalHost
    from esper.kasmina.hosts.mlp import MLPHost as MLPHost
    from esper.kasmina.hosts.resnet import ResNetHost as ResNetHost
    from esper.kasmina.hosts.transformer import TransformerHost as TransformerHost
    from esper.kasmina.lifecycle.lifecycle import Lifecycle as Lifecycle
    from esper.kasmina.lifecycle.lifecycle import LifecycleConfig as LifecycleConfig
    from esper.kasmina.population import Population as Population
    from esper.kasmina.population import PopulationConfig as PopulationConfig
    from esper.kasmina.training.optim import OptimConfig as OptimConfig
else:
    __getattr__, __dir__, __all__ = attach(__name__)
