"""What is said about a search (`grow`): its cost, how to use it, its data, its settings."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from esper.karn.views.damage import reader
from esper.karn.views.documents import (
    Entries,
    entries,
    listed,
    numbers,
    read_entries,
    real,
    text,
    texts,
    whole,
)
from esper.karn.views.kinds import RunKind, kind_of
from esper.karn.views.network_files import read_script
from esper.karn.views.search_table import SearchTable, read_search
from esper.plotting.durations import duration
from esper.storage import run_files as f

_LIMITS: Final = {
    "params": "parameters", "macs": "MACs", "flops": "FLOPs",
    "host_runs": "training runs of your model", "latency_ms": "ms for a sample",
}  # fmt: skip
"""What the limits of a budget are called, where that is not their name."""
_HOW: Final = ("latency_runtime", "latency_threads")
"""How one of them is measured."""


@dataclass(frozen=True, slots=True)
class Note:
    """A section of text: sentences, then rows of a table, then code."""

    title: str
    lines: tuple[str, ...] = ()
    rows: tuple[tuple[str, str], ...] = ()
    """(name, value)."""
    code: str = ""


@reader
def read_notes(run: Path) -> tuple[Note, ...]:
    """What is said about a search beside its pictures; empty for other runs."""
    if kind_of(run) is not RunKind.GROW or not (run / f.GROW).exists():
        return ()
    search = read_search(run)
    after = (_cost(search), *_usage(run, search), _code(run, search)) if search.result else ()
    notes = (*after, _data(search), Note("Settings", rows=tuple(settings_rows(run))))
    return tuple(note for note in notes if note.lines or note.rows or note.code)


def _cost(search: SearchTable) -> Note:
    """What the search took, once it has ended."""
    info, result = search.info, search.result
    runs, limit = real(result, "runs"), real(info, "runs")
    macs = runs * real(info, "length") * real(info, "batch_size") * real(info, "train_macs")
    of = f" of {limit:.3g}" if math.isfinite(limit) else ""
    ended = "came to its end" if result.get("complete") is True else "interrupted"
    rows = (
        ("training compute", f"{runs:.2f}{of} training runs of your model"),
        ("that is about", f"{macs:.3g} MACs, forward and backward"),
        ("time", duration(real(result, "seconds"))),
        ("search", text(result, "ended") or ended),
    )
    return Note("Cost", rows=rows)


def _usage(run: Path, search: SearchTable) -> tuple[Note, Note]:
    """How to load and export the networks."""
    quoted = shlex.quote(str(run))
    params = whole(entries(search.result, "host"), "params")
    python = (
        "import esper",
        "",
        f"result = esper.GrowResult.load({str(run)!r})",
        "model = result.model                        # the pick, a plain nn.Module",
        f"small = result.pick(params={params})",
        'small.export("small.onnx")',
    )
    shell = (
        f"esper show {quoted}",
        f"esper export {quoted} grown.onnx",
        f"esper export {quoted} --params {params} small.pt2",
    )
    said = ("Without the code of your model:",)
    return (
        Note("Use it in Python", said, code="\n".join(python)),
        Note("Use it on the command line", code="\n".join(shell)),
    )


def _code(run: Path, search: SearchTable) -> Note:
    """The script that trains the pick again, if one was kept."""
    script = read_script(run, whole(search.result, "pick") or 0)
    said = ("A plain PyTorch script that trains it again, without Esper.",) if script else ()
    return Note("Code of the pick", said, code=script)


def _data(search: SearchTable) -> Note:
    """What was decided about the data."""
    said = texts(search.info, "notes") or ("Used as given.",)
    return Note("Data", (*said, f"Fingerprint: {text(search.info, 'fingerprint')}"))


def settings_rows(run: Path) -> list[tuple[str, str]]:
    """(name, value) of what a search was started with, and of what was decided before it."""
    info = read_entries(run / f.GROW, f.GROW_SCHEMA)
    clip = real(info, "clip")
    clipped = f"gradients clipped at {clip:g}" if clip else "gradients not clipped"
    rates = ", ".join(f"{rate:.3g}" for rate in numbers(info, "rates"))
    places = zip(texts(info, "slots"), texts(info, "places"), strict=False)
    return [
        ("model", f"{text(info, 'model')}, {real(info, 'host_params'):,.0f} parameters, "
                  f"{real(info, 'host_macs'):,.0f} MACs"),
        ("budget", _budget(entries(info, "budget"))),
        ("loss, metric", f"{text(info, 'loss')}, {text(info, 'metric')}"),
        ("full training run", f"{real(info, 'length'):,.0f} batches of "
                              f"{real(info, 'batch_size'):g} ({real(info, 'epochs'):g} epochs)"),
        ("optimizer", f"{text(info, 'optimizer')}, learning rates {rates}, weight decay "
                      f"{real(info, 'weight_decay'):g}, {clipped}"),
        ("precision", "bfloat16 by autocast" if info.get("amp") is True else "float32"),
        ("places to grow", ", ".join(f"{slot} {place}" for slot, place in places) or "none"),
        ("other widths and depths", ", ".join(texts(info, "variants")[1:]) or "none"),
        ("blueprints", ", ".join(texts(info, "blueprints")) or "all that fit"),
        ("seed", f"{real(info, 'seed'):g}"),
        ("device", text(info, "device")),
        ("created", f"{text(info, 'created')} UTC"),
        ("versions", ", ".join(" ".join(map(str, one)) for one in listed(info, "versions")
                               if isinstance(one, list))),
    ]  # fmt: skip


def _budget(budget: Entries) -> str:
    named = [name for name in budget if not name.startswith(_HOW)]
    limits = [(name, value) for name in named if (value := real(budget, name)) == value]
    given = [
        duration(60.0 * value) if name == "minutes" else f"{value:,.12g} {_LIMITS.get(name, name)}"
        for name, value in limits
    ]
    return ", ".join(given) or "default"
