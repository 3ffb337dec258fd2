"""Registration of one environment per task with Gymnasium."""

from __future__ import annotations

from typing import Final

import gymnasium

from esper.tasks.registry import task_names

NAMESPACE: Final = "esper"
VERSION: Final = 0


def _env_id(task: str) -> str:
    """Id of a task's environment.

    >>> _env_id("digits_impaired")
    'esper/digits_impaired-v0'
    """
    return f"{NAMESPACE}/{task}-v{VERSION}"


def register_tasks() -> None:
    """Register `esper/TASK-v0` for every task that is not registered yet.

    Called when `esper.gym` is imported; call it again after registering a task of your own.
    """
    for task in task_names():
        if _env_id(task) not in gymnasium.registry:
            gymnasium.register(
                id=_env_id(task),
                entry_point="esper.gym.single_env:EsperEnv",
                vector_entry_point="esper.gym.vector_env:EsperVectorEnv",
                kwargs={"task": task},
            )
