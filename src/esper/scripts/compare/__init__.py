"""`esper compare`: paired comparison of policies and saved controllers on the same fresh hosts.

    esper compare wait random heuristic static-full --task digits_impaired --seeds 20
    esper compare heuristic fixed:conv_heavy@2:r0c0,r0c1 learned=runs/RUN
    esper compare wait static-final:out/train_heuristic_digits_impaired.json --rent 0.5

Each policy runs one episode on hosts from evaluation seeds; host i is the same for all policies.
Prints tables and writes a plot, a report and all numbers (docs/compare.md). In Python:

    from esper.scripts.compare import Compare, compare_policies
    found = compare_policies(Compare(("wait", "heuristic"), seeds=20))
    found["heuristic"].standing("score").difference
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper.leyline.lazy import attach

if TYPE_CHECKING:
    from esper.scripts.compare.command import compare as compare
    from esper.scripts.compare.command import compare_policies as compare_policies
    from esper.scripts.compare.command import main as main
    from esper.scripts.compare.config import Compare as Compare
else:
    __getattr__, __dir__, __all__ = attach(
        __name__,
        {".command": ("compare", "compare_policies", "main"), ".config": ("Compare",)},
    )
