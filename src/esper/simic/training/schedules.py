"""How many PPO updates a number of episodes makes."""

from __future__ import annotations

import math

from esper.leyline.errors import EsperError


def calculate_entropy_anneal_steps(episodes: int, members: int, ppo_updates_per_batch: int) -> int:
    """Number of PPO updates in `episodes` episodes; `members` episodes make a round.

    >>> calculate_entropy_anneal_steps(episodes=100, members=16, ppo_updates_per_batch=2)
    14
    """
    if episodes < 0:
        raise EsperError(f"episodes={episodes}: entropy is annealed over 0 episodes or more")
    for name, value in (("members", members), ("ppo_updates_per_batch", ppo_updates_per_batch)):
        if value < 1:
            raise EsperError(f"{name}={value}: must be 1 or more")
    return math.ceil(episodes / members) * ppo_updates_per_batch
