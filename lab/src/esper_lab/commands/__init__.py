"""Commands that the lab adds to `esper`; its pyproject.toml names them as entry points."""

from __future__ import annotations

from typing import Final

from esper.scripts.cli.plugins import Command

AUDIT: Final = Command(
    "esper_lab.commands.audit",
    "train many topologies in many contexts: what is deciding worth",
    works_long=True,
)
BENCH: Final = Command(
    "esper_lab.commands.bench",
    "judge policies on the records of audits, without training",
    works_long=True,
)
SWEEP: Final = Command("esper_lab.sweep", "search settings of train ppo with Optuna")
