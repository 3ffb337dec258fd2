"""Live episodes: what is trained is what the records say, and what policies decide counts."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from audit_support import FinishedAudit, live_policies
from context_support import planned_engine
from esper.leyline.context import MemberTerms
from esper_lab.audit.bench import Bench, SimulatedEpisodes
from esper_lab.audit.cases import TermsSpec, within_caps
from esper_lab.audit.closed_loop import ClosedLoop, ClosedLoopConfig
from esper_lab.audit.leaderboard import play
from esper_lab.audit.live import LiveRun, LiveSettings
from esper_lab.audit.live_policies import BenchLive, ReadyPolicy
from esper_lab.audit.live_rows import LiveRows, live_path, read_live
from esper_lab.audit.live_static import static_makers
from esper_lab.audit.policies import Oracle
from esper_lab.audit.records import rows_path, scores
from support import refused

DRAWS = 4
CONTEXTS, HOSTS, TOPOLOGIES = 2, 2, 4
FREE = LiveSettings(draws=DRAWS, terms=TermsSpec(capped=0.0), picture_hosts=0)


class Draw:
    """A policy of the bench: plants topology d in draw d, stops after `stop` steps."""

    def __init__(self, stop: int | None = None) -> None:
        self.stop_at, self.seen = stop, []

    def plan(self, obs):
        return np.arange(len(obs.topology_N)) % TOPOLOGIES

    def stop(self, obs, step):
        self.seen.append((step, obs))
        return np.full(len(obs.topology_N), step == self.stop_at)


def live(small: FinishedAudit, path: Path, policy: object) -> LiveRows:
    run = LiveRun(path, small.audit, {"mine": lambda *_: policy}, FREE)
    run.run(small.runner())
    return run.rows["mine"]


class Planted:
    """Episodes of `Draw`, which never stops."""

    def __init__(self, small: FinishedAudit, path: Path) -> None:
        self.path, self.plan = path, Draw()
        self.fitted: list[list[int]] = []
        run = LiveRun(path, small.audit, {"mine": self.make}, FREE)
        run.run(small.runner())
        self.rows = run.rows["mine"]

    def make(self, bench, contexts):
        self.fitted.append(contexts.tolist())
        return BenchLive(bench, self.plan)


@pytest.fixture(scope="module")
def planted(small, tmp_path_factory) -> Planted:
    return Planted(small, tmp_path_factory.mktemp("planted"))


# ---- the same contexts, hosts and batches ------------------------------------------------------


def test_planting_a_topology_gives_the_recorded_curve_again(small, planted):
    plan, rows = planted.plan, planted.rows
    assert rows.context_N.tolist() == [0] * DRAWS + [1] * DRAWS
    assert rows.host_N.tolist() == [0, 1, 0, 1] * CONTEXTS
    assert rows.topology_N.tolist() == [0, 1, 2, 3] * CONTEXTS
    at = rows.context_N, rows.host_N, rows.topology_N
    records, info = small.audit.records, small.audit.info
    np.testing.assert_array_equal(
        rows.accuracy_N.astype(np.float32), records.accuracy_CHKT[(*at, -1)]
    )
    np.testing.assert_array_equal(rows.test_N.astype(np.float32), records.test_CHK[at])
    np.testing.assert_array_equal(
        rows.compute_N.astype(np.float32), records.compute_CHKT[(*at, -1)]
    )
    assert rows.planted == tuple(info.topologies[k] for k in rows.topology_N)
    assert rows.final == rows.planted
    np.testing.assert_array_equal(rows.params_N, np.array(info.params)[rows.topology_N])
    assert (rows.steps_N == info.steps).all()
    for n in range(len(rows)):
        made = scores(
            info,
            np.full(TOPOLOGIES, rows.accuracy_N[n]),
            np.full(TOPOLOGIES, rows.compute_N[n]),
            rows.price_N[n],
        )
        assert rows.score_N[n] == pytest.approx(made[rows.topology_N[n]], abs=1e-12)
    half = len(plan.seen) // CONTEXTS
    for context, (step, obs) in enumerate((plan.seen[half - 1], plan.seen[-1])):
        seen = slice(context * DRAWS, (context + 1) * DRAWS)
        here = tuple(index[seen] for index in at)
        for name in ("control", "train_loss", "compute", "loss"):
            np.testing.assert_array_equal(
                getattr(obs, f"{name}_NT"),
                getattr(records, f"{name}_CHKT")[here][:, : step + 1],
                err_msg=f"{name} is seen as in the simulated engine, bit for bit",
            )


def test_stop_keeps_the_score_of_its_step(small, tmp_path):
    bench = Bench(small.audit, FREE.terms)
    rows = live(small, tmp_path, BenchLive(bench, Draw(stop=2)))
    at = rows.context_N, rows.host_N, rows.topology_N
    records = small.audit.records
    trained_N = records.compute_CHKT[(*at, 2)] > 0
    assert trained_N.any()
    assert not trained_N.all(), "a network that costs much has not trained on any batch"
    last_N = np.where(trained_N, 2, small.audit.info.steps)
    np.testing.assert_array_equal(rows.steps_N, last_N)
    np.testing.assert_array_equal(
        rows.accuracy_N.astype(np.float32), records.accuracy_CHKT[(*at, last_N)]
    )
    np.testing.assert_allclose(rows.compute_N, records.compute_CHKT[(*at, last_N)], rtol=1e-6)
    np.testing.assert_allclose(rows.score_N, bench.scores(at, last_N, rows.price_N), atol=1e-6)
    played = SimulatedEpisodes(bench, len(rows))
    seen = played.reset_to(rows.context_N, rows.host_N, rows.draw_N, seed=0)
    same = play(played, Draw(stop=2), seen)
    np.testing.assert_array_equal(same.steps_N, last_N)


def test_prices_and_caps_are_those_of_the_cases(small, tmp_path):
    capped = replace(FREE, terms=TermsSpec(capped=1.0))
    run = LiveRun(tmp_path, small.audit, live_policies(("closed_loop_fill", "one")), capped)
    run.run(small.runner())
    params_K = np.array(small.audit.info.params)
    for name, rows in run.rows.items():
        assert np.isfinite(rows.params_cap_N).all()
        assert (rows.params_N <= rows.params_cap_N).all()
        assert (rows.macs_N <= rows.macs_cap_N).all()
        assert len(np.unique(rows.price_N)) == len(rows)
        drawn = run.cases(1).observed
        np.testing.assert_array_equal(rows.price_N[DRAWS:], drawn.price_N)
        if name == "one":
            fits_NK = np.concatenate(
                [within_caps(small.audit.info, run.cases(c).observed) for c in (0, 1)]
            )
            assert fits_NK[np.arange(len(rows)), rows.topology_N].all()
            np.testing.assert_array_equal(rows.params_N, params_K[rows.topology_N])
    assert (run.rows["closed_loop_fill"].params_N > params_K[0]).any(), "something fits"


def test_terms_are_checked():
    two, one = np.ones(2), np.ones(1)
    assert "price 0 of member 0" in refused(lambda: MemberTerms(0 * two, two, two))
    engine = planned_engine(members=3)
    engine.context.terms = MemberTerms(one, np.inf * one, np.inf * one)
    assert "1 members for 3" in refused(lambda: engine.context.begin_round(0, 0))


# ---- policies ----------------------------------------------------------------------------------


def test_any_policy_can_be_run_and_what_it_prunes_is_gone(small, tmp_path):
    config = ClosedLoopConfig(prune_from=0.0, patience=1, charge=1e6, prune_speed=0, stops=False)
    full = np.zeros((DRAWS, len(small.audit.info.slots)), dtype=np.int64)
    rows = live(small, tmp_path, ReadyPolicy(ClosedLoop(full, config)))
    assert all(all(seeds) for seeds in rows.planted)
    assert (rows.pruned_N == small.audit.info.steps - 1).all(), "one a step, none at the last"
    left = [sum(map(bool, seeds)) for seeds in rows.final]
    np.testing.assert_array_equal(left, len(small.audit.info.slots) - rows.pruned_N)


def test_a_final_topology_that_was_recorded_gives_its_record_again(small, planted):
    """`Draw` never prunes, so what it ends with is what it planted."""
    makers = static_makers(planted.path, Bench(small.audit, FREE.terms), ["mine"])
    run = LiveRun(planted.path, small.audit, makers, FREE)
    assert [piece.policy for piece in run.missing()] == ["mine, static"] * CONTEXTS
    run.run(small.runner())
    rows, own = run.rows["mine, static"], planted.rows
    assert rows.planted == rows.final == own.final
    np.testing.assert_array_equal(rows.score_N, own.score_N)
    again = LiveRun(planted.path, small.audit, makers, FREE)
    assert not again.missing(), "its file is that of the same settings"


def test_what_was_pruned_is_not_planted(small, tmp_path):
    config = ClosedLoopConfig(prune_from=0.0, patience=1, charge=1e6, prune_speed=0, stops=False)
    full = np.zeros((DRAWS, len(small.audit.info.slots)), dtype=np.int64)
    loop = live(small, tmp_path, ReadyPolicy(ClosedLoop(full, config)))
    makers = static_makers(tmp_path, Bench(small.audit, FREE.terms), ["mine"])
    run = LiveRun(tmp_path, small.audit, makers, FREE)
    run.run(small.runner())
    static = run.rows["mine, static"]
    assert static.planted == static.final == loop.final
    assert static.planted != loop.planted
    np.testing.assert_array_equal(static.params_N, loop.params_N)
    np.testing.assert_array_equal(static.host_N, loop.host_N)
    assert not static.pruned_N.any()


def test_a_static_topology_needs_the_policy_first(small, tmp_path):
    bench = Bench(small.audit, FREE.terms)
    assert "is missing" in refused(lambda: static_makers(tmp_path, bench, ["mine"]))


def test_policies_that_look_into_the_records_are_refused(small):
    assert "looks into the records" in refused(lambda: BenchLive(Bench(small.audit), Oracle()))
    assert "draws=0" in refused(lambda: LiveSettings(draws=0))


def test_policies_are_fitted_on_other_contexts(planted):
    assert planted.fitted == [[1], [0]]


# ---- files -------------------------------------------------------------------------------------


def test_resumed_equals_uninterrupted(small, tmp_path):
    policies = live_policies(("bare", "one"))
    whole = LiveRun(tmp_path / "whole", small.audit, policies, FREE)
    (tmp_path / "whole").mkdir()
    whole.run(small.runner())
    (tmp_path / "cut").mkdir()
    with pytest.raises(KeyboardInterrupt):
        LiveRun(tmp_path / "cut", small.audit, policies, FREE).run(small.new_runner(), StopAt(1))
    resumed = LiveRun(tmp_path / "cut", small.audit, policies, FREE)
    assert [(p.policy, p.context) for p in resumed.missing()] == [
        ("bare", 1), ("one", 0), ("one", 1),
    ]  # fmt: skip
    resumed.run(small.runner())
    for name in policies:
        paths = [live_path(tmp_path / place, name) for place in ("whole", "cut")]
        assert read_live(paths[0]) == read_live(paths[1])
        assert read_live(paths[0])[0] == whole.rows[name]
    again = LiveRun(tmp_path / "whole", small.audit, policies, FREE)
    assert again.missing() == []


class StopAt:
    """A listener that interrupts a piece at its second step."""

    def __init__(self, piece: int) -> None:
        self.pieces_left = piece + 1

    def on_live(self, piece: object) -> None:
        self.pieces_left -= 1

    def on_step(self, record: object) -> None:
        if not self.pieces_left and record.signals.step == 1:
            raise KeyboardInterrupt

    def on_round_start(self, round_index: int, members: int) -> None: ...

    def on_slot_events(self, round_index: int, step: int, payload: object) -> None: ...

    def on_round_end(self, rollout: object) -> None: ...


def test_other_settings_and_damage_are_one_line(small, planted, tmp_path):
    path = live_path(tmp_path, "mine")
    shutil.copytree(planted.path, tmp_path, dirs_exist_ok=True)

    def again(audit=small.audit, settings=FREE):
        return LiveRun(tmp_path, audit, {"mine": lambda *_: None}, settings)

    assert "draws is 4 there and 5 here" in refused(lambda: again(settings=replace(FREE, draws=5)))
    other = replace(small.audit, info=replace(small.audit.info, seed=9))
    assert "belongs to another audit" in refused(lambda: again(other))
    kept = path.read_bytes()
    path.write_bytes(kept[: len(kept) // 2])
    assert str(path) in refused(again)
    path.write_bytes(rows_path(small.path, 0).read_bytes())
    assert "not a file of live episodes" in refused(again)
