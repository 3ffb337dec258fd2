"""Every view that a query may name: the one list behind the command, its help and the docs."""

from __future__ import annotations

from functools import cache

from esper.karn.query.columns import View
from esper.karn.query.event_views import event_view
from esper.karn.query.record_views import RECORD_VIEWS, record_view
from esper.leyline.telemetry import TelemetryEventType


@cache
def all_views() -> tuple[View, ...]:
    """Views of records, then of events."""
    records = tuple(map(record_view, RECORD_VIEWS))
    return (*records, *map(event_view, TelemetryEventType))
