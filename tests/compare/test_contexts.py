"""Contexts and policies in `esper compare`: the same contexts for all, what each policy is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from esper.compare import Compare, compare_policies, judging
from esper.compare.comparison import Comparison, PolicyDone
from esper.compare.folder import SETTINGS
from esper.compare.judging import judgement_table
from esper.compare.matching import first_reaching, matching_compute
from esper.compare.policies import make_entry
from esper.compare.report import score_table
from esper.karn.views.contenders import read_contenders
from esper.leyline import statistics
from esper.leyline.context import PLANNED, VARIED, ContextSpec, Range
from esper.leyline.errors import EsperError
from esper.leyline.signals import NO_BLUEPRINT
from esper.scripts.compare import main
from esper.simic.training.config import TaskConfig
from esper.storage.sealed_json import sealed_bytes
from esper.tamiyo.grammar import parse
from esper.tamiyo.topology_table import TableRow, TopologyTable
from esper.tasks.contexts import draw_round

MIXED = ContextSpec(
    actions="full",
    clock="compute",
    price=Range(0.1, 4.0),
    learning_rate=Range(0.5, 2.0),
    capped=0.6,
    budget=None,
    min_groups=2,
    label_noise=Range(0.0, 0.3),
)
TASK = TaskConfig("synthetic", episode_length=6, batches_per_step=1, batch_size=16, contexts=MIXED)
FIXED_TASK = replace(TASK, contexts=None)
TINY = Compare(("wait",), TASK, seeds=5, envs=3, device="cpu", quiet=True)


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the intervals are is tested elsewhere."""
    monkeypatch.setattr(statistics, "RESAMPLES", 200)


def compared(out: Path, *policies: str, **changes: object) -> Comparison:
    return compare_policies(replace(TINY, policies=policies, out=out, **changes))


def table(path: Path, task: str = "synthetic") -> Path:
    rows = (TableRow(0.8, ("r0c0=norm", "r0c1=conv_light")), TableRow(2.0, ("r0c0=norm",)))
    path.write_bytes(sealed_bytes(TopologyTable(task, (*rows, TableRow(99.0, ())))))
    return path


# ---- contexts ----------------------------------------------------------------------------------


def test_under_the_compute_clock_larger_networks_train_for_the_same_compute(tmp_path):
    """What would not pay for another batch is left over."""
    argv = [
        "--task", "synthetic", "--episode-length", "3", "--batches-per-step", "4", "--seeds", "2",
        "--batch-size", "8", "--device", "cpu", "--quiet", "--out", str(tmp_path),
    ]  # fmt: skip
    assert main(["wait", "static-full:conv_light", *argv, "--contexts", "planned"]) == 0
    found = json.loads((tmp_path / "compare.json").read_text())
    host, full = (policy["result"] for policy in found["policies"])
    assert full["parameters_N"][0] > 2 * host["parameters_N"][0]
    assert host["flops_ratio_N"] == [1.0, 1.0]
    assert all(0.7 < ratio <= 1.0 for ratio in full["flops_ratio_N"])


@pytest.mark.slow
def test_all_policies_meet_the_same_contexts_whatever_they_may_grow(tmp_path):
    """A policy with fewer blueprints than the task has the caps and budgets of the others."""
    policies = ("wait", "random", "asha:2", "replay:random", "static-full:norm")
    found = compared(tmp_path / "all", *policies)
    contexts = found["wait"].result.contexts
    assert contexts is not None
    for policy in policies[1:]:
        assert found[policy].result.contexts == contexts, policy
    assert len(np.unique(contexts.price_N)) == 5
    assert 0 < np.isfinite(contexts.params_cap_N).sum() < 5
    assert len(np.unique(contexts.budget_N)) == 3, "two hosts to a draw"
    capped_N = np.isfinite(contexts.params_cap_N)
    for policy in policies:
        result = found[policy].result
        assert (result.parameters_N[capped_N] <= contexts.params_cap_N[capped_N]).all()
        assert (result.macs_N[capped_N] <= contexts.macs_cap_N[capped_N]).all()
        if policy != "asha:2":
            assert (result.compute_N <= contexts.budget_N + 1e-9).all()


def test_contexts_do_not_depend_on_the_blueprints_of_a_policy(tmp_path):
    from esper.compare.host_runs import HostRunner, draw_limits

    spec = TASK.spec()
    data, population = spec.load(), TINY.population
    limits = draw_limits(spec, population, data)
    runner = HostRunner(population, data, limits)
    whole = make_entry(TINY, parse("wait"), spec)
    fewer = replace(whole, spec=replace(spec, blueprints=("norm",)))
    drawn = [runner.run(entry, TINY.first_seed, 3).result.contexts for entry in (whole, fewer)]
    assert drawn[0] == drawn[1]
    assert draw_limits(FIXED_TASK.spec(), population, data) is None


def test_the_price_of_a_host_is_in_its_score_on_both_parts_of_the_data(tmp_path):
    found = compared(tmp_path, "table:" + str(table(tmp_path / "t.json")))
    result, spec = found.policies[0].result, TASK.spec()
    assert result.contexts is not None
    growth_p = (result.parameters_N - result.host_params) / result.host_params
    growth_m = (result.macs_N - result.host_macs) / result.host_macs
    rent_N = spec.score.rent(growth_p, growth_m, result.flops_ratio_N - 1.0)
    rent_N = result.contexts.price_N * rent_N
    np.testing.assert_allclose(result.score_N, result.accuracy_N - rent_N, atol=1e-12)
    np.testing.assert_allclose(result.score_test_N, result.test_N - rent_N, atol=1e-12)


@pytest.mark.parametrize(("shared", "draws"), [(1, 5), (2, 3), (8, 2)])
def test_few_hosts_share_a_draw_and_intervals_are_over_draws(shared, draws):
    """Five hosts, at most three at a time; a task as it is has no draws to share."""
    config = replace(TINY, hosts_per_context=shared)
    populations = config.populations(TASK.spec())
    assert len(populations) == len({seed for seed, _ in populations}) == draws
    assert sum(members for _, members in populations) == 5
    assert len(config.populations(FIXED_TASK.spec())) == 2
    budgets = [draw_round(MIXED, TASK.spec(), seed, 0, 4.0).budget for seed, _ in populations]
    assert len(set(budgets)) == draws


def test_intervals_and_means_count_contexts_not_hosts(tmp_path):
    """Five hosts in draws of 2, 2 and 1: means subtract to differences in every medium."""
    done: list[PolicyDone] = []
    config = replace(TINY, policies=("wait", "static-full:norm"), seeds=5, out=tmp_path)
    found = compare_policies(config, on_round=done.append)
    wait, norm = (found[name].result for name in ("wait", "static-full:norm"))
    assert found.draws == len(np.unique(wait.contexts.budget_N)) == 3
    gained_D = statistics.group_means(norm.score_N - wait.score_N, np.array([0, 0, 1, 1, 2]))
    difference = found["static-full:norm"].standing("score").difference
    assert difference.above + difference.equal + difference.below == 3
    by_context = statistics.student_estimate(gained_D)
    assert difference.student.high == pytest.approx(by_context.high)
    assert difference.student.value == pytest.approx(by_context.value)
    shown = {one.label: one for one in read_contenders(tmp_path)}
    assert (shown["wait"].n, shown["wait"].score.high) == (
        3, pytest.approx(found["wait"].standing("score").mean.high),
    )  # fmt: skip
    for one in done:
        standings = {it.metric: it.mean.value for it in found[one.label].standings}
        assert one.means == pytest.approx(standings)
        page = shown[one.label]
        sizes = {"parameters": page.params, "macs": page.macs, "compute": page.compute}
        assert sizes == pytest.approx({name: standings[name] for name in sizes})
    means = {one.label: one.means["score"] for one in done}
    assert means["static-full:norm"] - means["wait"] == pytest.approx(by_context.value)


def test_printed_columns_of_a_judged_learner_subtract_where_draws_are_uneven():
    draw_E = np.array([0, 0, 1, 1, 2])
    scores = {"ppo": np.arange(5.0), "wait": np.array([3.0, 1.0, 4.0, 1.0, 5.0])}

    def run(score_E):
        outcome = SimpleNamespace(score_E=score_E, accuracy_E=score_E, added_params_E=score_E)
        result = SimpleNamespace(outcome=outcome, test_E=score_E)
        return judging.PolicyRun(result, score_E, ("norm",))

    runs = {name: run(score_E) for name, score_E in scores.items()}
    judged = judging.Judged(runs, SimpleNamespace(host_params=1), draw_E)
    _, *columns, differences, _ = (list(one.cells) for one in judgement_table(judged).columns)
    apart = float(differences[1])
    for ppo, wait in columns:
        scale = 0.01 if wait.endswith("%") else 1.0
        numbers = (scale * float(cell.strip("%")) for cell in (wait, ppo))
        assert np.subtract(*numbers) == pytest.approx(apart, abs=0.01)


def test_fresh_members_of_a_learner_are_the_hosts_of_a_comparison():
    for task, draws in ((TASK, [0, 0, 1, 1, 2]), (FIXED_TASK, [0, 1, 2, 3, 4])):
        spec = task.spec()
        assert judging._populations(spec, 5) == replace(TINY, envs=32).populations(spec)
        assert judging._draw_numbers(spec, 5).tolist() == draws


def test_printed_scores_subtract_to_the_printed_differences(tmp_path):
    found = compared(tmp_path, "wait", "static-full:norm", task=FIXED_TASK)
    _, scores, differences, *_ = (list(column.cells) for column in score_table(found).columns)
    wait, norm = (float(cell.split()[0]) for cell in scores)
    assert float(differences[1].split()[0]) == pytest.approx(norm - wait, abs=0.0015)
    assert norm != pytest.approx(found["static-full:norm"].standing("score").iqm.value, abs=1e-3)


def test_a_single_host_is_replayed_on_another(tmp_path):
    found = compared(tmp_path, "wait", "replay:wait", task=FIXED_TASK, seeds=1)
    assert found["replay:wait"].result.score_N.tolist() == found["wait"].result.score_N.tolist()


def test_a_folder_of_other_contexts_is_refused(tmp_path):
    compared(tmp_path, "wait", task=FIXED_TASK)
    assert json.loads((tmp_path / SETTINGS).read_text())["context"]["actions"] == "grow"
    with pytest.raises(EsperError, match=r"context.actions is 'grow' there and 'full' here"):
        compared(tmp_path, "wait", task=replace(TASK, contexts=PLANNED))


# ---- policies ----------------------------------------------------------------------------------


def test_a_table_plants_by_price_with_and_without_a_plan_phase(tmp_path):
    path = table(tmp_path / "t.json")
    priced = ContextSpec(price=Range(0.1, 4.0))
    found = compared(
        tmp_path / "out", f"t=table:{path}", task=replace(TASK, contexts=priced), seeds=12, envs=12
    )["t"].result
    assert found.contexts is not None
    norm, light = (found.blueprints.index(name) for name in ("norm", "conv_light"))
    none = NO_BLUEPRINT
    for price, kinds in zip(found.contexts.price_N, found.blueprint_NS.tolist(), strict=True):
        wanted = [norm, light, none] if price <= 0.8 else [norm, none, none]
        assert kinds == (wanted if price <= 2 else [none] * 3)
    flat = compared(
        tmp_path / "flat", f"t=table:{path}", "s=static-final:r0c0=norm", task=FIXED_TASK
    )
    assert flat["t"].result.score_N.tolist() == flat["s"].result.score_N.tolist()


@pytest.mark.parametrize(("rent", "seeds"), [(0.0, 2), (0.5, 2), (1.0, 1), (3.0, 0)])
def test_a_table_follows_the_rent(tmp_path, rent, seeds):
    """Prices of a table are relative to the task's own, whatever it is multiplied by."""
    spec = replace(FIXED_TASK, rent=rent).spec()
    policy = make_entry(TINY, parse(f"table:{table(tmp_path / 't.json')}"), spec).policy(0)
    wanted = policy.table.wanted(np.ones(1), spec.slots, spec.blueprints)
    assert (wanted != NO_BLUEPRINT).sum() == seeds


def test_contexts_are_named_in_python_as_on_the_command_line():
    assert TaskConfig("synthetic", contexts="varied").spec().context == VARIED
    own = TaskConfig("synthetic", contexts='{"price": {"low": 0.5, "high": 2}}')
    assert own.spec().context.price == Range(0.5, 2.0)
    with pytest.raises(EsperError, match="unknown contexts 'vared'"):
        TaskConfig("synthetic", contexts="vared")


def test_a_static_topology_leaves_out_what_exceeds_the_caps(tmp_path):
    tight = ContextSpec(capped=1.0, cap=Range(0.1, 0.6))
    found = compared(
        tmp_path, "static-full:conv_light", "static-final:random", "random",
        task=replace(TASK, contexts=tight),
    )  # fmt: skip
    full = found["static-full:conv_light"].result
    assert full.contexts is not None
    assert (full.parameters_N <= full.contexts.params_cap_N).all()
    grown_N = (full.blueprint_NS != NO_BLUEPRINT).sum(axis=1)
    assert 0 < grown_N.sum() < grown_N.size * 3
    planted, source = found["static-final:random"].result, found["random"].result
    assert planted.blueprint_NS.tolist() == source.blueprint_NS.tolist(), "it fits: it was grown"


@pytest.mark.slow
def test_a_replay_repeats_the_plan_and_the_steps_of_the_neighbour(tmp_path):
    """random decides by position, whatever it sees: its replay does the same, where it may."""
    uncapped = replace(MIXED, capped=0.0)
    found = compared(tmp_path, "random", "replay:random", task=replace(TASK, contexts=uncapped))
    own, replayed = (found[name].result for name in ("random", "replay:random"))
    assert (own.blueprint_NS != NO_BLUEPRINT).any()
    assert (own.germinated_N >= replayed.germinated_N).all()
    waits = compared(tmp_path, "wait", "replay:wait", task=replace(TASK, contexts=uncapped))
    assert waits["wait"].result.score_N.tolist() == waits["replay:wait"].result.score_N.tolist()


@pytest.mark.slow
def test_waiting_as_another_policy_spends_its_compute(tmp_path):
    grown = compared(
        tmp_path / "a", "static-full:norm", "w=wait:as:static-full:norm", task=FIXED_TASK
    )
    ratio = grown["static-full:norm"].result.flops_ratio_N.mean()
    steps = round(6 * ratio)
    assert grown["w"].result.flops_ratio_N.tolist() == pytest.approx([steps / 6] * 5)
    equal = compared(tmp_path / "b", "wait", "random", "w=wait:as:random", "s=wait:as:asha:4",
                     task=replace(TASK, contexts=PLANNED))  # fmt: skip
    wait = equal["wait"].result
    assert equal["w"].result.score_N.tolist() == wait.score_N.tolist(), "the clock is equal anyway"
    assert (equal["s"].result.compute_N > 1.5).all(), "a search spends more"


def test_the_report_names_compute_contexts_and_n_star(tmp_path, capsys):
    flags = ("--task", "synthetic", "--episode-length", "6", "--batches-per-step", "1",
             "--batch-size", "16", "--seeds", "3", "--device", "cpu", "--quiet",
             "--contexts", "planned", "--out", str(tmp_path))  # fmt: skip
    assert main(["wait", "heuristic", "asha:1", "asha:4", *flags]) == 0
    said = capsys.readouterr().out
    for word in ("contexts planned", "with search", "N* of heuristic"):
        assert word in said, word
    text = (tmp_path / "compare.md").read_text()
    for word in ("## N*", "## Contexts", "| price of growth | 1 | 1 | 3 of 3 |", "score on test"):
        assert word in text, word
    record = json.loads((tmp_path / "compare.json").read_text())
    assert {match["metric"] for match in record["matching_compute"]} == {"score", "score_test"}
    for policy in record["policies"]:
        assert len(policy["score_test_N"]) == len(policy["compute_N"]) == 3
        assert len(policy["result"]["contexts"]["price_N"]) == 3
    assert record["settings"]["context"]["clock"] == "compute"


@pytest.mark.slow
def test_n_star_is_where_the_searches_reach_the_score(tmp_path):
    points = [(1.0, 0.50), (1.5, 0.60), (2.0, 0.58), (2.5, 0.70)]
    assert first_reaching(points, 0.55) == (pytest.approx(1.25), "")
    assert first_reaching(points, 0.64) == (pytest.approx(2.25), "")
    assert first_reaching(points, 0.40) == (1.0, "<")
    assert first_reaching(points, 0.71) == (2.5, ">")
    found = compared(tmp_path, "wait", "heuristic", "asha:1", "asha:2")
    (score, test) = matching_compute(found)
    assert (score.label, score.metric, test.metric) == ("heuristic", "score", "score_test")
    assert matching_compute(compared(tmp_path, "heuristic", "asha:1", "again=asha:1")) == ()


# ---- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "changes", "says"),
    [
        ("table:OTHER", {}, "made for task other, not for synthetic"),
        ("heuristic:OTHER", {}, "made for task other, not for synthetic"),
        ("table:NEWER", {}, "version 2, this Esper reads version 1"),
        ("table:nowhere.json", {}, "cannot read nowhere.json"),
        ("table:SLOTS", {}, "unknown slot 'r9c9'"),
        ("asha:0", {}, "expected asha:N"),
        ("asha:x", {}, "expected asha:N"),
        ("asha:128", {}, "7 halvings need an episode of at least 8 steps, it has 6"),
        ("blind:heuristic", {}, "heuristic is not a controller"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line_before_anything_does(
    tmp_path, policy, changes, says
):
    rows = (TableRow(1.0, ("r9c9=norm",)),)
    for name, version in (("slots", 1), ("newer", 2)):
        written = sealed_bytes(TopologyTable("synthetic", rows, version))
        (tmp_path / f"{name}.json").write_bytes(written)
    files = {
        "OTHER": table(tmp_path / "other.json", "other"),
        "NEWER": tmp_path / "newer.json",
        "SLOTS": tmp_path / "slots.json",
    }
    for word, path in files.items():
        policy = policy.replace(word, str(path))
    with pytest.raises(EsperError) as refused:
        compared(tmp_path / "out", "wait", policy, **changes)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_what_is_hidden_may_have_a_seed_of_its_own():
    """A replay is recorded in the same visible context, with other noise and other groups."""
    spec = TASK.spec()
    varied = replace(VARIED, label_noise=Range(0.0, 0.4))
    for seed in range(20):
        here = draw_round(varied, spec, seed, 0, 4.0)
        there = draw_round(varied, spec, seed, 0, 4.0, hidden_seed=seed + 1000)
        assert (here.budget, here.data_share) == (there.budget, there.data_share)
        assert here.groups == there.groups
        assert here.pixel_noise != there.pixel_noise
        assert here.label_noise != there.label_noise
        assert here == draw_round(varied, spec, seed, 0, 4.0, hidden_seed=seed)
