"""`esper tasks`: list tasks with host, slots, episode length and data location.

esper tasks                     a table
esper tasks --json              as JSON
esper tasks --data-dir DIR      look for data there
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from esper.scripts.cli.command import run_command

if TYPE_CHECKING:
    from esper.tasks.listing import TaskListing

PLAIN_WIDTH: Final = 140
"""Columns of the table without a terminal."""


@dataclass(frozen=True)
class _ListTasks:
    """List tasks with host, slots, episode length and data location."""

    data_dir: Path | None = None
    """Folder of the data files; default $ESPER_DATA_DIR, then ./data."""
    json: bool = False
    """Print JSON instead of a table."""


def _show_tasks(config: _ListTasks) -> None:
    """Print the list. Imports are local, so that --help is fast."""
    from esper.tasks.listing import list_tasks

    entries = list_tasks(config.data_dir)
    if config.json:
        print(json.dumps([asdict(entry) for entry in entries], indent=2))
    else:
        _print_table(entries)


def _print_table(entries: Sequence[TaskListing]) -> None:
    """Print the tasks as a table."""
    from rich.table import Table
    from rich.text import Text

    from esper.karn.terminal import Terminal

    table = Table("task", "host", "slots", "episode", "data", show_lines=True)
    for entry in entries:
        where = entry.data.place if entry.data.found else f"missing: {entry.data.source}"
        table.add_row(
            Text.assemble((entry.name, "bold"), "\n", entry.description),
            f"{entry.host_parameters:,} parameters\n{entry.host_macs:,} MACs",
            f"{len(entry.slots)}\n{entry.slots[0]}..{entry.slots[-1]}",
            f"{entry.episode_length} steps of {entry.batches_per_step}\nbatches of "
            f"{entry.batch_size}",
            Text(where, style="" if entry.data.found else "yellow", overflow="fold"),
        )
    Terminal(PLAIN_WIDTH).print(table)


main = partial(run_command, _ListTasks, _show_tasks)
"""Entry point of the command."""
