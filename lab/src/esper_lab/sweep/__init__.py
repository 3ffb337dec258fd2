"""`esper sweep`: search settings of `esper train ppo` with Optuna.

    esper sweep digits_impaired learning-rate=1e-4..3e-3:log gamma=0.9..0.999 --trials 20
    esper sweep digits_impaired epochs=2..8 width=32,64 --rounds 20 --processes 2
    esper sweep digits_impaired --space space.toml --on ray --processes 8 --job-gpus 0.5

A trial trains a controller and scores it on hosts that are neither those of training nor those that
`esper compare` evaluates on (docs/cluster.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper.leyline.lazy import attach

if TYPE_CHECKING:
    from esper_lab.sweep.command import main as main
else:
    __getattr__, __dir__, __all__ = attach(__name__)
