"""Views of grow, compare and policies that do not learn."""

from __future__ import annotations

import json
import math
import shutil

import pytest

from esper.growing.folder import read_table
from esper.growing.result import GrowResult
from esper.karn import views
from esper.karn.views import RunKind, RunState, to_plain
from esper.storage.folder_lock import FolderLock
from esper.storage.sealed_json import read_document, seal


def test_a_policy_run_has_the_same_views(policy):
    found = views.run_summary(policy)
    assert (found.kind, found.policy, found.state) == (RunKind.TRAIN, "random", RunState.FINISHED)
    assert (found.done, found.total) == (2, 2)
    rounds = views.read_rounds(policy)
    stored = read_document(policy / "rounds" / "round-000002.json")
    assert found.score == pytest.approx(stored["summary"]["score"])
    assert rounds[1].score.value == pytest.approx(found.score)
    assert views.read_ppo(policy) == ()
    assert views.read_seeds(policy, 0, 1)


def test_stored_rounds_count_without_events(policy, tmp_path):
    shutil.copytree(policy, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "events")
    assert [one.score for one in views.read_rounds(tmp_path / "run")] == [
        one.score for one in views.read_rounds(policy)
    ]


def test_a_search_tells_its_frontier_and_its_budget(grown):
    result = GrowResult.load(grown)
    found = views.run_summary(grown)
    assert (found.kind, found.state, found.task) == (RunKind.GROW, RunState.FINISHED, "Sequential")
    assert found.verdict == result.verdict
    points = {point.label: point for point in views.read_frontier(grown)}
    on_frontier = {label for label, point in points.items() if point.on_frontier}
    assert on_frontier == {str(one.number) for one in result.record.networks}
    pick = points[str(result.record.pick)]
    assert pick.is_pick
    assert pick.score.value == result.best.record.test_score
    assert [point.params for point in points.values()] == sorted(p.params for p in points.values())
    budget = views.run_summary(grown)
    assert (budget.done, budget.total) == (result.record.runs, result.info.runs)
    curves = views.read_curves(grown)
    scores = {str(row.number): row.score for row in read_table(grown).rows if row.ended}
    assert scores[curves[0].label] == result.best.val_score, "the best network first"
    assert any(curve.finished for curve in curves)
    runs = [row for row in read_table(grown).rows if row.ended]
    assert sum(len(curve.points) for curve in curves) == len(runs) > len(curves)
    assert "given" in {curve.origin for curve in curves}


def write_rows(grown, folder, *changes):
    """A copy of a search whose runs are copies of its first with some entries changed."""
    shutil.copytree(grown, folder)
    document = json.loads((folder / "search.json").read_text())
    first, rows = document["rows"][0], []
    for number, change in enumerate(changes):
        of_recipe = {name: value for name, value in change.items() if name in first["recipe"]}
        of_row = {name: value for name, value in change.items() if name not in first["recipe"]}
        rows.append(first | {"number": number, "recipe": first["recipe"] | of_recipe} | of_row)
    (folder / "search.json").write_text(json.dumps(seal(document | {"rows": rows})))
    return first


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"augment": "shift"}, "augmentation shift"),
        ({"weight_decay": 0.25}, "weight decay 0.25"),
        ({"label_smoothing": 0.1}, "label smoothing 0.1"),
        ({"lr": 0.123}, "rate 0.123"),
        ({"optimizer": "other"}, "optimizer other"),
        ({"clip": 9.0}, "clip 9"),
        ({"seed": 77}, "seed 77"),
        ({"start": 5}, "weights of run 5"),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else "",
)
def test_runs_of_different_recipes_or_seeds_are_different_curves(grown, tmp_path, change, text):
    write_rows(grown, tmp_path / "run", {}, change)
    assert {one.recipe for one in views.read_curves(tmp_path / "run")} == {"", text}


def test_runs_that_differ_in_length_alone_are_one_curve(grown, tmp_path):
    first = write_rows(grown, tmp_path / "run", {}, {"batches": 7, "trained": 7, "score": 0.1})
    (curve,) = views.read_curves(tmp_path / "run")
    full = first["recipe"]["batches"]
    assert [point.length for point in curve.points] == pytest.approx([7 / full, 1.0])
    assert curve.recipe == ""


def test_lengths_of_runs_are_compared_by_samples_whatever_their_batch_size(grown, tmp_path):
    recipe = read_table(grown).rows[0].recipe
    halved = {"batch_size": 2 * recipe.batch_size, "batches": recipe.batches // 2}
    write_rows(grown, tmp_path / "run", {}, halved | {"trained": recipe.batches // 2})
    curves = {one.recipe: one for one in views.read_curves(tmp_path / "run")}
    assert set(curves) == {"", f"batch size {2 * recipe.batch_size}"}
    lengths = [point.length for curve in curves.values() for point in curve.points]
    assert lengths == pytest.approx([1.0, 1.0], abs=0.5 / recipe.batches * 2)
    assert all(curve.finished for curve in curves.values())


def test_a_search_by_a_metric_that_falls_lists_the_lowest_first(grown, tmp_path):
    shutil.copytree(grown, tmp_path / "run")
    document = json.loads((tmp_path / "run" / "search.json").read_text())
    for row in document["rows"]:
        row["lower_is_better"] = True
    (tmp_path / "run" / "search.json").write_text(json.dumps(seal(document)))
    best = [min(p.score for p in curve.points) for curve in views.read_curves(tmp_path / "run")]
    assert best == sorted(best)
    assert best[0] < best[-1]


def test_a_search_that_time_alone_limits_is_done_by_the_minute(grown, tmp_path):
    shutil.copytree(grown, tmp_path / "run")
    document = json.loads((tmp_path / "run" / "grow.json").read_text())
    document |= {"runs": "Infinity", "budget": {"minutes": 2.0}}
    (tmp_path / "run" / "grow.json").write_text(json.dumps(seal(document)))
    lock = FolderLock(tmp_path / "run")
    budget = views.run_summary(tmp_path / "run")
    lock.release()
    assert (budget.total, budget.unit) == (2.0, "minutes")
    assert budget.done == pytest.approx(budget.seconds / 60.0)
    assert budget.seconds_left == pytest.approx(120.0 - budget.seconds)


def test_a_search_without_a_result_was_killed(grown, tmp_path):
    shutil.copytree(grown, tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    (tmp_path / "run" / "sessions.json").unlink()
    found = views.run_summary(tmp_path / "run")
    assert (found.state, found.unit) == (RunState.KILLED, "training runs")
    assert found.done > 0
    assert all(math.isnan(point.score.value) for point in views.read_frontier(tmp_path / "run"))
    assert views.read_curves(tmp_path / "run")


def test_a_comparison_tells_what_its_report_tells(compared):
    found = views.run_summary(compared)
    assert (found.kind, found.state, found.done) == (RunKind.COMPARE, RunState.FINISHED, 2)
    reported = {
        one["label"]: one for one in json.loads((compared / "compare.json").read_text())["policies"]
    }
    for contender in views.read_contenders(compared):
        standing = reported[contender.label]["standings"][0]
        assert contender.score.value == pytest.approx(standing["mean"]["value"])
        assert contender.score.low == pytest.approx(standing["mean"]["low"])
        assert contender.is_reference == (contender.label == "wait")
        if not contender.is_reference:
            student = standing["difference"]["student"]
            assert contender.difference.value == pytest.approx(student["value"])


def test_a_comparison_that_recorded_no_session_yet_has_done_nothing(compared, tmp_path):
    shutil.copytree(compared, tmp_path / "run")
    (tmp_path / "run" / "sessions.json").unlink()
    found = views.run_summary(tmp_path / "run")
    assert (found.state, found.done, found.total) == (RunState.INTERRUPTED, 0, None)


def test_every_view_reads_every_kind(policy, grown, compared):
    for run in (policy, grown, compared):
        for name in (name for name in views.__all__ if name.startswith("read_")):
            json.dumps(to_plain(getattr(views, name)(run)), allow_nan=False)
        cursor = views.RunCursor(run)
        assert cursor.poll().changed
        assert not cursor.poll().changed
