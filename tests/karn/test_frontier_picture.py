"""The picture of a comparison: who is on the frontier, and that everything can be read."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import imread
from matplotlib.text import Annotation

from esper.karn import frontier_picture
from esper.karn.frontier_picture import PolicyPoint, draw_frontier
from esper.leyline.errors import EsperError
from esper.leyline.statistics import Estimate
from esper.plotting.labels import overlap
from esper.plotting.style import frontier, marker_style

NAMES = ("wait", "random", "heuristic", "static-full", "fixed:conv_heavy@2:r0c0,r0c1",
         "static-final:r0c0=depthwise,r0c1=depthwise", "learned")  # fmt: skip
COSTS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=9)


def around(value: float, reach: float) -> Estimate:
    return Estimate(value, value - reach, value + reach)


def points(count: int = 7, spread: float = 1.0) -> list[PolicyPoint]:
    rng = np.random.default_rng(0)
    return [
        PolicyPoint(
            label=NAMES[i % len(NAMES)],
            accuracy=around(0.3 + spread * 0.08 * i, 0.02),
            parameters=around(200 + spread * 150 * i, 20),
            flops_ratio=around(1 + spread * 0.7 * i, 0.1),
            difference=None if i == 0 else around(rng.normal(0, 0.1), 0.03),
            improvement=None if i == 0 else around(0.5, 0.1),
        )
        for i in range(count)
    ]


@given(COSTS)
def test_the_frontier_is_what_no_other_beats(pairs):
    cost, worth = [float(c) for c, _ in pairs], [float(w) for _, w in pairs]

    def beaten(i: int) -> bool:
        return any(
            cost[j] <= cost[i]
            and worth[j] >= worth[i]
            and (cost[j], worth[j]) != (cost[i], worth[i])
            for j in range(len(pairs))
        )

    found = frontier(cost, worth)
    assert sorted(found) == [i for i in range(len(pairs)) if not beaten(i)]
    assert [cost[i] for i in found] == sorted(cost[i] for i in found)


def test_what_is_unknown_is_not_on_the_frontier():
    assert frontier([1.0, 2.0, 3.0], [math.nan, 0.2, 0.3]) == [1, 2]


def test_labels_do_not_cover_each_other_and_rows_name_every_policy():
    figure = frontier_picture._figure(points(7, 0.25), "a title", "a note")
    for axes in figure.axes[:2]:
        labels = [text for text in axes.texts if isinstance(text, Annotation)]
        assert len(labels) == 7
        boxes = [label.get_window_extent() for label in labels]
        for one, two in itertools.combinations(boxes, 2):
            assert overlap(one, two) == 0.0
        for box in boxes:
            assert figure.bbox.x0 <= box.x0
            assert box.x1 <= figure.bbox.x1
    rows = figure.axes[2]
    assert [label.get_text() for label in rows.get_yticklabels()] == list(NAMES)
    written = [text.get_text() for text in rows.texts]
    assert written[0] == "the reference"
    assert all("P 0.50" in text for text in written[1:])


@pytest.mark.parametrize("count", [1, 20])
def test_any_number_of_policies_is_drawn(count, tmp_path):
    path = tmp_path / "picture.png"
    draw_frontier(path, points(count), "a title", "a note")
    image = imread(path)
    assert image.shape[1] > 1000
    assert image[0, 0, :3].tolist() == [1.0, 1.0, 1.0], "on white"
    styles = [marker_style(i) for i in range(count)]
    looks = {(style["marker"], style["color"]) for style in styles}
    assert len(looks) == count, "told apart by shape and colour"


def test_unknown_intervals_are_left_out_and_a_label_with_dollar_signs_is_no_formula(tmp_path):
    unknown = Estimate(0.5, math.nan, math.nan)
    only = PolicyPoint(r"a$\nope{$b", unknown, unknown, unknown, unknown, unknown)
    draw_frontier(tmp_path / "picture.png", [only], "one host", "")
    assert imread(tmp_path / "picture.png").shape[2] >= 3


def test_nothing_to_draw_is_refused(tmp_path):
    with pytest.raises(EsperError, match="nothing to draw"):
        draw_frontier(tmp_path / "picture.png", [], "none", "")
