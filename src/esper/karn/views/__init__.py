"""Read-only views of run folders, one module per question.

from esper.karn.views import list_runs, read_rounds, to_plain

Works on runs of `train`, `grow`, `compare` and `audit`, live, finished or killed; takes no lock,
writes nothing, imports no torch. Records are frozen dataclasses; `to_plain` makes them JSON.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper.leyline.lazy import attach

if TYPE_CHECKING:
    from esper.karn.views.actions import ActionCount as ActionCount
    from esper.karn.views.actions import RoundActions as RoundActions
    from esper.karn.views.actions import SlotCount as SlotCount
    from esper.karn.views.actions import read_actions as read_actions
    from esper.karn.views.audit_records import left_out as left_out
    from esper.karn.views.contenders import Contender as Contender
    from esper.karn.views.contenders import read_contenders as read_contenders
    from esper.karn.views.contributions import Contribution as Contribution
    from esper.karn.views.contributions import read_contributions as read_contributions
    from esper.karn.views.curves import NetworkCurve as NetworkCurve
    from esper.karn.views.curves import read_curves as read_curves
    from esper.karn.views.differences import Difference as Difference
    from esper.karn.views.differences import compare_with_baseline as compare_with_baseline
    from esper.karn.views.events import EventCursor as EventCursor
    from esper.karn.views.events import EventLine as EventLine
    from esper.karn.views.events import last_events as last_events
    from esper.karn.views.follow import RunCursor as RunCursor
    from esper.karn.views.follow import RunUpdate as RunUpdate
    from esper.karn.views.frontier import BestPoint as BestPoint
    from esper.karn.views.frontier import FrontierPoint as FrontierPoint
    from esper.karn.views.frontier import read_best as read_best
    from esper.karn.views.frontier import read_frontier as read_frontier
    from esper.karn.views.growth import Measurement as Measurement
    from esper.karn.views.growth import MemberGrowth as MemberGrowth
    from esper.karn.views.growth import SeedGrowth as SeedGrowth
    from esper.karn.views.growth import read_growth as read_growth
    from esper.karn.views.growth import seed_growth as seed_growth
    from esper.karn.views.health import Anomaly as Anomaly
    from esper.karn.views.health import PPOPoint as PPOPoint
    from esper.karn.views.health import read_anomalies as read_anomalies
    from esper.karn.views.health import read_ppo as read_ppo
    from esper.karn.views.kinds import RunKind as RunKind
    from esper.karn.views.kinds import kind_of as kind_of
    from esper.karn.views.lineage import LineageRun as LineageRun
    from esper.karn.views.lineage import read_lineage as read_lineage
    from esper.karn.views.log import LogLine as LogLine
    from esper.karn.views.log import log_of_events as log_of_events
    from esper.karn.views.log import read_log as read_log
    from esper.karn.views.members import MemberState as MemberState
    from esper.karn.views.members import SlotState as SlotState
    from esper.karn.views.members import read_members as read_members
    from esper.karn.views.network_files import NetworkDetail as NetworkDetail
    from esper.karn.views.network_files import network_detail as network_detail
    from esper.karn.views.plain import to_plain as to_plain
    from esper.karn.views.rounds import RoundPoint as RoundPoint
    from esper.karn.views.rounds import read_rounds as read_rounds
    from esper.karn.views.search_notes import Note as Note
    from esper.karn.views.search_notes import read_notes as read_notes
    from esper.karn.views.seeds import SeedLife as SeedLife
    from esper.karn.views.seeds import StageSpan as StageSpan
    from esper.karn.views.seeds import read_seeds as read_seeds
    from esper.karn.views.sentences import Sentence as Sentence
    from esper.karn.views.sentences import sentences_of as sentences_of
    from esper.karn.views.settings import RunSettings as RunSettings
    from esper.karn.views.settings import read_settings as read_settings
    from esper.karn.views.setup import RunSetup as RunSetup
    from esper.karn.views.setup import read_setup as read_setup
    from esper.karn.views.steps import StepPoint as StepPoint
    from esper.karn.views.steps import read_steps as read_steps
    from esper.karn.views.summary import RunState as RunState
    from esper.karn.views.summary import RunSummary as RunSummary
    from esper.karn.views.summary import list_runs as list_runs
    from esper.karn.views.summary import run_summary as run_summary
    from esper.karn.views.throughput import SpeedPoint as SpeedPoint
    from esper.karn.views.throughput import read_throughput as read_throughput
else:
    __getattr__, __dir__, __all__ = attach(__name__)
