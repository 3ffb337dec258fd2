"""`esper bench`: judge policies on the records of audits, without training.

esper bench                                 lists the records that ship with Esper
esper bench digits_impaired                 all built-in policies
esper bench digits_impaired out/my_audit --policies table regression --policy mine.py:Mine
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import tyro

from esper.leyline.errors import EsperError, unknown_name
from esper.leyline.limits import require_counts
from esper.scripts.cli.command import run_command
from esper.scripts.cli.output import say

if TYPE_CHECKING:
    from esper.scripts.cli.report_files import ReportFile
    from esper.tasks.user_objects import UserFiles
    from esper_lab.audit.bench import Bench
    from esper_lab.audit.cases import TermsSpec
    from esper_lab.audit.leaderboard import OnPolicy, PolicyMaker, Row
    from esper_lab.audit.listing import ListedRecords
    from esper_lab.progress.bench import BenchProgress

MAX_EPISODES: Final = 100_000
BOARD: Final = "leaderboard"
"""Name of the files with the tables."""
ALWAYS: Final = ("one", "oracle")
"""Policies that always play: the gap closed lies between them."""


@dataclass(frozen=True)
class RunBench:
    """Judge policies on the records of audits, without training; alone, list what there is."""

    records: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[RECORDS ...]")
    ] = ()
    """Names of shipped records, or folders of `esper audit`; none: list the shipped ones."""
    policies: tuple[str, ...] = ()
    """Built-in policies to judge; default: all. one and oracle always play: the gap closed is
    measured between them."""
    policy: tuple[str, ...] = ()
    """Your own policies as FILE.py:NAME, classes that are made with (bench, contexts)."""
    episodes: int = 32
    """Episodes per context."""
    prices: tuple[float, float] | None = None
    """Lowest and highest price factor of the episodes; default 0.1 to 4, log-uniform."""
    seed: int = 0
    """Seed of hosts, prices and caps of the episodes."""
    out: Path | None = None
    """Folder for the tables, and a picture per set of records; default: none are written."""
    json: bool = False
    """Print JSON instead of tables."""
    quiet: bool = False
    """Show no progress."""

    def check(self) -> None:
        """Check the settings before anything is read."""
        from esper.leyline.seeds import require_training_seed

        require_counts(MAX_EPISODES, episodes=self.episodes)
        require_training_seed(self.seed, "--seed")
        self.terms()
        if not self.records:
            given = [f for f in ("policies", "policy", "prices", "out") if getattr(self, f)]
            if given:
                raise EsperError(
                    f"--{given[0]} without records: name some; `esper bench` lists them"
                )

    def terms(self) -> TermsSpec:
        """Prices and caps of the episodes."""
        from esper.leyline.context import Range
        from esper_lab.audit.cases import TERMS, TermsSpec

        if self.prices is None:
            return TERMS
        low, high = self.prices
        if not 0 < low <= high < float("inf"):
            raise EsperError(f"--prices {low:g} {high:g}: give two above 0, the lower one first")
        return TermsSpec(Range(low, high))


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the command."""
    return run_command(RunBench, bench, argv)


def bench(config: RunBench) -> None:
    """List, or judge. Imports are local, so that --help is fast."""
    config.check()
    if not config.records:
        list_shipped(config.json)
        return
    from esper.tasks.user_objects import user_files

    with user_files() as files:
        makers = find_policies(config, files)
        judge(config, makers)


# ---- the list ----------------------------------------------------------------------------------


def list_shipped(as_json: bool) -> None:
    """Print the records that ship with the package."""
    from esper_lab.audit.listing import list_records
    from esper_lab.audit.tables import text_table

    found = list_records()
    if as_json:
        print(json.dumps([asdict(entry) for entry in found], indent=2))
        return
    head = ("records", "contexts", "topologies", "hosts", "steps", "size", "host", "best one",
            "score of the host", "device")  # fmt: skip
    say(text_table(head, [_listed_row(entry) for entry in found]))
    print("\nhost, best one: mean test accuracy, of the host and of the best topology")
    print("esper bench NAME judges policies on them")


def _listed_row(entry: ListedRecords) -> tuple[str, ...]:
    counts = (entry.contexts, entry.topologies, entry.hosts, entry.steps)
    return (
        entry.name,
        *map(str, counts),
        f"{entry.bytes / 1e6:.1f} MB",
        f"{entry.bare_test:.3f}",
        f"{entry.best_test:.3f}",
        f"{entry.bare_score:.3f}",
        entry.device,
    )


# ---- policies ----------------------------------------------------------------------------------


def find_policies(config: RunBench, files: UserFiles) -> dict[str, PolicyMaker]:
    """Policies to judge by name, those of the user's files last."""
    from esper_lab.audit.leaderboard import BUILT_IN
    from esper_lab.commands.own_policy import own_policy

    for name in config.policies:
        if name not in BUILT_IN:
            raise unknown_name("policy", name, BUILT_IN, "of the bench; --policy takes your own")
    wanted = {*config.policies, *ALWAYS} if config.policies else set(BUILT_IN)
    makers = {name: make for name, make in BUILT_IN.items() if name in wanted}
    for reference in config.policy:
        name, make = own_policy(files, reference)
        if name in makers:
            raise EsperError(f"--policy {reference}: there is a policy {name} already, rename it")
        makers[name] = make
    return makers


# ---- judging -----------------------------------------------------------------------------------


def judge(config: RunBench, makers: Mapping[str, PolicyMaker]) -> None:
    """Play all policies on all records; write files, then print."""
    from esper.scripts.cli.report_files import write_before_printing
    from esper.storage.sealed_json import json_bytes
    from esper_lab.audit.leaderboard import leaderboard
    from esper_lab.progress.moving import moving

    with moving("reading records", config.quiet or config.json):
        benches = load_records(config)
    boards: dict[str, Sequence[Row]] = {}
    files: list[ReportFile] = []
    stages = len(benches) * (1 if config.out is None else 2)
    with show_progress(config, stages) as progress:
        for name, found in benches.items():
            on_policy = progress.begin(name)
            boards[name] = leaderboard(
                found, makers, config.episodes, seed=config.seed, on_policy=on_policy
            )
            if config.out is not None:
                on_policy = progress.begin(f"{name}, picture")
                files.append(picture(config, name, found, makers, on_policy))
    text, record = board_text(boards), board_record(benches, boards)
    if config.out is not None:
        files += board_files(config.out, text, record)
    with write_before_printing(*files):
        say(json_bytes(record).decode().rstrip() if config.json else text)
        if files and not config.json:
            print(f"\nfiles: {', '.join(str(path) for path, _ in files)}")


def load_records(config: RunBench) -> dict[str, Bench]:
    """Records by the name of their folder; checks that files can be written."""
    from esper.storage.atomic import require_not_folders, require_writable
    from esper_lab.audit.packed import find_records
    from esper_lab.bench import load

    folders: dict[str, Path] = {}
    for word in config.records:
        folder = find_records(word)
        name = folder.resolve().name
        if name in folders:
            raise EsperError(f"{word}: there are records named {name} already; judge them apart")
        folders[name] = folder
    found = {name: load(folder, config.terms()) for name, folder in folders.items()}
    if config.out is not None:
        names = (f"{BOARD}.json", *(f"{name}.png" for name in found))
        require_not_folders(config.out / name for name in names)
        require_writable(config.out / f"{BOARD}.txt", "--out")
    return found


def show_progress(config: RunBench, stages: int) -> BenchProgress:
    """The display; JSON is not mixed with it."""
    from esper.karn.terminal import Terminal, console_for_report
    from esper_lab.progress.bench import BenchProgress

    console = Terminal(stderr=True) if config.json else console_for_report()
    hidden = config.quiet or (config.json and not console.is_terminal)
    return BenchProgress(stages, None if hidden else console)


# ---- results -----------------------------------------------------------------------------------


def board_text(boards: Mapping[str, Sequence[Row]]) -> str:
    """A table for each set of records, and one of them all."""
    from esper_lab.audit.tables import gaps_table, leaderboard_table

    parts = [f"{name}\n\n{leaderboard_table(rows)}" for name, rows in boards.items()]
    if len(boards) > 1:
        parts.append(gaps_table(boards))
    return "\n\n".join(parts) + "\n\n* looks into the records: a yardstick, no contender"


def board_record(
    benches: Mapping[str, Bench], boards: Mapping[str, Sequence[Row]]
) -> dict[str, Any]:
    """The same as JSON data."""
    return {
        name: {
            "task": benches[name].info.task,
            "contexts": len(benches[name].context_C),
            "policies": [asdict(row) for row in rows],
        }
        for name, rows in boards.items()
    }


def board_files(out: Path, text: str, record: Mapping[str, Any]) -> list[ReportFile]:
    """Files of the tables."""
    from esper.scripts.cli.report_files import json_file
    from esper.storage.atomic import write_atomic

    table = out / f"{BOARD}.txt"
    return [
        (table, lambda path: write_atomic(path, f"{text}\n".encode())),
        json_file(out / f"{BOARD}.json", record),
    ]


def picture(
    config: RunBench,
    name: str,
    found: Bench,
    makers: Mapping[str, PolicyMaker],
    on_policy: OnPolicy,
) -> ReportFile:
    """The picture of records with those policies that are worth a mark, and the user's own."""
    from esper_lab.audit.frontier_picture import draw_frontier
    from esper_lab.audit.leaderboard import BUILT_IN
    from esper_lab.audit.picks import collect_picks, shown_policies

    shown = shown_policies(found)
    drawn = {word: make for word, make in makers.items() if word in shown or word not in BUILT_IN}
    picks = collect_picks(found, drawn, config.seed, on_policy)
    assert config.out is not None
    return config.out / f"{name}.png", lambda path: draw_frontier(path, picks)


if __name__ == "__main__":
    sys.exit(main())
