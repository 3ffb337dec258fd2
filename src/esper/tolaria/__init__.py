"""Tolaria: execution. The vectorized engine, data on the device, governor and runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper.leyline.lazy import attach

if TYPE_CHECKING:
    from esper.tolaria.data import SharedBatchIterator as SharedBatchIterator
    from esper.tolaria.engine import VectorizedEngine as VectorizedEngine
    from esper.tolaria.engine_config import EngineConfig as EngineConfig
    from esper.tolaria.env_state import ParallelEnvState as ParallelEnvState
    from esper.tolaria.governor import TolariaGovernor as TolariaGovernor
    from esper.tolaria.runtime import CUDATimer as CUDATimer
else:
    __getattr__, __dir__, __all__ = attach(__name__)
