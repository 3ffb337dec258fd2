"""Settings of the ranks of a distributed run: all have the same, each its share of the members.

Does not import torch, so that reading settings stays quick.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from esper.leyline.codec import read_record, to_json
from esper.leyline.errors import EsperError
from esper.simic.training.config import TrainingConfig

if TYPE_CHECKING:
    from esper.simic.distributed.ranks import Ranks
    from esper.simic.distributed.world import World
    from esper.tolaria.engine_config import EngineConfig


def own_engine_config(config: TrainingConfig, ranks: Ranks) -> EngineConfig:
    """Engine settings of this rank: its members by their numbers in the run, its device."""
    settings = config.engine_config()
    members = ranks.share_members(settings.members)
    device = ranks.device_of(settings.device)
    if ranks.size == 1:
        return replace(settings, device=device)
    numbers = tuple(ranks.numbers(members).tolist())  # SYNC: an array of numpy, at set-up
    return replace(settings, members=members, member_ids=numbers, device=device)


def agree_on_config(world: World, config: TrainingConfig | None) -> TrainingConfig:
    """The settings of rank 0, on every rank; raises if a rank was given others."""
    mine = json.dumps(None if config is None else to_json(config)).encode()
    lead = read_record(TrainingConfig, json.loads(world.broadcast_bytes(mine)), "rank 0's settings")
    world.together(lambda: _require_equal(lead, lead if config is None else config))
    return lead


def _require_equal(lead: TrainingConfig, own: TrainingConfig) -> None:
    from esper.simic.training.runs.resume import setting_differences

    found = setting_differences(lead, own)
    if found:
        raise EsperError(
            f"settings differ from rank 0's ({'; '.join(found)}): start every rank with the same "
            f"ones"
        )
