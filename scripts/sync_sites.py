"""Finds lines where the host waits for the device, in the source and while steps run on a GPU.

A line that waits needs a `# SYNC:` comment with the reason, on it or right above it. In a step only
the two transfers may wait.
"""

from __future__ import annotations

import ast
import re
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

import esper

ROOT: Final = Path(esper.__file__).parent
STEP_FOLDERS: Final = ("device", "kasmina", "tamiyo", "tolaria", "simic")
"""Packages whose code runs in a step; simic's in `act`, `store` and the listener."""
COMMENT: Final = re.compile(r"#\s*SYNC:\s*(.+)")
TRANSFER: Final = re.compile(r"transfer [12]\b")
"""Comment text of the lines that may wait in a step."""
WAITS: Final = frozenset({"item", "cpu", "numpy", "tolist", "synchronize"})
"""Methods that wait if called on a GPU tensor."""

NOT_IN_A_STEP: Final = {
    "kasmina/plain_saves/describe.py": "describes a network, at the end of a run",
    "kasmina/tracing/depths.py": "changes the depth of a user's model, before any run",
    "kasmina/tracing/host.py": "traces a user's model, before there is a population",
    "kasmina/tracing/inputs.py": "traces a user's model, before there is a population",
    "kasmina/tracing/tracer.py": "traces a user's model, before there is a population",
    "kasmina/tracing/widths.py": "scales a user's model, before there is a population",
    "simic/agent/saving.py": "reads a save that is on the host, between rounds",
    "simic/training/runs/kept_members.py": "stores members, at the end of a run",
    "simic/telemetry/gradients.py": "one copy for all layers, after an update",
}
"""Modules whose calls were reviewed, and why they do not wait in a step."""
ON_THE_HOST: Final = {
    "kasmina/executors/loop.py": (
        "plan.table.member_R",
        "table.source_R[late]",
        "table.start_R[late]",
    ),
    "kasmina/lifecycle/lifecycle.py": ("np.flatnonzero(self.fits_SK[at[1][misfit][0]])",),
    "kasmina/population.py": ("np.argwhere(self.network.fits_SK)",),
    "kasmina/saving/saving.py": ("population.member_ids",),
    "kasmina/rows/plan_layout.py": ("count_N", "group_J", "self.begin_J", "end_J"),
    "kasmina/rows/rows.py": ("table.member_R", "late", "source", "active_S"),
    "kasmina/training/training.py": ("values", "some"),
    "simic/telemetry/emitters.py": ("slot_counts", "slot_successes", "slot_reward"),
    "simic/telemetry/listener.py": (
        "np.bincount(stage_ES.ravel(), minlength=len(SeedStage))",
        "totals.seconds_F",
    ),
    "tamiyo/asha.py": ("kept_S",),
    "tolaria/setup.py": ("data.mean", "data.std"),
    "tolaria/step_training.py": ("began_U",),
    "tolaria/counterfactual_eval.py": ("np.unique(seeds_E[seeds_E > 0])",),
}
"""Module -> objects of reviewed `.tolist()` calls, all numpy arrays."""


@dataclass(frozen=True, slots=True)
class Site:
    """A line that may wait."""

    module: str
    """Path relative to the package."""
    line: int
    call: str
    """Source of the call."""
    comment: str
    """Text of its `# SYNC:` comment; empty if it has none."""
    excuse: str
    """Why it needs no comment; empty if it needs one."""

    @property
    def sound(self) -> bool:
        """Whether it has a comment or needs none."""
        return bool(self.comment or self.excuse)


@dataclass(frozen=True, slots=True)
class Wait:
    """A line at which steps waited for the device."""

    place: str
    """File and line: innermost one of ours on the stack, else torch's."""
    count: int
    """Waits in all steps."""
    most: int
    """Maximum waits in one step."""
    comment: str
    """Text of its `# SYNC:` comment; empty if it has none."""
    allowed: bool
    """Whether it is a transfer and waited at most once per step."""


# ---- in the source ------------------------------------------------------------------------


def static_sites(root: Path = ROOT) -> list[Site]:
    """All calls in the step path that wait if their object is on a GPU.

    Names are all that is looked at. `float(t)`, `if t:`, `t[mask]`, `nonzero` and a copy to the
    device that is neither pinned nor `non_blocking` wait too: those show when steps run on a GPU.
    """
    found: list[Site] = []
    for folder in STEP_FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            found += _sites_of(path, path.relative_to(root).as_posix())
    return found


def _sites_of(path: Path, module: str) -> Iterator[Site]:
    source = path.read_text()
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr in WAITS:
            owner = ast.unparse(node.func.value)
            first, last = node.lineno, node.end_lineno or node.lineno
            excuse = _excuse(module, owner, node.func.attr)
            call = f"{owner}.{node.func.attr}()"
            yield Site(module, last, call, comment_at(lines, first, last), excuse)


def _excuse(module: str, owner: str, method: str) -> str:
    if module in NOT_IN_A_STEP:
        return NOT_IN_A_STEP[module]
    listed = method == "tolist" and owner in ON_THE_HOST.get(module, ())
    return "a numpy array" if listed else ""


def comment_at(lines: list[str], first: int, last: int) -> str:
    """The `# SYNC:` comment on lines `first` to `last` or on the line above; empty if none."""
    for text in lines[max(first - 2, 0) : last]:
        if found := COMMENT.search(text):
            return found[1].strip()
    return ""


# ---- while steps run ----------------------------------------------------------------------


def watch_steps(before: Callable[[], object], step: Callable[[], object], steps: int) -> list[Wait]:
    """Lines at which `step` waited for the GPU over several calls; `before` is not observed."""
    total: Counter[tuple[str, int]] = Counter()
    most: Counter[tuple[str, int]] = Counter()
    for _ in range(steps):
        before()
        with recorded_waits() as places:
            step()
        total += places
        most |= places  # the larger count of each line
    return [_judged(place, total[place], most[place]) for place in sorted(total)]


@contextmanager
def recorded_waits() -> Iterator[Counter[tuple[str, int]]]:
    """Count waits by (file, line) inside the block, with torch's sync debug mode."""
    places: Counter[tuple[str, int]] = Counter()

    def note(message: Warning | str, *_: object, **__: object) -> None:
        if "called a synchronizing" in str(message):
            places[place_of(traceback.extract_stack())] += 1

    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield places
        finally:
            torch.cuda.set_sync_debug_mode(before)


def place_of(stack: traceback.StackSummary) -> tuple[str, int]:
    """Innermost stack line of the package, else of all, ignoring the warning machinery."""
    frames = [f for f in stack if f.filename not in (__file__, warnings.__file__)]
    ours = [f for f in frames if Path(f.filename).is_relative_to(ROOT)]
    frame = (ours or frames)[-1]
    return frame.filename, frame.lineno or 0


def _judged(place: tuple[str, int], count: int, most: int) -> Wait:
    path, line = Path(place[0]), place[1]
    comment = comment_at(path.read_text().splitlines(), line, line) if path.exists() else ""
    allowed = bool(TRANSFER.match(comment)) and most == 1
    near = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    return Wait(f"{near}:{line}", count, most, comment, allowed)
