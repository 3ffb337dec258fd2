"""What a run is doing right now, and the same in words.

From the live record of the process that works on the run. One that is old, damaged, or of another
session counts as none.
"""

from __future__ import annotations

import math
import time
from pathlib import Path

from esper.karn.views.damage import UNREADABLE
from esper.karn.views.documents import read_entries
from esper.leyline.codec import read_record
from esper.leyline.stages import OCCUPIED_STAGES
from esper.storage.folder_lock import lock_holder
from esper.storage.live import STALE_SECONDS, LiveRecord
from esper.storage.run_files import LIVE

_STAGES = {stage.name for stage in OCCUPIED_STAGES}


def read_live(run: Path) -> LiveRecord | None:
    """What is under way in a run whose folder is locked."""
    try:
        entries = read_entries(run / LIVE)
        found = read_record(LiveRecord, dict(entries), LIVE)
        mine = found.session == lock_holder(run)
    except UNREADABLE:
        return None
    fresh = abs(time.time() - found.written) < STALE_SECONDS
    return found if mine and fresh and _is_sound(found) else None


def _is_sound(found: LiveRecord) -> bool:
    """Whether counts and stages are such as a run has."""
    counts = (found.step, found.steps, found.members, found.done, found.total, found.running)
    sizes = (*counts, *(count for _, count in found.stages))
    return min(sizes) >= 0 and found.round >= -1 and {name for name, _ in found.stages} <= _STAGES


def where(found: LiveRecord) -> str:
    """How far it is, as `step 7 of 24 of round 3`; empty if it counts nothing.

    >>> where(LiveRecord("training", round=2, step=7, steps=24))
    'step 7 of 24 of round 3'
    >>> where(LiveRecord("searching", done=12, total=30, running=4))
    '12 of 30 runs done, 4 under way'
    """
    if found.round >= 0:
        of_round = f"round {found.round + 1}"
        return f"step {found.step} of {found.steps} of {of_round}" if found.steps else of_round
    if found.policy:
        policies = f"{found.done} of {found.total} policies done"
        return f"step {found.step} of {found.steps} of {found.policy}, {policies}"
    under_way = f", {found.running} under way" if found.running else ""
    return f"{found.done} of {found.total} runs done{under_way}" if found.total else ""


def under_way(found: LiveRecord) -> str:
    """What is under way in one line.

    >>> under_way(LiveRecord("training", round=0, step=2, steps=8, accuracy=0.5, score=0.25))
    'training: step 2 of 8 of round 1, accuracy 50.0 %, training score 0.2500'
    """
    kind = "" if found.policy else "training " if found.round >= 0 else "best validation "
    parts = [
        where(found),
        "" if math.isnan(found.accuracy) else f"accuracy {100 * found.accuracy:.1f} %",
        "" if math.isnan(found.score) else f"{kind}score {found.score:.4f}",
    ]
    said = ", ".join(part for part in parts if part)
    return f"{found.doing}: {said}" if said else found.doing
