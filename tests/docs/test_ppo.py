"""docs/ppo.md explains every metric; settings are in the generated table of docs/commands.md."""

from dataclasses import fields
from pathlib import Path

from esper.leyline.payloads import PPOUpdateMetrics
from esper.simic.agent import PPOConfig
from esper.tamiyo import NetworkConfig

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_every_metric_is_explained():
    text = (DOCS / "ppo.md").read_text()
    assert [f.name for f in fields(PPOUpdateMetrics) if f"`{f.name}`" not in text] == []


def test_every_setting_is_in_the_table_of_the_command():
    text = (DOCS / "commands.md").read_text()
    names = {f.name for record in (PPOConfig, NetworkConfig) for f in fields(record)} - {"network"}
    assert [n for n in names if f"| `--{n.replace('_', '-')}" not in text] == []
