"""`esper query`: SQL over the records of a run.

esper query RUN                                   views and their columns
esper query RUN "select round, score from rounds"
esper query RUN "select ..." --csv > rounds.csv
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from esper.leyline.errors import EsperError
from esper.scripts.cli.command import run_command

if TYPE_CHECKING:
    from esper.karn.query.database import QueryResult


MAX_COLUMNS = 12
"""Columns of a table; wider rows are printed one value a line."""


@dataclass(frozen=True)
class _Query:
    """Ask a run with SQL (DuckDB): one SELECT over its views, while it runs or afterwards.

    Without SQL, lists the views and their columns, with types and what they are.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder, or its name in ./runs."""
    sql: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[SQL]")] = ""
    """One SELECT."""
    csv: bool = False
    """Print CSV."""
    json: bool = False
    """Print JSON, a list of objects."""
    rows: int = 100
    """Rows of a table to print; CSV and JSON have all."""


def _query(config: _Query) -> None:
    """Print the answer. Imports are local, so that --help is fast."""
    from esper.scripts.cli.run_paths import find_run

    if config.csv and config.json:
        raise EsperError("--csv and --json: choose one")
    if config.rows < 1:
        raise EsperError(f"--rows {config.rows}: must be 1 or more")
    run = find_run(config.run)
    if not config.sql.strip():
        _print_views()
        return
    from esper.karn.query.database import run_query
    from esper.karn.query.formats import write_csv, write_json

    with run_query(run, config.sql) as result:
        if config.csv:
            write_csv(result, sys.stdout)
        elif config.json:
            write_json(result, sys.stdout)
        else:
            _print_table(result, config.rows)


def _print_views() -> None:
    """Print every view with its columns."""
    from esper.karn.query.catalogue import all_views

    for view in all_views():
        print(f"{view.name}: {view.doc}")
        for column in view.columns:
            print(f"    {column.name} {column.type}  {column.doc}".rstrip())


def _print_table(result: QueryResult, most: int) -> None:
    """Print the first rows as a table, and how many more there are."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from esper.karn.query.formats import table_rows
    from esper.karn.terminal import console_for_report

    found = table_rows(result)
    wide = len(result.columns) > MAX_COLUMNS
    names = ("row", "column", "value") if wide else result.columns
    table = Table(box=SIMPLE_HEAD)
    for name in names:
        table.add_column(Text(name), overflow="fold")
    for number, row in enumerate(islice(found, min(most, sys.maxsize))):
        if wide:  # a line for every value
            for name, value in zip(result.columns, row, strict=True):
                table.add_row(str(number), Text(name), Text(value))
        else:
            table.add_row(*map(Text, row))
    console_for_report().print(table)
    more = sum(1 for _ in found)
    if more:
        print(f"{more:,} more rows: --rows N prints more, --csv and --json all")


main = partial(run_command, _Query, _query)
"""Entry point of the command."""
