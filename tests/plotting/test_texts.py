"""Numbers and durations have one form: Python and the dashboard's script write the same texts."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from pathlib import Path

import pytest

import esper.karn.web
from esper.leyline.statistics import Estimate
from esper.plotting.durations import duration
from esper.plotting.numbers import interval, number, short_number, signed, tick_texts

FORMAT_JS = Path(esper.karn.web.__file__).parent / "static" / "js" / "format.js"
ASK = """
import(process.argv[1]).then((f) => {
  const asked = JSON.parse(require("fs").readFileSync(0, "utf8"));
  const tell = (v) => [f.number(v), f.number(v, 3), f.number(v, 2), f.signed(v),
    f.short(v), f.duration(v), f.interval({ value: v, low: v - 1, high: v * 1.5 })];
  const unknown = [null, undefined, NaN, Infinity];
  console.log(JSON.stringify({ one: asked.values.map(tell), ticks: asked.ticks.map(f.tickTexts),
    unknown: unknown.map((v) => [f.number(v), f.signed(v), f.duration(v)]) }));
});
"""


def values() -> list[float]:
    """Numbers of every size, those at the edges of a form, and exact halves among them."""
    draw = random.Random(0)
    found = [draw.choice((1, -1)) * draw.uniform(1, 10) * 10 ** draw.uniform(-9, 16)
             for _ in range(4000)]  # fmt: skip
    found += [draw.randrange(-(10**6), 10**6) / 2 ** draw.randrange(0, 12) for _ in range(2000)]
    edges = [0.0, -0.0, 1.0, 0.04, 0.05, 0.94, 0.95, 0.96, 59.4, 59.5, 3599.5, 86399.6,
             999.5, 999.95, 9999.5, 9999.96, 99999.4, 1e15, 999_999.5, 1e-3,
             9.996e-4, 0.00099996, 2.0625, 0.25, 1234.5, 12.5, 1e14 + 0.5]  # fmt: skip
    return [*found, *edges, *(-edge for edge in edges)]


def told(v: float) -> list[str]:
    return [number(v), number(v, 3), number(v, 2), signed(v), short_number(v),
            duration(v), interval(Estimate(v, v - 1, v * 1.5))]  # fmt: skip


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_dashboard_writes_numbers_and_durations_as_python_does():
    asked = values()
    ticks = [
        [start + i * step for i in range(5)]
        for start in (0.0, 0.97, 5.0, 12_000.0, -3.0)
        for step in (1e-4, 0.2, 5.0, 2500.0)
    ]
    found = json.loads(
        subprocess.run(
            ["node", "-e", ASK, FORMAT_JS.as_uri()],
            input=json.dumps({"values": asked, "ticks": ticks}),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )
    different = [(v, told(v), js) for v, js in zip(asked, found["one"], strict=True)
                 if told(v) != js]  # fmt: skip
    assert different == []
    assert [tick_texts(one) for one in ticks] == found["ticks"]
    assert found["unknown"] == [["-", "-", "-"]] * 4


def test_texts_tell_ticks_apart_and_are_short():
    assert tick_texts([0.97115, 0.9712, 0.97125]) == ["0.97115", "0.9712", "0.97125"]
    assert tick_texts([0, 2e6, 4e6]) == ["0", "2M", "4M"]
    assert short_number(999_999) == "1M"
    assert [duration(s) for s in (0, 0.97, 59.7, 3600)] == [
        "0 s",
        "1 s",
        "1 min 0 s",
        "1 h 0 min",
    ]
