"""What the tests of nissa share: events of any type, and a fresh interpreter to kill."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from esper.leyline import TelemetryEvent, TelemetryEventType
from esper.leyline.payloads import UNSIGNED, CheckpointLoaded
from payload_support import build

SCALARS = {
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(),
    bool: st.booleans(),
    str: st.text(max_size=5),
}


@st.composite
def any_event(draw: st.DrawFn, kind: TelemetryEventType) -> TelemetryEvent:
    """An event of a type: any number of rows, any numbers and text in its arrays and scalars."""
    # No members never happens, and the codec cannot tell [0, S] from [0].
    sizes = {"E": draw(st.integers(1, 3)), "N": draw(st.integers(0, 3))}
    pattern = build(kind.payload_class, **sizes)
    hints = get_type_hints(kind.payload_class)
    drawn: dict[str, Any] = {}
    for field in fields(kind.payload_class):
        hint = hints[field.name]
        if get_origin(hint) is np.ndarray:
            (scalar,) = get_args(get_args(hint)[1])
            shape = getattr(pattern, field.name).shape
            drawn[field.name] = draw(hnp.arrays(scalar, shape))
        elif field.metadata == UNSIGNED:
            drawn[field.name] = draw(st.integers(0, 2**64 - 1))
        elif hint in SCALARS:
            drawn[field.name] = draw(SCALARS[hint])
    place = st.none() | st.integers(0, 10**6)
    return TelemetryEvent.of(
        build(kind.payload_class, drawn, **sizes), draw(place), draw(place), draw(place), "cpu"
    )


ANY_EVENTS = st.lists(st.sampled_from(list(TelemetryEventType)).flatmap(any_event), max_size=6)
"""A stream of events of mixed types."""


def numbered(number: int, payload: Any = None) -> TelemetryEvent:
    """An event that can be told from others."""
    return TelemetryEvent.of(payload or CheckpointLoaded("runs/a", number), step=number)


@pytest.fixture(name="numbered")
def numbered_fixture() -> Callable[..., TelemetryEvent]:
    return numbered


@pytest.fixture(name="any_events", scope="session")
def any_events_fixture() -> st.SearchStrategy[list[TelemetryEvent]]:
    return ANY_EVENTS


@pytest.fixture(name="run_python")
def run_python_fixture() -> Callable[..., subprocess.CompletedProcess[str]]:
    def run_python(code: str, *args: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, *map(str, args)]
        return subprocess.run(command, capture_output=True, text=True, timeout=20)

    return run_python
