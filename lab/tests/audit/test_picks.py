"""What is picked at three prices, and the picture of it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.text import Annotation

from audit_synthetic import PRICED, made_audit
from esper.leyline.context import Range
from esper_lab.audit.bench import Bench
from esper_lab.audit.cases import TermsSpec, final_means
from esper_lab.audit.frontier_picture import draw_frontier, frontier_figure
from esper_lab.audit.leaderboard import BUILT_IN
from esper_lab.audit.picks import Pick, collect_picks, shown_policies
from esper_lab.audit.policies import never
from esper_lab.figures.labels import overlap
from support import refused

CHEAP = {name: BUILT_IN[name] for name in ("bare", "table", "best")}


@pytest.fixture(scope="module")
def bench():
    return Bench(made_audit(contexts=6, hosts=4, slots=2, noise=0.01))


@pytest.fixture(scope="module")
def found(bench):
    return collect_picks(bench, CHEAP)


def by_name(found, name):
    return [pick for pick in found.picks if pick.name == name]


def test_every_policy_and_a_search_are_there_at_each_price(found):
    assert len(found.prices) == 3
    for name in (*CHEAP, "asha:9"):
        assert [pick.price for pick in by_name(found, name)] == list(found.prices)


def test_a_pick_is_the_mean_of_what_was_recorded(found, bench):
    finals = final_means(bench.audit, np.arange(4))
    np.testing.assert_allclose(found.test_K, finals.test_CJ.mean(axis=0))
    for pick in by_name(found, "bare"):
        assert pick.params == pytest.approx(100)
        assert pick.test == pytest.approx(found.test_K[0], abs=1e-6)
        assert pick.compute == pytest.approx(bench.audit.contexts.budget_C.mean(), rel=1e-5)


def test_networks_shrink_with_the_price_and_a_search_costs_more(found):
    for name in ("table", "best", "asha:9"):
        low, middle, high = (pick.params for pick in by_name(found, name))
        assert low >= middle >= high
        assert low > high
    assert by_name(found, "asha:9")[0].compute > 2 * by_name(found, "table")[0].compute


def test_a_run_that_stops_early_has_the_accuracy_of_that_step(bench):
    class StopsAtOnce:
        def plan(self, obs):
            return np.zeros(len(obs.topology_N), dtype=np.int64)

        def stop(self, obs, step):
            return ~never(obs)

    at_once = by_name(collect_picks(bench, {"x": lambda *_: StopsAtOnce()}), "x")
    records = bench.audit.records
    lost = records.accuracy_CHKT[:, :, 0, -1] - records.accuracy_CHKT[:, :, 0, 1]
    assert at_once[0].test == pytest.approx((records.test_CHK[:, :, 0] - lost).mean(), abs=1e-6)
    assert at_once[0].compute == pytest.approx(records.compute_CHKT[..., 0, 1].mean(), rel=1e-6)


def test_caps_and_other_prices_do_not_matter(bench, found):
    capped = Bench(bench.audit, TermsSpec(bench.terms.price, capped=1.0))
    again = by_name(collect_picks(capped, {"bare": CHEAP["bare"]}), "bare")
    assert again == by_name(found, "bare")
    one = collect_picks(Bench(bench.audit, TermsSpec(Range(2.0, 2.0))), {"bare": CHEAP["bare"]})
    assert one.prices == (2.0,)


def test_one_step_has_no_curve_to_predict_from():
    assert "predict" not in shown_policies(Bench(made_audit(contexts=3, slots=1, steps=1)))


# ---- the picture -------------------------------------------------------------------------------


def texts(figure) -> list[str]:
    parts = (figure, *figure.subfigs, *figure.axes)
    return [text.get_text() for part in parts for text in part.texts]


def labels_of(axes) -> list[Annotation]:
    return [text for text in axes.texts if isinstance(text, Annotation)]


LIVE = (
    Pick("closed loop", 300.0, 0.5, 2.5, 0.2),
    Pick("learner $x$", 200.0, 0.4, 3.25),
)


def test_labels_name_every_pick_and_do_not_cover_each_other(found):
    figure = frontier_figure(found, LIVE)
    panels = figure.axes[:3]
    for place, axes in enumerate(panels):
        labels = labels_of(axes)
        said = " ".join(label.get_text().replace("\n", " ") for label in labels)
        for name in (*CHEAP, "asha:9", "learner $x$"):
            assert name in said
        assert ("closed loop" in said) == (place == 0), "at the price nearest to its own"
        boxes = [label.get_window_extent() for label in labels]
        for one, two in itertools.combinations(boxes, 2):
            assert overlap(one, two) == 0.0


def test_a_network_that_fails_to_train_does_not_squeeze_the_others(found):
    before = frontier_figure(found).axes[0].get_ylim()
    test_K = found.test_K.copy()
    test_K[-2] = -50.0
    figure = frontier_figure(replace(found, test_K=test_K))
    low, high = figure.axes[0].get_ylim()
    assert high - low < 3 * (before[1] - before[0])
    assert any("triangles: far less accurate" in text for text in texts(figure))
    assert not any("triangles" in text for text in texts(frontier_figure(found)))


def test_panels_say_what_a_price_means(found):
    figure = frontier_figure(found)
    for axes, price in zip(figure.axes[:3], found.prices, strict=True):
        gain = 100 * price * (PRICED.c_p + PRICED.c_m)
        assert f"twice the size must gain {gain:.2g} points" in axes.get_title(loc="left")
        assert axes.get_xscale() == "log"


def test_the_table_has_accuracy_size_and_compute(found):
    said = texts(frontier_figure(found, LIVE))
    assert "3.2" in said, "compute of the learner"
    (first,) = (pick for pick in by_name(found, "table") if pick.price == found.prices[0])
    assert f"{100 * first.test:.1f} %" in said
    assert "search over 9 networks" in said


def test_long_names_and_notes_have_room_in_the_table(found):
    notes = ("plants too much; prunes and stops", "regression; stops when gains do not pay")
    live = [
        Pick(name, 150.0 + 9 * i, 0.45, 2.0, price, note)
        for i, (name, note) in enumerate(
            zip(
                ("closed_loop_generous", "digits_impaired__ppo__1__20261116-122724"),
                notes,
                strict=True,
            )
        )
        for price in found.prices
    ]
    figure = frontier_figure(found, live)
    assert set(notes) <= set(texts(figure))
    (table,) = figure.subfigs[1].axes
    boxes = [text.get_window_extent() for text in table.texts]
    for one, two in itertools.combinations(boxes, 2):
        assert overlap(one, two) == 0.0
    for axes in figure.axes[:3]:
        boxes = [label.get_window_extent() for label in labels_of(axes)]
        assert not any(overlap(one, two) for one, two in itertools.combinations(boxes, 2))


def test_the_picture_is_a_png_and_deterministic(found, tmp_path):
    draw_frontier(tmp_path / "a.png", found, LIVE)
    draw_frontier(tmp_path / "b.png", found, LIVE)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_nothing_recorded_everywhere_is_refused(found, tmp_path):
    unknown = type(found)(
        **{f: getattr(found, f) for f in type(found).__dataclass_fields__ if f != "test_K"},
        test_K=np.full_like(found.test_K, np.nan),
    )
    assert "no topology" in refused(lambda: draw_frontier(tmp_path / "x.png", unknown))
