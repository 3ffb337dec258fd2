"""Tamiyo: who decides. Signals, masks, action decoding, policies."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esper.tamiyo.inputs import Observation as Observation
    from esper.tamiyo.network import PolicyNetwork as PolicyNetwork
    from esper.tamiyo.network import PolicyState as PolicyState
    from esper.tamiyo.network_config import NetworkConfig as NetworkConfig
    from esper.tamiyo.network_config import PolicySpec as PolicySpec

_HOME: dict[str, str] = {
    "NetworkConfig": "network_config",
    "Observation": "inputs",
    "PolicyNetwork": "network",
    "PolicySpec": "network_config",
    "PolicyState": "network",
}

__all__: list[str] = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
