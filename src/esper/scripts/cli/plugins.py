"""Commands that other packages add to `esper`, by entry points of the group `esper.commands`.

    [project.entry-points."esper.commands"]
    mine = "my_package.commands:MINE"        # MINE = Command("my_package.mine", "what it does")

Nothing of a package is loaded before its command, or the list of all commands, is asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from esper.leyline.errors import EsperError, shorten

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")

GROUP: Final = "esper.commands"
LAB: Final = "esper-lab"
MAX_REASON_CHARS: Final = 200
"""Maximum characters of what a broken package raises."""
ELSEWHERE: Final = {"audit": LAB, "bench": LAB, "sweep": LAB}
"""Commands that Esper's documents name -> the package that adds them."""


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand."""

    module: str
    """Module whose `main` runs it."""
    summary: str
    """One-line description for the help."""
    works_long: bool = False
    """On a terminal it shows a clock while it prints nothing."""


class Plugin:
    """A command of another package."""

    def __init__(self, entry: EntryPoint) -> None:
        self.entry = entry

    @property
    def package(self) -> str:
        """Name and version of the package."""
        dist = self.entry.dist
        return "an unknown package" if dist is None else f"{dist.name} {dist.version}"

    def command(self) -> Command:
        """The command; raises a one-line error if the package is broken."""
        found: object = self._load(self.entry.load)
        if not isinstance(found, Command):
            raise self._error(f"{self.entry.value} is no Command of {__name__}")
        return found

    def main(self) -> Callable[[], int]:
        """What runs it; raises as `command`."""
        module = self.command().module
        main: Callable[[], int] = self._load(lambda: importlib.import_module(module).main)
        return main

    def summary(self) -> str:
        """One line for the help, also of a broken package."""
        try:
            return self.command().summary
        except EsperError as error:
            return str(error)

    def _load(self, load: Callable[[], T]) -> T:
        try:
            return load()
        except (Exception, SystemExit) as error:  # whatever a broken package raises
            line = shorten(" ".join(str(error).split()), MAX_REASON_CHARS)
            raise self._error(f"{type(error).__name__}: {line}") from error

    def _error(self, reason: str) -> EsperError:
        return EsperError(
            f"esper {self.entry.name} cannot be loaded from {self.package} ({reason}): install "
            f"that package again, or uninstall it"
        )


def plugins(taken: Container[str] = ()) -> dict[str, Plugin]:
    """Commands of other packages by name, in order; names that are `taken` are left out."""
    from importlib.metadata import entry_points

    found = sorted(entry_points(group=GROUP), key=lambda entry: entry.name)
    return {entry.name: Plugin(entry) for entry in found if entry.name not in taken}


def require_installed(name: str) -> None:
    """Raise if a command belongs to a package that is not installed."""
    if name in ELSEWHERE:
        raise EsperError(
            f"esper {name} belongs to the package {ELSEWHERE[name]}, which is not installed: "
            f"pip install ./lab in a checkout of Esper"
        )
