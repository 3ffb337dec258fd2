"""Paired comparison of policies and saved controllers on the same fresh hosts.

    from esper.compare import Compare, compare_policies
    found = compare_policies(Compare(("wait", "heuristic"), seeds=20))
    found["heuristic"].standing("score").difference

Each policy runs one episode on hosts from evaluation seeds; host i is the same for all policies.
`esper compare` prints the tables (docs/compare.md); `judging` evaluates a learner the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper.leyline.lazy import attach

if TYPE_CHECKING:
    from esper.compare.config import Compare as Compare
    from esper.compare.run import compare_policies as compare_policies
else:
    __getattr__, __dir__, __all__ = attach(__name__)
