"""PPO training of a controller: configs, schedules, trainer and run folders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper.leyline.lazy import attach

if TYPE_CHECKING:
    from esper.simic.agent.schedule import Schedule as Schedule
    from esper.simic.training.runner import run_ppo_updates as run_ppo_updates
    from esper.simic.training.schedules import (
        calculate_entropy_anneal_steps as calculate_entropy_anneal_steps,
    )
else:
    __getattr__, __dir__, __all__ = attach(__name__)
