"""docs/ppo.md explains every setting and metric."""

from dataclasses import fields
from pathlib import Path

import pytest

from esper.leyline.payloads import PPOUpdateMetrics
from esper.simic.agent import PPOConfig
from esper.tamiyo import NetworkConfig

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "ppo.md").read_text()


@pytest.mark.parametrize("record", [PPOConfig, NetworkConfig, PPOUpdateMetrics])
def test_every_field_is_explained(record):
    assert [f.name for f in fields(record) if f"`{f.name}`" not in TEXT] == []


@pytest.mark.parametrize(
    ("name", "default"),
    [("gamma", "[1]"), ("target_kl", "[0.05]"), ("width", "[64]"), ("attention_heads", "[2]")],
)
def test_defaults_are_those_of_the_code(name, default):
    config = PPOConfig()
    value = getattr(config, name, None) or getattr(config.network, name)
    assert f"[{value:g}]" == default
    assert f"`{name}` {default}" in TEXT
