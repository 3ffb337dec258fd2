"""Training on several processes: what a rank shares with the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper.leyline.lazy import attach

if TYPE_CHECKING:
    from esper.simic.distributed.environment import world_size as world_size
    from esper.simic.distributed.ranks import Ranks as Ranks
    from esper.simic.distributed.world import World as World
    from esper.simic.distributed.world import join_world as join_world
else:
    __getattr__, __dir__, __all__ = attach(__name__)
