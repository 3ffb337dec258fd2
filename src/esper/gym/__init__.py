"""Esper as Gymnasium environments: decide what grows in networks while they train.

    import gymnasium, esper.gym

    envs = gymnasium.make_vec("esper/digits_impaired-v0", num_envs=16)

Importing this package registers `esper/TASK-v0` for every task; it imports gymnasium, but neither
torch nor a task's data. Needs the extra `gym`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper.leyline.errors import install_hint as _install_hint
from esper.leyline.lazy import attach

try:
    import gymnasium as _gymnasium
except ModuleNotFoundError as error:
    if error.name != "gymnasium":
        raise
    raise ImportError(f"esper.gym needs gymnasium: {_install_hint('gym')}") from None

from esper.gym import registration as _registration

if TYPE_CHECKING:
    from esper.gym.flat_actions import FlatActions as FlatActions
    from esper.gym.flat_env import flat as flat
    from esper.gym.flat_policy import FlatPolicy as FlatPolicy
    from esper.gym.registration import register_tasks as register_tasks
    from esper.gym.sb3_env import sb3 as sb3
    from esper.gym.settings import EnvSettings as EnvSettings
    from esper.gym.single_env import EsperEnv as EsperEnv
    from esper.gym.vector_env import EsperVectorEnv as EsperVectorEnv
else:
    __getattr__, __dir__, __all__ = attach(__name__)

_registration.register_tasks()
del _gymnasium
