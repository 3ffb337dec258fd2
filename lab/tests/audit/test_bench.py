"""Is the simulated engine the engine, on records whose scores are known?"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from audit_synthetic import PRICED, made_audit, overfitting_audit
from esper.leyline.context import FIXED, Range
from esper.leyline.errors import EsperError
from esper_lab.audit.bench import Bench, SimulatedEpisodes
from esper_lab.audit.cases import TermsSpec
from esper_lab.audit.leaderboard import BUILT_IN, leaderboard, run_policy
from esper_lab.audit.policies import Oracle, Patience, PlanOnly, Policy, RandomPlan, fit_planner


class Scripted:
    """Plants one topology and stops after given steps."""

    def __init__(self, topology_N, stop_at_N):
        self.topology_N, self.stop_at_N = topology_N, stop_at_N

    def plan(self, obs):
        return self.topology_N

    def stop(self, obs, step):
        return self.stop_at_N == step


def closed_form(audit, context, topology, price, step):
    """Score of a noiseless made audit whose gain does not depend on the context."""
    info = audit.info
    capacity = np.log2(info.params[topology] / 100)
    final = 0.2 + 0.3 * capacity / (capacity + 1)
    rise = (1 - np.exp(-4.0 * step / info.steps)) / (1 - np.exp(-4.0))
    compute = audit.contexts.budget_C[context] * step / info.steps
    rent = PRICED.c_p * capacity + PRICED.c_f * (compute - 1)
    return 0.1 + (final - 0.1) * rise - price * rent


@pytest.fixture(scope="module")
def plain():
    return made_audit(matters=False, contexts=6)


@pytest.fixture(scope="module")
def varied():
    return made_audit(noise=0.02, hidden=0.1, contexts=12)


def test_what_a_policy_of_the_bench_gets_is_read_only(plain):
    bench = Bench(plain)
    for read_only in (bench.audit.records.accuracy_CHKT, bench.query(0, 0, 0).accuracy):
        with pytest.raises(ValueError, match="read-only"):
            read_only[...] = 1.0

    class Cheats(Scripted):
        def plan(self, obs):
            for name in ("available_NK", "topology_N", "stopped_N", "control_NT", "compute_NT"):
                assert not getattr(obs, name).flags.writeable, name
            assert not obs.context.price_N.flags.writeable
            return np.zeros(len(obs.topology_N), dtype=np.int64)

    run_policy(bench, Cheats(0, np.full(2, 99)), 2, seed=0)


# ---- queries ----------------------------------------------------------------------------------


def test_query_by_number_and_by_blueprints(plain):
    bench = Bench(plain)
    assert bench.topologies[0] == ("", "", "")
    number = bench.topologies.index(("small", "", "large"))
    by_number = bench.query(number, context=2, host=1)
    by_name = bench.query(("small", "", "large"), context=2, host=1)
    np.testing.assert_array_equal(by_number.accuracy, by_name.accuracy)
    np.testing.assert_array_equal(by_name.compute, plain.records.compute_CHKT[2, 1, number])
    assert (by_name.params, by_name.macs) == (100 + 50 + 300, 1000 + 400 + 1500)
    assert np.isnan(by_name.train_loss[0])


@pytest.mark.parametrize("step", [1, 5, None])
def test_score_is_the_closed_form(plain, step):
    bench = Bench(plain)
    expected = closed_form(plain, 3, 7, 0.5, 8 if step is None else step)
    assert bench.score(7, context=3, host=0, price=0.5, step=step) == pytest.approx(
        expected, abs=1e-6
    )


def test_only_the_observed_part_of_contexts_unless_asked(plain):
    bench = Bench(plain)
    assert all(context.hidden is None for context in bench.contexts())
    first = bench.contexts(hidden=True)[0]
    assert first.hidden is not None
    assert first.hidden.pixel_noise == plain.contexts.pixel_noise_C[0]
    assert first.groups == plain.contexts.groups_C[0]


def test_queries_without_record_say_so(plain):
    bench = Bench(plain)
    with pytest.raises(EsperError, match="'twin'"):
        bench.query(("twin", "", ""), 0, 0)
    with pytest.raises(EsperError, match="no record of topology 0 in context 9"):
        bench.query(0, 9, 0)
    with pytest.raises(EsperError, match="host 4, valid: 0 to 3"):
        bench.query(0, 0, 4)
    with pytest.raises(EsperError, match="step 9"):
        bench.score(0, 0, 0, step=9)


# ---- simulated episodes -----------------------------------------------------------------------


def test_the_simulated_score_is_the_closed_form_with_and_without_stop(plain):
    bench, count = Bench(plain, TermsSpec(capped=0.0)), 60
    topology, stop_at = np.arange(count) % 27, np.arange(count) % 9
    found = run_policy(bench, Scripted(topology, stop_at), count, seed=5)
    episodes = SimulatedEpisodes(bench, count)
    price = episodes.reset(5).context.price_N
    last = np.where(stop_at == 0, 8, stop_at)
    np.testing.assert_array_equal(found.steps_N, last)
    expected = [
        closed_form(plain, found.context_N[n], topology[n], price[n], last[n]) for n in range(count)
    ]
    np.testing.assert_allclose(found.score_N, expected, atol=1e-6)
    spent = plain.contexts.budget_C[found.context_N] * last / 8
    np.testing.assert_allclose(found.compute_N, spent, rtol=1e-6)


def test_stop_freezes_score_compute_and_what_is_seen(varied):
    bench, count = Bench(varied), 24
    episodes = SimulatedEpisodes(bench, count)
    episodes.reset(1)
    episodes.plan(np.zeros(count, dtype=np.int64))
    stop = np.arange(count) < 12
    seen = episodes.step(np.zeros(count, dtype=np.bool_))
    before = seen.control_NT[:, -1].copy(), seen.compute_NT[:, -1].copy()
    seen = episodes.step(stop)
    seen = episodes.step(np.zeros(count, dtype=np.bool_))
    np.testing.assert_array_equal(seen.control_NT[stop, -1], before[0][stop])
    np.testing.assert_array_equal(seen.compute_NT[stop, -1], before[1][stop])
    assert (seen.compute_NT[~stop, -1] > before[1][~stop]).all()
    while not episodes.done:
        episodes.step(np.zeros(count, dtype=np.bool_))
    assert episodes.outcome().steps_N.tolist() == [2] * 12 + [8] * 12


def test_nothing_seen_holds_the_future(varied):
    episodes = SimulatedEpisodes(Bench(varied), 10)
    seen = episodes.reset(0)
    assert seen.control_NT.shape == (10, 1)
    seen = episodes.plan(np.zeros(10, dtype=np.int64))
    assert seen.control_NT.shape == (10, 2)
    assert np.isnan(seen.control_NT.base[:, 2:]).all()


def test_masks_hold(varied):
    accuracy_CHKT = varied.records.accuracy_CHKT.copy()
    accuracy_CHKT[4, :, 20] = np.nan
    holed = replace(varied, records=replace(varied.records, accuracy_CHKT=accuracy_CHKT))
    bench = Bench(holed, TermsSpec(capped=1.0))
    episodes = SimulatedEpisodes(bench, 200)
    seen = episodes.reset(2)
    assert not seen.available_NK[episodes.context_N == 4, 20].any()
    params = np.array(varied.info.params)
    above = params[None] > seen.context.params_cap_N[:, None]
    assert above.any()
    assert not (seen.available_NK & above).any()
    assert seen.available_NK[:, 0].all()
    bad = int(np.flatnonzero(~seen.available_NK[:, 26])[0])
    with pytest.raises(EsperError, match=f"episode {bad}: topology 26 is not available"):
        episodes.plan(np.full(200, 26))
    with pytest.raises(EsperError, match="topology 27"):
        episodes.plan(np.full(200, 27))
    for policy in (RandomPlan(), Oracle(), *knowing(bench)):
        assert run_policy(bench, policy, 200, seed=2).score_N.shape == (200,)


def test_the_order_of_calls_is_checked(plain):
    episodes = SimulatedEpisodes(Bench(plain), 4)
    nobody, bare = np.zeros(4, dtype=np.bool_), np.zeros(4, dtype=np.int64)
    episodes.reset(0)
    with pytest.raises(EsperError, match="plan first"):
        episodes.step(nobody)
    episodes.plan(bare)
    with pytest.raises(EsperError, match="plan once"):
        episodes.plan(bare)
    with pytest.raises(EsperError, match="no outcome before"):
        episodes.outcome()
    with pytest.raises(EsperError, match="one bool for each of the 4"):
        episodes.step(bare)
    episodes.step(~nobody)
    with pytest.raises(EsperError, match="over, reset"):
        episodes.step(nobody)
    assert episodes.outcome().steps_N.tolist() == [1] * 4
    with pytest.raises(EsperError, match="no records of"):
        SimulatedEpisodes(Bench(plain), 4, contexts=[77])


def test_equal_seeds_give_equal_episodes_whatever_their_number(varied):
    few, many = (SimulatedEpisodes(Bench(varied), n) for n in (24, 60))
    first, second = few.reset(3), many.reset(3)
    assert first.context == second.context.take(np.arange(24))
    np.testing.assert_array_equal(few.host_N, many.host_N[:24])
    assert not np.array_equal(few.reset(4).context.price_N, first.context.price_N)


def test_under_the_clock_of_steps_a_stop_saves_the_networks_own_compute():
    audit = made_audit(spec=FIXED, contexts=3)
    bench = Bench(audit, TermsSpec(capped=0.0))
    found = run_policy(bench, Scripted(np.full(6, 26), np.full(6, 4)), 6, seed=0)
    np.testing.assert_allclose(found.compute_N, audit.info.cost[26] / 2, rtol=1e-6)


def test_thousands_of_episodes_a_second(varied):
    bench = Bench(varied)
    policy = PlanOnly(fit_planner("table", bench, bench.context_C))
    begun = time.perf_counter()
    run_policy(bench, policy, 5000, seed=0)
    assert time.perf_counter() - begun < 1.0


# ---- policies and leaderboard -----------------------------------------------------------------


def test_the_oracle_is_above_every_policy_in_every_episode(varied):
    bench = Bench(varied)
    oracle = run_policy(bench, Oracle(), 300, seed=1).score_N
    patience = Patience(fit_planner("table", bench, bench.context_C), 0.01)
    for policy in (RandomPlan(), *knowing(bench), patience):
        assert (oracle >= run_policy(bench, policy, 300, seed=1).score_N - 1e-12).all()


def test_knowing_the_best_step_pays_where_it_differs():
    bench = Bench(overfitting_audit(seen=False), TermsSpec(capped=0.0))
    best, best_stop = (run_policy(bench, it, 240, seed=0) for it in knowing(bench))
    assert (best.steps_N == 8).all()
    assert (best_stop.steps_N < 8).mean() > 0.5
    assert (best_stop.score_N - best.score_N).mean() > 0.05


def test_patience_stops_flat_curves_at_a_high_price_only():
    flat = made_audit(rate=60.0, contexts=4)
    dear, cheap = TermsSpec(price=Range(4.0, 4.0)), TermsSpec(price=Range(1e-6, 1e-6))
    found = []
    for audit, terms in ((flat, dear), (made_audit(rate=0.1, contexts=4), cheap)):
        bench = Bench(audit, terms)
        policy = Patience(fit_planner("table", bench, bench.context_C), PRICED.c_f)
        found.append(run_policy(bench, policy, 40, seed=0))
    assert (found[0].steps_N <= 4).all()
    assert (found[1].steps_N == 8).all()


def knowing(bench: Bench) -> list[Policy]:
    """The yardsticks that know the best choice of a context."""
    return [BUILT_IN[name](bench, bench.context_C) for name in ("best", "best_stop")]


QUICK = {name: BUILT_IN[name] for name in ("bare", "random", "one", "table", "best", "oracle")}


def test_leaderboard_is_ordered_and_judges_contexts_no_policy_was_made_from(varied):
    bench, made_from = Bench(varied), []

    class Watched(RandomPlan):
        def __init__(self, contexts):
            super().__init__()
            self.contexts = set(contexts.tolist())

    def make(bench, contexts):
        made_from.append(set(contexts.tolist()))
        return Watched(contexts)

    rows = {row.name: row for row in leaderboard(bench, QUICK | {"mine": make}, 8, folds=3)}
    assert len(made_from) == 3
    held_out = [set(range(12)) - contexts for contexts in made_from]
    assert sorted(c for contexts in held_out for c in contexts) == list(range(12))
    assert list(rows) == sorted(rows, key=lambda name: -rows[name].score.value)
    assert rows["oracle"].gap_closed == pytest.approx(1.0)
    assert rows["one"].gap_closed == 0.0
    assert 0 < rows["best"].gap_closed < 1
    assert rows["bare"].gap_closed < 0
    assert {row.n for row in rows.values()} == {12 * 8}
    assert [name for name, row in rows.items() if row.sees_all] == ["oracle", "best"]
    assert rows["best"].score.low < rows["best"].score.value < rows["best"].score.high


def test_leaderboard_needs_both_ends_of_the_gap(varied):
    with pytest.raises(EsperError, match=r"without \['one'\]"):
        leaderboard(Bench(varied), {"oracle": BUILT_IN["oracle"]})
