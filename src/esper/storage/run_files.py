"""Names of the files in run folders, of all kinds of runs."""

from __future__ import annotations

from typing import Final

REPORT_PAGE: Final = "report.html"
"""Report of any run, one self-contained page."""
TAGS: Final = "tags.json"
"""Tags that people gave any run (`tags.py`)."""
SESSIONS: Final = "sessions.json"
"""Which process worked on a comparison or an audit when, and how it ended."""
LIVE: Final = "live.json"
"""What is under way, while a process works on the run (`live.py`)."""

# ---- esper train -------------------------------------------------------------------------------
RUN: Final = "run.json"
RUN_SCHEMA: Final = 3
"""Version of `run.json` and the files beside it. Incremented by every change of them."""
CONFIG: Final = "config.json"
SESSION: Final = "session.json"
RETENTION: Final = "retention.json"
CHECKPOINTS: Final = "checkpoints"
CHECKPOINT: Final = "checkpoint.json"
"""Manifest of a checkpoint."""
HISTORY: Final = "history.jsonl"
POLICY: Final = "policy.json"
ROUNDS: Final = "rounds"
SOURCE: Final = "source"
"""Folder with the task file, if the task is one."""
MEMBERS: Final = "members"
MEMBER_LIST: Final = "members.json"
EVENTS: Final = "events.jsonl"
REPORT: Final = "report"
LEARNING: Final = "learning.json"
"""In the report: history of a learner, and how it was judged on fresh hosts."""
JUDGED_LEARNER: Final = "ppo"
"""There: the controller, greedy."""
JUDGED_STATIC: Final = "static-final"
"""There: its final topologies, planted from the start."""
JUDGED_SIMPLE: Final[tuple[str, ...]] = ("wait", "random", "heuristic")
"""There: policies that do not learn and try nothing out."""

# ---- esper grow --------------------------------------------------------------------------------
GROW: Final = "grow.json"
GROW_SCHEMA: Final = 2
"""Version of `grow.json` and the files beside it, as all of these."""
SEARCH: Final = "search.json"
RESULT: Final = "result.json"
TEST_SAMPLES: Final = "test_samples.npy"
"""Metric of each test sample, of the pick and of the model as given: float32 `[2, N]`."""
MAX_TEST_SAMPLES: Final = 200_000
"""Of more test samples no single values are kept: the file has 1.6 MB then."""
GROWN_NETWORKS: Final = "networks"

# ---- esper compare -----------------------------------------------------------------------------
SETTINGS: Final = "settings.json"
POLICIES: Final = "policies"
COMPARISON: Final = "compare.json"

# ---- esper audit -------------------------------------------------------------------------------
AUDIT: Final = "audit.json"
AUDIT_SCHEMA: Final = 1
RECORDS: Final = "records"
PACKED: Final = "records.parquet"
"""File with all contexts of a packed folder."""
CONTENDERS: Final = "contenders.json"
"""Scores of the ways to choose, written with the audit's report."""
