"""Views of a search while it runs, after it was judged, and with a part damaged."""

from __future__ import annotations

import math

import pytest

from esper.karn import views
from esper.karn.views import RunState
from esper.leyline.errors import EsperError
from esper.storage.folder_lock import FolderLock
from search_folder import INFO, RESULT, ROWS, row, search_folder, write


def points(run):
    return {point.label: point for point in views.read_frontier(run)}


def test_validation_scores_are_there_from_the_first_run_on(tmp_path):
    found = points(search_folder(tmp_path / "run", ROWS[:1], has_result=False))
    assert [(one.val_score, one.is_host, one.on_frontier) for one in found.values()] == [
        (0.7, True, True)
    ]
    assert math.isnan(found["0"].score.value)


def test_the_live_frontier_is_of_validation_within_the_budget(tmp_path):
    found = points(search_folder(tmp_path / "run", has_result=False))
    assert sorted(found) == ["0", "1", "2", "3", "4"], "planned ones have no score"
    assert [label for label in sorted(found) if found[label].on_frontier] == ["1", "2"]
    assert [label for label in found if found[label].is_host] == ["1"], "its best run"
    assert all(math.isnan(one.score.value) and not one.is_pick for one in found.values())


def test_a_network_tells_what_its_card_shows(tmp_path):
    one = points(search_folder(tmp_path / "run"))["2"]
    assert (one.variant, one.topology, one.parent, one.is_pick) == (
        "x2 d0.5",
        ("", "norm"),
        "0",
        True,
    )
    assert one.recipe == "adamw, rate 0.01, 30 batches of 16, shift"
    assert (one.score.value, one.score.low, one.score.high) == pytest.approx((0.85, 0.83, 0.87))
    assert (one.gain, one.val_gain) == pytest.approx((0.1, 0.1))
    assert (one.latency.value, one.latency.low, one.latency.high) == (1.5, 1.2, 2.0)
    assert (one.length, one.seconds, one.elapsed) == pytest.approx((1.0, 2.0, 6.0))


def test_only_judged_networks_have_a_test_score(tmp_path):
    found = points(search_folder(tmp_path / "run"))
    assert sorted(label for label in found if math.isfinite(found[label].score.value)) == ["1", "2"]
    assert found["3"].val_score == 0.95


def test_a_run_judged_before_its_end_is_under_way_while_the_search_runs(tmp_path):
    run = search_folder(tmp_path / "run", has_result=False)
    lock = FolderLock(run)
    live = {label for label, one in points(run).items() if one.under_way}
    lock.release()
    assert live == {"4"}
    assert not any(one.under_way for one in points(run).values()), "it was cut"


def test_the_best_so_far_waits_for_the_end_of_a_run(tmp_path):
    rows = (row(0, 100, 0.7), row(1, 100, 0.9, status="cut", trained=10))
    run = search_folder(tmp_path / "run", rows, has_result=False)
    lock = FolderLock(run)
    live = views.run_summary(run).result.score, [one.val_score for one in views.read_best(run)]
    lock.release()
    assert live == (0.7, [0.7])
    assert views.run_summary(run).result.score == 0.9, "it was cut"


def test_a_metric_that_falls_gains_by_falling(tmp_path):
    rows = tuple(one | {"lower_is_better": True} for one in ROWS)
    run = search_folder(tmp_path / "run", rows, has_result=False)
    write(run / "grow.json", INFO | {"higher_is_better": False})
    found = points(run)
    assert [label for label in found if found[label].is_host] == ["0"]
    assert found["2"].val_gain == pytest.approx(-0.2)
    assert [one.val_score for one in views.read_best(run)] == [0.7]


def test_the_best_score_so_far_rises_by_steps(tmp_path):
    found = views.read_best(search_folder(tmp_path / "run"))
    assert [(one.elapsed, one.val_score, one.label) for one in found] == [
        (2.0, 0.7, "0"), (4.0, 0.8, "1"), (6.0, 0.9, "2"),
    ]  # fmt: skip


def test_the_headline_is_the_pick_on_test_and_before_that_says_validation(tmp_path):
    live = views.run_summary(search_folder(tmp_path / "live", has_result=False))
    assert live.headline == "validation accuracy 0.9000 so far, 300 parameters"
    assert live.score is None
    done = views.run_summary(search_folder(tmp_path / "done"))
    assert done.headline == "test accuracy 0.8500 ± 0.0200, 300 parameters, +0.1 against your model"
    write(tmp_path / "done" / "result.json", RESULT | {"pick": 1})
    assert views.run_summary(tmp_path / "done").headline.endswith("100 parameters: your model")


@pytest.mark.parametrize("name", ["search.json", "result.json"])
def test_a_damaged_part_is_named_and_the_rest_is_there(tmp_path, name):
    run = search_folder(tmp_path / "run")
    (run / name).write_text("{")
    found = views.run_summary(run)
    assert (found.state, found.task) == (RunState.BROKEN, "Net")
    assert name in found.problem
    assert sorted(points(run)) == ["0", "1", "2", "3", "4"]
    assert bool(found.verdict) == (name == "search.json")


def test_what_is_left_of_nothing_is_its_damage(tmp_path):
    run = search_folder(tmp_path / "run", has_result=False)
    (run / "search.json").write_text("{")
    for read in (views.read_frontier, views.read_curves, views.read_best):
        with pytest.raises(EsperError, match=r"search\.json"):
            read(run)


def test_a_network_offers_what_is_in_the_folder(tmp_path):
    run = search_folder(tmp_path / "run")
    (run / "networks" / "0002.key").write_text("no file of a network")
    (run / "networks" / "0002.safetensors").symlink_to(run / "grow.json")
    found = views.network_detail(run, 2)
    assert [(file.name, file.size) for file in found.files] == [
        ("0002-plain/manifest.json", 2), ("0002.py", 13),
    ]  # fmt: skip
    assert found.script == "import torch\n"
    assert found.curve == ((10.0, 2.0), (30.0, 1.0))
    assert found.pick == f"esper.GrowResult.load({str(run)!r}).pick()"
    assert views.network_detail(run, 1).pick.endswith(".pick(params=100)")
    assert (views.network_detail(run, 3).pick, views.network_detail(run, 3).script) == ("", "")
    with pytest.raises(EsperError, match="no network 7"):
        views.network_detail(run, 7)


def test_a_model_that_others_beat_at_its_size_is_the_host(tmp_path):
    run = search_folder(tmp_path / "run")
    smaller = RESULT["networks"][1] | {"params": 90, "macs": 900}
    write(run / "result.json", RESULT | {"networks": [smaller]})
    assert views.network_detail(run, 1).pick.endswith(").host")
