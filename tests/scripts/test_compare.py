"""`esper compare`: output files, saved results and statistics."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from esper.compare import Compare, compare_policies, policy_jobs
from esper.compare import folder as compare_folder
from esper.compare.comparison import METRICS, Comparison
from esper.compare.folder import result_path
from esper.compare.policies import make_entry
from esper.compare.report import markdown
from esper.jobs.settings import JobSettings
from esper.leyline import statistics
from esper.leyline.errors import EsperError
from esper.leyline.seeds import EVALUATION_SEEDS
from esper.scripts.compare import main
from esper.simic.training.config import TaskConfig
from esper.storage.folder_lock import FolderLock
from esper.storage.sealed_json import seal
from esper.tamiyo import WaitPolicy
from esper.tamiyo.grammar import parse
from esper.tasks.registry import get_task_spec
from esper.tolaria import EngineConfig, VectorizedEngine

TASK = TaskConfig("synthetic", episode_length=4, batches_per_step=1, batch_size=16)
TINY = Compare(("wait",), TASK, seeds=2, device="cpu", quiet=True)
FLAGS = ("--task", "synthetic", "--seeds", "3", "--envs", "2", "--device", "cpu",
         "--episode-length", "4", "--batches-per-step", "1", "--batch-size", "16")  # fmt: skip


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the intervals are is tested elsewhere."""
    monkeypatch.setattr(statistics, "RESAMPLES", 200)


def compared(out: Path, *policies: str, **changes: object) -> Comparison:
    return compare_policies(replace(TINY, policies=policies, out=out, **changes))


def call(*flags: object) -> int:
    return main([str(flag) for flag in flags])


class Counted:
    """How many populations were trained, by run seed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seeds: list[int] = []
        real = policy_jobs.run_population

        def counting(*inputs):
            self.seeds.append(inputs[4])
            return real(*inputs)

        monkeypatch.setattr(policy_jobs, "run_population", counting)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


# ---- end to end --------------------------------------------------------------------------------


def test_a_comparison_ends_with_a_table_a_report_and_numbers(tmp_path, capsys):
    assert call("wait", "static-full:norm", "mine=random", *FLAGS, "--out", tmp_path) == 0
    said = capsys.readouterr().out
    for word in ("wait (1/3), step 8/8", "P(better)", "minus wait", "mine", "s / host"):
        assert word in said, word
    text = (tmp_path / "compare.md").read_text()
    for metric in METRICS:
        assert f"## {metric.words} (" in text
    assert "| mean (t) | mean, minus wait (t) |" in text, "not of interquartile means"
    record = json.loads((tmp_path / "compare.json").read_text())
    assert [policy["label"] for policy in record["policies"]] == [
        "wait",
        "static-full:norm",
        "mine",
    ]
    assert record["reference"] == "wait"
    for policy in record["policies"]:
        assert len(policy["result"]["score_N"]) == 3
    assert record["policies"][0]["standings"][0]["difference"] is None
    grown = record["policies"][1]["result"]["parameters_N"]
    assert min(grown) > max(record["policies"][0]["result"]["parameters_N"])


def test_every_host_is_the_engines_own_member_under_its_run_seed(tmp_path):
    """3 hosts in populations of 2: members 0 and 1 of the first seed, member 0 of the next."""
    found = compared(tmp_path, "wait", seeds=3, envs=2)["wait"].result
    first = EVALUATION_SEEDS[0]
    assert found.seed_N.tolist() == [first, first, first + 1]
    assert found.member_N.tolist() == [0, 1, 0]
    alone = []
    for seed, members in ((first, 2), (first + 1, 1)):
        engine = VectorizedEngine(TASK.spec(), EngineConfig(members, seed, device="cpu"))
        outcome = engine.run_rollout(WaitPolicy()).outcome
        alone.append((outcome.score_E, engine.test()))
    assert found.score_N.tolist() == np.concatenate([score for score, _ in alone]).tolist()
    assert found.test_N.tolist() == np.concatenate([test for _, test in alone]).tolist()


def test_a_policy_does_not_differ_from_itself(tmp_path, counted):
    found = compared(tmp_path, "random", "random")
    assert len(counted.seeds) == 1, "the second is the same policy"
    again = found["random #2"]
    for standing in again.standings:
        assert standing.difference is not None
        assert standing.improvement is not None
        assert standing.difference.student.value == standing.difference.bootstrap.value == 0.0
        assert standing.difference.equal == 2
        assert standing.improvement.value == 0.5


def test_the_order_of_policies_changes_no_policys_numbers(tmp_path):
    there = compared(tmp_path / "a", "wait", "random", "static-full:norm")
    back = compared(tmp_path / "b", "static-full:norm", "random", "wait")
    for contestant in there.policies:
        other = back[contestant.label]
        assert replace(contestant.result, seconds_G=other.result.seconds_G) == other.result
        for one, two in zip(contestant.standings, other.standings, strict=True):
            assert (one.mean, one.iqm) == (two.mean, two.iqm)
    ahead = there["static-full:norm"].standing("parameters").difference
    behind = back["wait"].standing("parameters").difference
    assert ahead is not None
    assert behind is not None
    assert ahead.student.value == -behind.student.value > 0


def test_the_score_on_test_is_the_score_with_test_accuracy(tmp_path):
    found = compared(tmp_path, "wait", "static-full:norm")["static-full:norm"]
    result = found.result
    rent_N = result.accuracy_N - result.score_N
    assert rent_N.min() > 0
    np.testing.assert_allclose(result.score_test_N, result.test_N - rent_N, atol=1e-12)
    assert found.standing("score_test").mean.value == result.score_test_N.mean()


def test_static_final_of_a_policy_plants_what_it_ended_with_in_the_same_hosts(tmp_path, counted):
    task = replace(TASK, episode_length=16, blueprints=("norm", "conv_light"))
    policies = ("static-final:random", "wait")  # random is run for it, and not shown
    found = compared(tmp_path, *policies, task=task, seeds=5, envs=3)
    assert [one.label for one in found.policies] == list(policies)
    assert len(counted.seeds) == 6, "random, static-final and wait, two populations each"
    grown = compared(tmp_path, "random", *policies, task=task, seeds=5, envs=3)["random"].result
    assert len(counted.seeds) == 6, "random was kept"
    planted = found["static-final:random"].result
    assert len(np.unique(grown.blueprint_NS, axis=0)) > 1, "hosts must differ for this to tell"
    assert planted.blueprint_NS.tolist() == grown.blueprint_NS.tolist()
    assert planted.parameters_N.tolist() == grown.parameters_N.tolist()
    assert planted.germinated_N.sum() == 0


def test_waiting_longer_trains_longer_and_pays_for_it(tmp_path):
    found = compared(tmp_path, "wait", "wait:1.5", task=replace(TASK, rent=2.0))
    longer = found["wait:1.5"].result
    assert longer.flops_ratio_N.tolist() == [1.5, 1.5]
    spec = replace(TASK, rent=2.0).spec()
    engine = VectorizedEngine(
        replace(spec, episode_length=6), EngineConfig(2, EVALUATION_SEEDS[0], device="cpu")
    )
    alone = engine.run_rollout(WaitPolicy()).outcome
    assert longer.accuracy_N.tolist() == alone.accuracy_E.tolist()
    np.testing.assert_allclose(longer.score_N, alone.score_E - 0.5 * spec.score.c_f, atol=1e-12)


def test_restarts_are_counted_where_the_actions_have_them(tmp_path):
    task = replace(TASK, contexts='{"actions": "grow+restart"}')
    found = compared(tmp_path / "with", "wait", "restart:1,1,2", "best-of:2,1", task=task)
    counts = [found[it.label].result.restarts for it in found.policies]
    assert all(it is not None for it in counts)
    assert [it.count_N.tolist() for it in counts if it is not None] == [[0, 0], [2, 2], [0, 0]]
    assert found["best-of:2,1"].result.compute_N == pytest.approx(1 + 1 / 4)
    growth = markdown(found).partition("## Growth per host")[2].partition("## Settings")[0]
    assert "| rollbacks | restarts |" in growth
    assert "| restart:1,1,2 | 0.00 | 0.00 | 0.00 | 0.00 | 2.00 |" in growth
    without = compared(tmp_path / "without", "wait")
    assert "restarts" not in markdown(without).partition("## Growth per host")[2].split("\n\n")[1]
    (path,) = (tmp_path / "without" / "policies").iterdir()
    assert "restarts" not in json.loads(path.read_text())["result"], "files stay as they were"


def test_rent_is_a_multiple_of_what_growth_costs(tmp_path):
    free, own, dear = (
        compared(tmp_path / str(rent), "static-full:norm", task=replace(TASK, rent=rent))
        .policies[0]
        .result
        for rent in (0.0, 1.0, 2.0)
    )
    assert free.score_N.tolist() == free.accuracy_N.tolist()
    assert dear.accuracy_N.tolist() == own.accuracy_N.tolist()
    assert np.allclose(dear.accuracy_N - dear.score_N, 2 * (own.accuracy_N - own.score_N))


# ---- cut off, and gone on with -----------------------------------------------------------------


@pytest.mark.slow
def test_a_comparison_that_was_cut_off_resumes_where_it_stopped(tmp_path, monkeypatch, counted):
    """Cut at the third policy; the first two are not computed again, and nothing differs."""
    policies = ("wait", "random", "static-full:norm")
    whole = compared(tmp_path / "whole", *policies)
    real = policy_jobs.run_population

    def cut(config, entry, *rest):
        if entry.label == "static-full:norm":
            raise KeyboardInterrupt
        return real(config, entry, *rest)

    monkeypatch.setattr(policy_jobs, "run_population", cut)
    with pytest.raises(KeyboardInterrupt):
        compared(tmp_path / "cut", *policies)
    monkeypatch.setattr(policy_jobs, "run_population", real)
    counted.seeds.clear()
    resumed = compared(tmp_path / "cut", *policies)
    assert len(counted.seeds) == 1, "only the third"
    for one, two in zip(whole.policies, resumed.policies, strict=True):
        assert replace(one.result, seconds_G=two.result.seconds_G) == two.result
    counted.seeds.clear()
    compared(tmp_path / "cut", "random", "renamed=wait", "a=static-full:norm")
    assert not counted.seeds, "labels and order do not matter"


@pytest.mark.slow
def test_a_comparison_that_was_killed_resumes_where_it_stopped(tmp_path):
    """kill -9 while the second policy runs; the third time everything is there already."""
    policies = ("wait", "random", "static-full:norm")
    long = (*FLAGS, "--episode-length", "60", "--quiet")
    command = [sys.executable, "-m", "esper", "compare", *policies, *long, "--out"]
    killed = subprocess.Popen([*command, str(tmp_path / "cut")], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("cut/policies/wait-*.json")) and time.monotonic() < deadline:
        assert killed.poll() is None
        time.sleep(0.02)
    killed.kill()
    assert killed.wait() < 0, "it was still running"
    assert len(list(tmp_path.glob("cut/policies/*.json"))) < 3
    assert not list(tmp_path.glob("cut/compare.*"))
    for out in ("cut", "whole"):
        again = [*command, str(tmp_path / out)]
        subprocess.run(again, check=True, stdout=subprocess.DEVNULL)
    cut, whole = (json.loads((tmp_path / out / "compare.json").read_text()) for out in
                  ("cut", "whole"))  # fmt: skip
    for record in (cut, whole):
        for policy in record["policies"]:
            del policy["result"]["seconds_G"]
    assert cut == whole


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seeds": 4}, "seeds is 2 there and 4 here"),
        ({"task": replace(TASK, rent=0.5)}, "rent is 1.0 there and 0.5 here"),
        ({"task": replace(TASK, episode_length=8)}, "episode_length is 4 there and 8 here"),
        ({"first_seed": EVALUATION_SEEDS[7]}, "first_seed"),
        ({"task": replace(TASK, blueprints=("norm",))}, "blueprints"),
    ],
)
def test_other_settings_are_not_mixed_in(tmp_path, changes, words):
    compare_folder.open_folder(tmp_path, compare_folder.settings_of_comparison(TINY, TASK.spec()))
    with pytest.raises(EsperError, match=words) as refused:
        compared(tmp_path, "wait", **changes)
    assert "choose another --out" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_of_a_setting_that_a_folder_does_not_have_nothing_is_to_be_set_back(tmp_path):
    """It was made without one, or before they were kept."""
    before = compare_folder.settings_of_comparison(TINY, TASK.spec())
    compare_folder.open_folder(tmp_path, before)
    mine = tmp_path / "mine.py"
    mine.write_text("a = 1")
    for task in (replace(TASK, host="8x4k3"), replace(TASK, name=f"{mine}:a")):
        now = compare_folder.settings_of_comparison(replace(TINY, task=task), TASK.spec())
        with pytest.raises(EsperError, match=r"is None there and '.*' here; choose another --out"):
            compare_folder.open_folder(tmp_path, now)
    mine.write_text("a = 2")
    edited = compare_folder.settings_of_comparison(replace(TINY, task=task), TASK.spec())
    assert edited.task_file not in ("", now.task_file)


def test_a_heuristic_with_another_table_is_not_the_one_that_was_kept(tmp_path):
    config, spec = Compare(("heuristic",)), get_task_spec("digits_impaired")
    row, file, found = {"max_price": 1.0, "topology": []}, tmp_path / "table.json", []
    table = {"format": "esper-topology-table", "version": 1, "task": spec.name}
    for rows in ([row], [row, row | {"max_price": 2.0}], [row]):
        file.write_text(json.dumps(table | {"rows": rows}))
        identity = make_entry(config, parse(f"heuristic:{file}"), spec).identity
        found.append(result_path(tmp_path, identity))
    assert found[0] == found[2] != found[1]


def test_a_damaged_result_is_named_and_not_believed(tmp_path):
    compared(tmp_path, "wait")
    (path,) = (tmp_path / "policies").iterdir()
    whole = path.read_text()
    better = json.loads(whole)
    better["result"]["score_N"][0] += 0.5
    for content in (
        whole[: len(whole) // 2],
        "[]",
        "[" * 10**5,
        whole.replace('"score_N"', '"skore_N"'),
        json.dumps(better),
    ):
        path.write_text(content)
        with pytest.raises(EsperError, match="remove that file") as refused:
            compared(tmp_path, "wait")
        assert path.name in str(refused.value)


def test_a_result_of_another_policy_under_its_name_is_refused(tmp_path):
    compared(tmp_path, "wait")
    (path,) = (tmp_path / "policies").iterdir()
    kept = json.loads(path.read_text().replace('"policy": "wait"', '"policy": "random"'))
    path.write_text(json.dumps(seal(kept)))
    with pytest.raises(EsperError, match="belongs to another policy"):
        compared(tmp_path, "wait")


def test_a_full_disk_is_one_line_and_loses_no_policy(tmp_path, monkeypatch, counted):
    real = compare_folder.write_atomic

    def full(path, content):
        if path.name.startswith("random"):
            raise OSError(28, "No space left on device")
        real(path, content)

    monkeypatch.setattr(compare_folder, "write_atomic", full)
    with pytest.raises(EsperError, match="No space left on device"):
        compared(tmp_path, "wait", "random")
    monkeypatch.setattr(compare_folder, "write_atomic", real)
    counted.seeds.clear()
    compared(tmp_path, "wait", "random")
    assert len(counted.seeds) == 1, "only random was run again"


# ---- refusals ----------------------------------------------------------------------------------

BAD = [
    ((), "policies"),
    (("wiat",), "did you mean 'wait'"),
    (("wait", "--seeds", "0"), "--seeds 0"),
    (("wait", "--envs", "0"), "--envs 0"),
    (("wait", "--rent", "-1"), "rent"),
    (("wait", "--first-seed", "3"), "reserved for evaluation"),
    (
        ("wait", "--first-seed", EVALUATION_SEEDS[-1], "--seeds", "9", "--envs", "1"),
        "not all reserved",
    ),
    (("wait", "--task", "digits_impared"), "digits_impaired"),
    (("wait", *FLAGS, "--blueprints", "conv_hevy"), "conv_heavy"),
    (("fixed:conv_hevy", *FLAGS), "conv_heavy"),
    (("fixed:norm@3", *FLAGS), "germinate before step 3"),
    (("static-full:norm:r9c9", *FLAGS), "r9c9"),
    (("static-final:r0c0=conv_lite", *FLAGS), "conv_light"),
    (("static-final:r0c0=norm,r0c0=norm", *FLAGS), "r0c0 is named twice"),
    (("./nowhere", *FLAGS), "folder 'nowhere' does not exist"),
    (("wait", *FLAGS, "--device", "cuda:7"), "cuda:7"),
    (("wait", "--seedss", "3"), "--seeds"),
]


@pytest.mark.parametrize(("flags", "word"), BAD, ids=[" ".join(map(str, b[0][:3])) for b in BAD])
def test_bad_flags_are_refused_in_one_line(flags, word, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call(*flags) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert word in said
    assert not (tmp_path / "out" / "policies").exists()


def test_all_words_are_checked_before_anything_runs(tmp_path, counted):
    with pytest.raises(EsperError, match="conv_heavy"):
        compared(tmp_path, "wait", "fixed:conv_hevy")
    assert not counted.seeds
    assert not list(tmp_path.iterdir())


def test_help_is_quick_and_names_every_setting():
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "esper", "compare", "--help"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0
    assert time.monotonic() - began < 30
    assert " torch\n" not in done.stderr, "help does not load torch"
    for flag in ("--task", "--seeds", "--first-seed", "--rent", "--out", "static-final"):
        assert flag in done.stdout


def test_a_folder_that_another_command_writes_is_refused_and_then_complete(tmp_path):
    lock = FolderLock(tmp_path)
    with pytest.raises(EsperError, match="is in use"):
        compared(tmp_path, "wait")
    lock.release()
    compared(tmp_path, "wait")
    held = FolderLock(tmp_path)
    compared(tmp_path, "wait")  # nothing is missing: read alone
    held.release()


def test_two_processes_give_the_results_of_one(tmp_path):
    policies = ("wait", "static-final:random")
    one, two = (
        compared(tmp_path / str(n), *policies, envs=1, jobs=JobSettings(processes=n))
        for n in (1, 2)
    )
    for ours, theirs in zip(one.policies, two.policies, strict=True):
        assert replace(ours.result, seconds_G=theirs.result.seconds_G) == theirs.result
