"""A grow run as it is on disk, without a search: what pages and views read of one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from esper.storage.run_files import GROW_SCHEMA
from esper.storage.sealed_json import seal

INFO = {
    "schema": GROW_SCHEMA, "name": "net", "created": "2026-01-02 03:04:05", "model": "Net",
    "fingerprint": "f", "notes": [], "loss": "cross_entropy", "metric": "accuracy",
    "slots": ["r0c0", "r0c1"], "places": ["0", "2"], "variants": ["", "x2 d0.5"],
    "host_params": 100, "host_macs": 1000, "batch_size": 16, "epochs": 3.0, "length": 30,
    "optimizer": "adamw", "rates": [0.01], "runs": 5.0, "seed": 0, "device": "cpu",
    "budget": {"params": 500}, "versions": [], "train_macs": 3000, "weight_decay": 0.01,
    "clip": 1.0, "higher_is_better": True,
}  # fmt: skip
RECIPE = {
    "optimizer": "adamw", "lr": 0.01, "weight_decay": 0.01, "clip": 1.0, "batch_size": 16,
    "batches": 30, "augment": "none", "label_smoothing": 0.0,
}  # fmt: skip


def row(number: int, params: int, score: float, **changes: Any) -> dict[str, Any]:
    """A finished run of the table."""
    of_recipe = {name: value for name, value in changes.items() if name in RECIPE}
    of_row = {name: value for name, value in changes.items() if name not in RECIPE}
    plain = {
        "number": number, "rung": 0, "variant": 0, "topology": ["", ""], "seed": 0,
        "origin": "given", "parent": None, "start": None, "params": params, "macs": 10 * params,
        "cost": 1.0, "latency": 0.0, "lower_is_better": False, "status": "finished", "trained": 30,
        "score": score, "loss": 1.0 - score, "curve": [[10, 2.0], [30, 1.0]], "diverged": False,
        "seconds": 2.0, "at": 2.0 * (number + 1), "saved": True,
    }  # fmt: skip
    return plain | {"recipe": RECIPE | of_recipe} | of_row


ROWS = (
    row(0, 100, 0.7),
    row(1, 100, 0.8, lr=0.02, parent=0),
    row(2, 300, 0.9, variant=1, origin="width", topology=["", "norm"], parent=0, augment="shift"),
    row(3, 900, 0.95, variant=1, origin="width", seconds=4.0),
    row(4, 200, 0.75, origin="seeds", topology=["mlp", ""], trained=10, status="cut"),
    row(5, 200, 0.0, origin="seeds", status="planned", trained=0, at=0.0) | {"score": "NaN"},
)
"""Your model twice, a wide one that is the best within the budget, one above it, one under way."""


def judged(number: int, score: float, **changes: Any) -> dict[str, Any]:
    """A network of the result."""
    of = ROWS[number]
    kept = {name: of[name] for name in ("number", "topology", "origin", "recipe", "params", "macs")}
    more = {"variant": INFO["variants"][of["variant"]], "val_score": of["score"], "runs": 1.0}
    return kept | more | {"test_score": score, "test_se": 0.02} | changes


RESULT = {
    "networks": [judged(1, 0.75), judged(2, 0.85, latency=1.5, latency_low=1.2, latency_high=2.0)],
    "host": judged(1, 0.75), "others": [judged(n, 0.0, test_score="NaN") for n in (0, 3, 4)],
    "pick": 2, "verdict": "width x2 is better", "runs": 4.0, "seconds": 12.0, "complete": True,
    "ended": "",
}  # fmt: skip


def write(path: Path, document: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(seal(dict(document))))


def search_folder(run: Path, rows: tuple[Any, ...] = ROWS, has_result: bool = True) -> Path:
    """A run folder with the files of two networks; `has_result`: judged on test."""
    (run / "networks" / "0002-plain").mkdir(parents=True)
    write(run / "grow.json", INFO)
    write(run / "search.json", {"rows": list(rows), "seconds": 12.0, "ended": ""})
    (run / "networks" / "0001.safetensors").write_bytes(b"weights")
    if has_result:
        (run / "networks" / "0002-plain" / "manifest.json").write_text("{}")
        (run / "networks" / "0002.py").write_text("import torch\n")
        write(run / "result.json", RESULT)
    return run
