"""Views of a training run: what they say is what the run recorded, live, ended or killed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import pytest

from esper.karn import views
from esper.karn.views import RunKind, RunState, to_plain
from esper.leyline.codec import to_json
from esper.leyline.context import PLANNED, VARIED
from esper.leyline.errors import EsperError
from esper.leyline.statistics import student_estimate
from esper.storage.folder_lock import FolderLock
from esper.storage.sealed_json import read_document, seal
from event_files import read_jsonl


def events_of(run: Path, kind: str) -> list:
    return [one for one in read_jsonl(run / "events.jsonl") if one.type.name == kind]


def rewrite(path: Path, change) -> None:
    document = read_document(path)
    change(document)
    path.write_text(json.dumps(seal(document)))


def test_no_view_imports_torch():
    code = (
        "import sys, esper.karn.views as v; [getattr(v, name) for name in v.__all__]; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_summary_of_a_finished_run(ppo):
    found = views.run_summary(ppo)
    assert (found.kind, found.state, found.policy) == (RunKind.TRAIN, RunState.FINISHED, "ppo")
    assert (found.done, found.total, found.unit, found.progress) == (3, 3, "rounds", 1.0)
    last = events_of(ppo, "ROUND_COMPLETED")[-1].payload
    assert found.score == pytest.approx(last.mean_score)
    assert found.best_score == pytest.approx(last.best_score)
    assert 0 <= found.seconds < 600


def test_only_settings_and_checkpoints_say_that_rounds_vary_and_none_is_the_best(copy):
    """So a run that was killed before its first checkpoint is taken for what it is."""
    spoilt = copy / "checkpoints" / "round-000003" / "checkpoint.json"
    whole = spoilt.read_bytes()
    rewrite(spoilt, lambda it: it["content"]["summary"].update(varied=True))
    assert not views.run_summary(copy).ranked, "by the task's own context"
    spoilt.write_bytes(whole)
    assert views.run_summary(copy).ranked
    rewrite(copy / "config.json", lambda it: it["task"].update(contexts=to_json(VARIED)))
    found = views.run_summary(copy)
    assert (found.ranked, found.best_score, found.best_round) == (False, None, None)
    shutil.rmtree(copy / "checkpoints")
    assert not views.run_summary(copy).ranked
    rewrite(copy / "config.json", lambda it: it["task"].update(contexts=to_json(PLANNED)))
    found = views.run_summary(copy)
    assert (found.ranked, found.best_score) == (True, None)


def test_rounds_are_the_mean_and_interval_over_members(ppo):
    rounds = views.read_rounds(ppo)
    outcomes = events_of(ppo, "EPISODE_OUTCOME")
    assert [one.round for one in rounds] == [0, 1, 2]
    for point, event in zip(rounds, outcomes, strict=True):
        assert point.score == student_estimate(event.payload.score_E)
        assert point.accuracy == student_estimate(event.payload.accuracy_E)
        assert point.germinated == event.payload.germinated_E.mean()
    summary = events_of(ppo, "ROUND_COMPLETED")[1].payload
    assert tuple(count for _, count in rounds[1].stages) == summary.stage_counts
    assert rounds[1].seconds == summary.seconds
    assert views.read_rounds(ppo, after=0) == rounds[1:]


def test_rounds_without_events_come_from_the_history(ppo, copy):
    (copy / "events.jsonl").unlink()
    shutil.rmtree(copy / "events")
    with_events, without = views.read_rounds(ppo), views.read_rounds(copy)
    assert [one.score for one in without] == [one.score for one in with_events]
    assert to_plain(views.read_ppo(copy)) == to_plain(views.read_ppo(ppo))  # NaN is not NaN
    assert views.read_members(copy) == ()
    assert views.run_summary(copy).done == 3


def test_life_lines_are_the_changes_of_stage(ppo):
    lives = views.read_seeds(ppo, 0, 2)
    born = sum(int(one.payload.germinated_E.sum()) for one in events_of(ppo, "EPISODE_OUTCOME"))
    assert len(lives) == born > 0
    for life in lives:
        assert life.stages[0].stage == "GERMINATED"
        assert life.blueprint
        for one, after in zip(life.stages, life.stages[1:], strict=False):
            assert one.end == after.first
    pruned = sum(int(one.payload.pruned_E.sum()) for one in events_of(ppo, "EPISODE_OUTCOME"))
    assert sum(life.end == "pruned" for life in lives) == pruned
    newest = views.read_seeds(ppo)
    assert newest == tuple(life for life in lives if life.round == 2)


def test_members_are_those_of_the_end_of_the_round(ppo):
    members = views.read_members(ppo)
    outcome = events_of(ppo, "EPISODE_OUTCOME")[-1].payload
    step = events_of(ppo, "STEP_COMPLETED")[-1].payload
    assert [one.score for one in members] == outcome.score_E.tolist()
    assert [one.train_loss for one in members] == pytest.approx(step.train_loss_E.tolist())
    stages = [slot.stage for one in members for slot in one.slots]
    counts = dict(views.read_rounds(ppo)[-1].stages)
    assert {stage: stages.count(stage) for stage in counts} == counts


def test_members_of_a_round_under_way(copy):
    """As if the run were killed within its last round."""
    shutil.rmtree(copy / "events" / "EPISODE_OUTCOME")
    members, last = views.read_members(copy), events_of(copy, "STEP_COMPLETED")[-1]
    assert [one.step for one in members] == [last.step] * 2
    assert [one.score for one in members] == last.payload.score_E.tolist()


def test_learner_actions_and_speed(ppo):
    update = events_of(ppo, "PPO_UPDATED")[-1].payload.metrics
    point = views.read_ppo(ppo)[-1]
    assert point.approx_kl == update.approx_kl
    assert point.head_entropy == pytest.approx(update.head_entropy, nan_ok=True)
    counts = events_of(ppo, "ACTION_DISTRIBUTION")[1].payload
    actions = views.read_actions(ppo)[1]
    assert [one.chosen for one in actions.ops] == counts.chosen_O.tolist()
    assert [one.executed for one in actions.slots] == list(counts.slot_executed)
    speed = views.read_throughput(ppo)[2]
    assert speed.rows_per_member == events_of(ppo, "THROUGHPUT")[2].payload.rows_per_member
    assert {"TRAIN", "UPDATE"} <= dict(speed.phases).keys()


def test_steps_are_recorded_in_short_where_every_step_is_not(ppo, copy):
    shutil.rmtree(copy / "events" / "STEP_COMPLETED")
    every, short = views.read_steps(ppo, 1), views.read_steps(copy, 1)
    assert [one.step for one in short] == [one.step for one in every]
    for one, other in zip(short, every, strict=True):
        assert one.accuracy.value == pytest.approx(other.accuracy.value)
        assert one.accuracy.low == pytest.approx(other.accuracy.low)
        assert one.train_accuracy == pytest.approx(other.train_accuracy)


def test_a_learner_is_judged_beside_others(copy):
    """Two hosts: the reference is the learner, and differences are to it, host by host."""

    def judged(score: list[float], added: list[int]) -> dict:
        outcome = {"score_E": score, "added_params_E": added, "added_macs_E": added}
        return {"outcome": outcome, "test_E": score, "compute_E": [1.0, 1.0]}

    assert views.read_contenders(copy) == ()
    (copy / "report").mkdir(exist_ok=True)
    content = {"judged": {"ppo": judged([0.5, 0.7], [10, 20]), "wait": judged([0.2, 0.6], [0, 0])}}
    (copy / "report" / "learning.json").write_text(json.dumps(content))
    ppo, wait = views.read_contenders(copy)
    host = views.read_setup(copy).host_params
    assert (ppo.label, ppo.is_reference, ppo.params) == ("ppo", True, host + 15)
    assert (wait.is_reference, wait.params, wait.n) == (False, host, 2)
    assert wait.difference == student_estimate(np.array([0.2 - 0.5, 0.6 - 0.7]))


def test_contributions_are_those_measured(ppo):
    measured = [
        value
        for one in events_of(ppo, "COUNTERFACTUALS_MEASURED")
        for value in one.payload.contribution_N.tolist()
    ]
    found = [one.contribution for one in views.read_contributions(ppo, 0, 2)]
    assert np.array_equal(found, np.array(measured, dtype=np.float32), equal_nan=True)


def test_every_record_is_frozen_and_json(ppo):
    names = [name for name in views.__all__ if name.startswith("read_")]
    for name in names:
        found = getattr(views, name)(ppo)
        json.dumps(to_plain(found), allow_nan=False)
    with pytest.raises(FrozenInstanceError):
        views.read_rounds(ppo)[0].round = 1


# ---- state -------------------------------------------------------------------------------------


def test_a_run_whose_lock_is_held_is_running(copy):
    lock = FolderLock(copy)
    try:
        assert views.run_summary(copy).state is RunState.RUNNING
    finally:
        lock.release()
    assert views.run_summary(copy).state is RunState.FINISHED


@pytest.mark.parametrize(
    ("end", "state"), [(None, "killed"), ("INTERRUPTED", "interrupted"), ("FAILED", "failed")]
)
def test_how_a_run_ended(copy, end, state):
    rewrite(copy / "run.json", lambda run: run["sessions"][-1].update(end=end, failure="no disk"))
    found = views.run_summary(copy)
    assert (found.state.value, found.problem) == (state, "no disk")


def test_a_damaged_folder_is_listed_as_broken_and_harms_no_other(ppo, copy):
    (copy / "run.json").write_text("{")
    shutil.copytree(ppo, copy.with_name("whole"))
    listed = {run.name: run for run in views.list_runs(copy.parent)}
    assert listed["run"].state is RunState.BROKEN
    assert "run.json" in listed["run"].problem
    assert listed["whole"].state is RunState.FINISHED


def test_a_folder_without_a_run_is_one_line(tmp_path):
    with pytest.raises(EsperError, match="holds no run"):
        views.run_summary(tmp_path)
    with pytest.raises(EsperError, match="does not exist"):
        views.list_runs(tmp_path / "none")
    assert views.list_runs(tmp_path) == ()


def test_a_round_that_was_lost_and_repeated_counts_once(copy):
    """The killed session recorded round 2; the next began with it again, a minute later."""

    def resumed(run: dict) -> None:
        (first,) = run["sessions"]
        run["sessions"].append(first | {"started": "2100-01-01 00:00:00", "from_round": 2})

    assert [one.round for one in views.read_rounds(copy)] == [0, 1, 2]
    shutil.rmtree(copy / "checkpoints")
    rewrite(copy / "run.json", resumed)
    assert [one.round for one in views.read_rounds(copy)] == [0, 1]
    assert {life.round for life in views.read_seeds(copy, 0, 9)} <= {0, 1}


# ---- following ---------------------------------------------------------------------------------


def test_last_events_are_the_end_of_the_file(ppo):
    lines = [json.loads(line) for line in (ppo / "events.jsonl").read_text().splitlines()]
    for n in (1, 7, 10**6):
        found = views.last_events(ppo, n)
        assert [one.type for one in found] == [line["type"] for line in lines[-n:]]
    assert views.last_events(ppo, 0) == ()


def test_a_cursor_returns_every_event_once_however_it_is_written(ppo, copy):
    whole = (ppo / "events.jsonl").read_bytes()
    path, cursor, found = copy / "events.jsonl", views.EventCursor(copy), []
    path.unlink()
    assert cursor.read() == ()
    rng = np.random.default_rng(0)
    cuts = sorted({*rng.integers(0, len(whole), 60).tolist(), len(whole)})
    with path.open("wb") as file:
        for begin, end in zip([0, *cuts], cuts, strict=False):
            file.write(whole[begin:end])
            file.flush()
            found += cursor.read(max_bytes=1000)
    while new := cursor.read(max_bytes=1000):
        found += new
    assert found == list(views.last_events(ppo, 10**6))
    assert cursor.read() == ()


def test_a_cursor_survives_a_killed_writer_and_its_resumed_run(copy):
    """The incomplete last line is not told; the next writer cuts it off and goes on."""
    path, cursor = copy / "events.jsonl", views.EventCursor(copy)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:5]) + lines[5][:40])
    assert len(cursor.read()) == 5
    assert len(views.last_events(copy, 10)) == 5
    path.write_bytes(b"".join(lines[:5]))
    assert cursor.read() == ()
    path.write_bytes(b"".join(lines[:7]))
    assert [one.type for one in cursor.read()] == [json.loads(one)["type"] for one in lines[5:7]]


def test_a_run_is_followed_to_its_end(copy):
    cursor = views.RunCursor(copy)
    lock = FolderLock(copy)
    first = cursor.poll()
    assert first.changed
    assert not first.ended
    assert [one.round for one in first.rounds] == [0, 1, 2]
    again = cursor.poll()
    assert (again.changed, again.events, again.rounds) == (False, (), ())
    lock.release()
    last = cursor.poll()
    assert (last.changed, last.ended) == (True, True)


def test_events_elsewhere_are_found(copy, tmp_path):
    elsewhere = tmp_path / "telemetry"
    elsewhere.mkdir()
    for name in ("events", "events.jsonl"):
        (copy / name).rename(elsewhere / name)
    (copy / "session.json").write_text(json.dumps({"telemetry_dir": str(elsewhere)}))
    assert len(views.read_rounds(copy)) == 3
    assert views.read_seeds(copy, 0, 2)
    assert views.last_events(copy, 1)[0].type == "RUN_FINISHED"
