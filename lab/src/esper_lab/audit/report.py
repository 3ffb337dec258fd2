"""The report of an audit: tables of regrets and gates, and two pictures, in its folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from esper.leyline.codec import Json, to_json
from esper.leyline.errors import EsperError
from esper.storage.atomic import write_atomic
from esper.storage.run_files import CONTENDERS
from esper.storage.sealed_json import checksum_of, seal
from esper_lab.audit.bench import Bench
from esper_lab.audit.frontier_picture import draw_frontier
from esper_lab.audit.live_picture import collect_live_picks
from esper_lab.audit.live_report import LiveComparison, compare_live
from esper_lab.audit.picks import Pick, collect_picks
from esper_lab.audit.picture import draw_scores
from esper_lab.audit.records import Audit
from esper_lab.audit.regrets import Regrets, RegretSettings, compute_regrets
from esper_lab.audit.tables import (
    agreement_table,
    gates_table,
    live_gates_table,
    live_table,
    noise_text,
    price_table,
    regrets_table,
    search_table,
)

REPORT: Final = "regrets.txt"
TOPOLOGIES: Final = "topologies.png"
SCORES: Final = "scores.png"


@dataclass(frozen=True, slots=True, eq=False)
class AuditReport:
    """What an audit says about deciding."""

    regrets: Regrets
    text: str
    files: tuple[Path, ...]
    live: LiveComparison | None = None
    """Policies that were trained, if there are any."""


def write_report(
    path: Path,
    audit: Audit,
    settings: RegretSettings | None = None,
    extra: Sequence[Pick] = (),
) -> AuditReport:
    """Compute the regrets of an audit; writes text and pictures into its folder.

    Live policies of the folder are in the picture; `extra`: picks of others.
    Raises unless there are two contexts and two hosts or more.
    """
    settings = settings or RegretSettings()
    regrets = compute_regrets(audit, settings)
    parts = {
        "What choosing is worth": regrets_table(regrets),
        "Gates": gates_table(regrets.gates),
        "Noise": noise_text(regrets),
        "Price -> topology": price_table(regrets, audit.info),
        "Searches by look-up": search_table(regrets),
    }
    live, live_parts = _live(path, audit)
    parts |= live_parts
    bench = Bench(audit, settings.terms)
    shown = collect_live_picks(path, bench, settings.seed)
    if shown.left_out:
        parts["Not in the picture"] = "\n".join(shown.left_out)
    text = "\n\n".join(f"{title}\n\n{body}" for title, body in parts.items())
    files = tuple(path / name for name in (REPORT, TOPOLOGIES, SCORES))
    write_atomic(files[0], f"{text}\n".encode())
    contenders = seal(
        {
            "contexts": _contexts(audit, regrets, settings),
            "contenders": [*_contenders(regrets), *_live_contenders(live)],
        }
    )
    write_atomic(path / CONTENDERS, (json.dumps(contenders, indent=1) + "\n").encode())
    draw_frontier(files[1], collect_picks(bench, seed=settings.seed), (*shown.picks, *extra))
    draw_scores(files[2], regrets, f"{audit.info.task}: what choosing is worth")
    return AuditReport(regrets, text, files, live)


def _contexts(audit: Audit, regrets: Regrets, settings: RegretSettings) -> list[Json]:
    """A digest of each context: equal ones had the same data, hosts and prices."""
    shared: dict[str, Json] = {
        "task": audit.info.task,
        "hosts": [audit.info.seed, audit.info.hosts],
        "prices": [settings.seed, settings.draws, to_json(settings.terms)],
    }
    columns = [getattr(audit.contexts, one.name) for one in fields(audit.contexts)]
    return [
        checksum_of(shared | {"context": [number, *(column[number].item() for column in columns)]})
        for number in regrets.context_C.tolist()
    ]


def _contenders(regrets: Regrets) -> list[Json]:
    """What the report says of each way to choose, for views."""
    return [
        {
            "name": name,
            "live": False,
            "score": to_json(found.score),
            "above": to_json(found.minus(regrets.contenders["regression"])),
            "params": float(found.params_CD.mean()),
            "test": float(found.test_CD.mean()),
            "compute": float(found.compute_CD.mean()),
            "n": found.score_CD.size,
            "score_C": found.score_C.tolist(),
        }
        for name, found in regrets.contenders.items()
    ]


def _live_contenders(live: LiveComparison | None) -> list[Json]:
    """The same of policies that were trained."""
    return [
        {
            "name": row.name,
            "live": True,
            "score": to_json(row.score),
            "above": to_json(row.above),
            "params": row.params,
            "test": row.test,
            "compute": row.compute,
            "n": live.cases,
        }
        for row in (live.rows if live else ())
        if live and row.live
    ]


def _live(path: Path, audit: Audit) -> tuple[LiveComparison | None, dict[str, str]]:
    """The sections on live policies; the rest of the report does not depend on their files."""
    title = "Live policies"
    try:
        live = compare_live(path, audit)
    except EsperError as error:
        return None, {title: f"no comparison: {error}"}
    if live is None:
        return None, {}
    parts = {title: live_table(live)}
    if live.gates:
        parts["Gates of live policies"] = live_gates_table(live)
    if live.agreements:
        parts["Trained and from records"] = agreement_table(live)
    return live, parts
