"""Sections of a report that only a search (`grow`) has: its cost, its data, how to use it."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import Final

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
from esper.plotting.durations import duration_text
from esper.plotting.html import Markup, code, details, table, tag
from esper.storage import run_files as f

MAX_SCRIPT: Final = 200_000
"""Bytes of a script that the page shows, so that it stays small."""
_LIMITS: Final = {
    "params": "parameters", "macs": "MACs", "flops": "FLOPs",
    "host_runs": "training runs of your model", "latency_ms": "ms for a sample",
}  # fmt: skip
"""What the limits of a budget are called, where that is not their name."""
_HOW: Final = ("latency_runtime", "latency_threads")
"""How one of them is measured."""
Section = tuple[str, list[Markup]]
"""Title and content."""


def _cost(run: Path) -> Section:
    """What the search took, once it has ended."""
    if not (run / f.RESULT).exists():
        return "Cost", []
    info, result = read_entries(run / f.GROW), read_entries(run / f.RESULT)
    runs, limit = real(result, "runs"), real(info, "runs")
    macs = runs * real(info, "length") * real(info, "batch_size") * real(info, "train_macs")
    of = f" of {limit:.3g}" if math.isfinite(limit) else ""
    ended = "came to its end" if result.get("complete") is True else "interrupted"
    rows = [
        ("training compute", f"{runs:.2f}{of} training runs of your model"),
        ("that is about", f"{macs:.3g} MACs, forward and backward"),
        ("time", duration_text(real(result, "seconds"))),
        ("search", text(result, "ended") or ended),
    ]
    return "Cost", [table("What the search cost", ("what", "value"), rows)]


def _usage(run: Path) -> Section:
    """How to load and export the networks."""
    if not (run / f.RESULT).exists():
        return "Use it", []
    quoted = shlex.quote(str(run))
    params = whole(entries(read_entries(run / f.RESULT), "host"), "params")
    return "Use it", [
        tag("p", "In Python, without the code of your model:"),
        code(
            "import esper",
            "",
            f"result = esper.GrowResult.load({str(run)!r})",
            "model = result.model                        # the pick, a plain nn.Module",
            f"small = result.pick(params={params})",
            'small.export("small.onnx")',
        ),
        tag("p", "On the command line:"),
        code(
            f"esper show {quoted}",
            f"esper export {quoted} grown.onnx",
            f"esper export {quoted} --params {params} small.pt2",
        ),
    ]


def _code(run: Path) -> Section:
    """The script that trains the pick again, if one was kept."""
    title = "Code of the pick"
    if not (run / f.RESULT).exists():
        return title, []
    pick = whole(read_entries(run / f.RESULT), "pick") or 0
    path = run / f.GROWN_NETWORKS / f"{pick:04d}.py"
    if not path.is_file() or path.stat().st_size > MAX_SCRIPT:
        return title, []
    said = "A plain PyTorch script that trains it again, without Esper."
    script = path.read_text(errors="replace")
    return title, [tag("p", said), details(path.name, code(*script.splitlines()))]


def _data(run: Path) -> Section:
    """What was decided about the data."""
    info = read_entries(run / f.GROW)
    notes = [tag("li", note) for note in texts(info, "notes")]
    said: Markup = tag("ul", *notes) if notes else tag("p", "Used as given.")
    return "Data", [said, tag("p", f"Fingerprint: {text(info, 'fingerprint')}", class_="muted")]


GROW_SECTIONS = (_cost, _usage, _code, _data)


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
    limits = [(_LIMITS.get(name, name), real(budget, name)) for name in named]
    given = [f"{value:,.12g} {name}" for name, value in limits if value == value]
    return ", ".join(given) or "default"
