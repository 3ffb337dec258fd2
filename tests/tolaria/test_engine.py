"""What the engine promises: exact repeats, rewards that add up, rounds, state, clear refusals."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_support import Diary, histories, random_policy, small_engine, small_task
from esper.leyline import LifecycleOp, SeedStage
from esper.leyline.actions import ActionHead, ActionSpec
from esper.leyline.protocols import PolicyProtocol
from esper.leyline.records import PolicyDecision
from esper.simic.rewards.score import ScoreReward
from esper.tamiyo.baselines import StaticTopology, WaitPolicy
from esper.tasks.scoring import live_seeds, upkeep
from esper.tolaria.engine import VectorizedEngine
from esper.tolaria.engine_config import EngineConfig
from support import refused


def same(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(left[name], right[name], equal_nan=True) for name in left)


# ---- exactness ---------------------------------------------------------------------------------


def test_same_seed_twice_is_bit_identical_and_leaves_the_global_generators_alone():
    runs, generators = [], []
    spec = small_task(episode_length=8)
    for _ in range(2):
        diary = Diary()
        engine = small_engine(spec, diary, seed=5)
        torch.manual_seed(7)
        np.random.seed(7)
        generators.append((torch.get_rng_state(), np.random.get_state()[1]))
        engine.train(random_policy(5, spec), rounds=1)
        assert torch.equal(torch.get_rng_state(), generators[0][0])
        assert np.array_equal(np.random.get_state()[1], generators[0][1])
        runs.append((histories(engine.episode), diary))
    assert same(runs[0][0], runs[1][0])
    for a, b in zip(runs[0][1].records, runs[1][1].records, strict=True):
        assert a.signals == b.signals
        assert a.masks == b.masks
        assert a.decision == b.decision
        assert a.reward_inputs == b.reward_inputs
        assert a.rewards == b.rewards


# ---- rewards -----------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**20), pieces=st.sampled_from([None, 1, 5, 12]))
@settings(max_examples=4)
def test_rewards_add_up_to_the_change_of_score_minus_upkeep(seed, pieces):
    """Whatever is done: over an episode, in one rollout or in several."""
    diary = Diary()
    spec = small_task(batches_per_step=1)
    engine = small_engine(spec, diary, seed=seed, rollout_steps=pieces, members=3)
    rounds = 1 if pieces is None else -(-spec.episode_length // pieces)
    rollout = engine.train(random_policy(seed, spec), rounds)[-1]
    paid = sum(
        upkeep(r.reward_inputs.live_mac_share_E, live_seeds(r.reward_inputs.stage_ES), spec.upkeep)
        for r in diary.records
    )
    first, final = engine.episode.score_TE[0], engine.episode.score_TE[-1]
    total = sum(record.rewards.total for record in diary.records)
    np.testing.assert_allclose(total, final - first - paid, atol=1e-12)
    np.testing.assert_allclose(rollout.outcome.episode_return_E, total, atol=1e-12)
    np.testing.assert_array_equal(rollout.outcome.score_E, final)


def test_a_member_whose_accuracy_rises_is_paid_more_than_one_whose_falls():
    diary = Diary()
    small_engine(listener=diary).run_rollout(WaitPolicy(ScoreReward()))
    pairs = [
        (r.rewards.total, r.reward_inputs.score_E - r.reward_inputs.score_before_E)
        for r in diary.records
    ]
    paid, change = (np.concatenate(values) for values in zip(*pairs, strict=True))
    assert (change > 0).any()
    assert (change < 0).any()
    np.testing.assert_allclose(paid, change)


def test_waiting_costs_no_upkeep_and_growing_does():
    diary = Diary()
    small_engine(listener=diary).run_rollout(random_policy())
    for record in diary.records:
        live = live_seeds(record.reward_inputs.stage_ES)
        costs = record.rewards.part("upkeep")
        assert (costs[live == 0] == 0).all()
        assert (costs <= 0).all()
    assert any((r.rewards.part("upkeep") < 0).any() for r in diary.records)


# ---- the order of a step -----------------------------------------------------------------------


class Script(WaitPolicy):
    """Germinates conv_light in r0c1 of member 0 at the end of step 2; looks at what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = []

    def act(self, obs, masks, policy_state):
        self.seen.append(obs)
        actions = ActionSpec.wait(len(masks.op_EO))
        if obs.step == 2:
            op, slot, blueprint = (actions.of(h).copy() for h in list(ActionHead)[:3])
            op[0], slot[0] = LifecycleOp.GERMINATE, 1
            blueprint[0] = obs.slots.blueprints.index("conv_light")
            actions = dataclasses.replace(actions, op=op, slot=slot, blueprint=blueprint)
        return PolicyDecision.deterministic(actions), policy_state


def test_a_seed_asked_for_at_step_2_incubates_in_step_3():
    policy, diary = Script(), Diary()
    small_engine(listener=diary).run_rollout(policy)
    stage = [obs.slots.stage_ES[0, 1] for obs in policy.seen]
    assert stage[:4] == [SeedStage.DORMANT] * 3 + [SeedStage.TRAINING]
    assert np.isfinite(policy.seen[3].shadow_gap_ES[0, 1])
    assert np.isnan(policy.seen[3].shadow_gap_ES[1]).all(), "nothing incubates in member 1"
    assert policy.seen[3].last_op_E.tolist() == [LifecycleOp.GERMINATE, 0, 0, 0]
    post = diary.records[2].result.post_action_slot_reports
    assert post.stage_ES[0, 1] == SeedStage.GERMINATED, "the result shows the state after it"
    kinds = [(step, type(payload).__name__) for _, step, payload in diary.slot_events]
    assert kinds[:3] == [(2, "SeedGerminated"), (2, "SeedStageChanged"), (3, "SeedStageChanged")]


def test_observations_follow_the_step():
    policy = Script()
    small_engine().run_rollout(policy)
    assert [obs.step for obs in policy.seen] == list(range(12))
    history = policy.seen[6].val_loss_history_EL
    expected = np.stack([obs.val_loss_E for obs in policy.seen[2:7]], axis=1)
    assert np.array_equal(history, expected)


def test_validation_data_are_apart_from_the_score():
    """Observations come from val_control, the score from val_score."""
    spec = small_task()
    data = spec.load()
    part = dataclasses.replace(data.val_score, labels=(data.val_score.labels + 1) % 10)
    engines = [
        VectorizedEngine(spec, EngineConfig(members=2, device="cpu"), data=d)
        for d in (data, dataclasses.replace(data, val_score=part))
    ]
    for engine in engines:
        engine.run_rollout(WaitPolicy())
    assert np.array_equal(engines[0].episode.accuracy_TE, engines[1].episode.accuracy_TE)
    assert not np.array_equal(engines[0].episode.score_TE, engines[1].episode.score_TE)


def test_test_data_are_read_when_asked_for_only():
    spec = small_task()
    data = spec.load()
    blind = dataclasses.replace(data.test, labels=np.full_like(data.test.labels, 3))
    engine = VectorizedEngine(
        spec, EngineConfig(members=2, device="cpu"), data=dataclasses.replace(data, test=blind)
    )
    plain = small_engine(spec, members=2)
    engine.run_rollout(WaitPolicy())
    plain.run_rollout(WaitPolicy())
    assert same(histories(engine.episode), histories(plain.episode))
    population = plain.env.model
    with torch.no_grad():
        logits = population.forward(torch.from_numpy(data.normalised(data.test))[None])
    right = (logits.argmax(-1) == torch.from_numpy(data.test.labels)).double().mean(dim=1)
    np.testing.assert_allclose(plain.test(), right, atol=1e-12)


def test_planted_members_are_born_with_their_seeds():
    engine = small_engine()
    policy = StaticTopology({"r0c1": "conv_light"})
    outcome = engine.run_rollout(policy).outcome
    assert (engine.env.seed_stage[:, 1] == SeedStage.FOSSILIZED).all()
    planted = engine.env.model.blueprints.index("conv_light")
    assert (outcome.blueprint_ES == [-1, planted, -1]).all()
    assert (outcome.added_params_E > 0).all()
    assert (outcome.germinated_E == 0).all()
    engine.run_rollout(WaitPolicy())
    assert (engine.env.seed_stage == SeedStage.DORMANT).all(), "the next episode starts afresh"


# ---- rollouts shorter than an episode ----------------------------------------------------------


# ---- state -------------------------------------------------------------------------------------


def test_resumed_rounds_are_bit_identical():
    spec = small_task(episode_length=8)
    through = small_engine(spec, seed=1, members=2)
    through.train(random_policy(1), rounds=2)
    first = small_engine(spec, seed=1, members=2)
    first.train(random_policy(1), rounds=1)
    assert not same(histories(first.episode), histories(through.episode)), "of another round"
    resumed = small_engine(spec, seed=1, members=2)
    resumed.load_state_dict(first.state_dict())
    resumed.train(random_policy(1), rounds=1)
    assert same(histories(through.episode), histories(resumed.episode))


def test_a_state_of_something_else_is_refused_by_name():
    state = small_engine().state_dict()
    other, reseeded = small_engine(members=3), small_engine(seed=9)
    assert "members is 4, expected 3" in refused(lambda: other.load_state_dict(state))
    assert "seed is 0, expected 9" in refused(lambda: reseeded.load_state_dict(state))
    assert "engine state has" in refused(lambda: other.load_state_dict({"round": 1}))
    engine = small_engine(rollout_steps=5)
    engine.run_rollout(WaitPolicy())
    assert "step 5 of 12" in refused(engine.state_dict)


# ---- what is refused ---------------------------------------------------------------------------


BAD = {
    "members=0: a population needs at least 1": {"members": 0},
    "rollout_steps=0": {"rollout_steps": 0},
    "batch size 500 is larger than the 200 training samples": {"spec": {"batch_size": 500}},
    "device 'cuda:99'": {"device": "cuda:99"},
    "unknown executor 'vamp'": {"executor": "vamp"},
    "unknown profile 'quick'": {"profile": "quick"},
    "a CPU supports fp32 only": {"precision": "bf16"},
    "unknown data placement 'cloud'": {"data_placement": "cloud"},
}


@pytest.mark.parametrize("line", BAD)
def test_bad_settings_are_refused_in_one_line(line):
    bad = dict(BAD[line])
    spec = small_task(**bad.pop("spec", {}))
    assert line in refused(lambda: small_engine(spec, **bad))


def test_actions_beyond_the_host_are_refused():
    class Wild(WaitPolicy):
        def act(self, obs, masks, policy_state):
            actions = ActionSpec.wait(4)
            actions.slot[2] = 7
            return PolicyDecision.deterministic(actions), policy_state

    engine = small_engine()
    line = refused(lambda: engine.run_rollout(Wild()))
    assert "action of member 2: slot 7, but there are 3" in line


@pytest.mark.slow
def test_out_of_memory_says_what_to_lower():
    """A real failed allocation, in a process that may not take more."""
    code = """
        import resource
        import torch
        from engine_support import small_engine, small_task
        from esper.leyline.errors import EsperError
        from esper.tamiyo.baselines import WaitPolicy
        engine = small_engine(small_task(train=1500, batch_size=1000, base_channels=16), members=4)
        with open("/proc/self/statm") as f:
            used = int(f.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**25, used + 2**25))
        taken, size = [], 2**28  # of what building the engine left free, too
        while size >= 2**20:
            try:
                taken.append(torch.empty(size, dtype=torch.uint8))
            except RuntimeError:
                size //= 2
        try:
            engine.run_rollout(WaitPolicy())
        except EsperError as error:
            print(error)
    """
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True, text=True, timeout=120,
        env=os.environ | {"PYTHONPATH": path},
    )  # fmt: skip
    assert "out of memory on cpu with E=4 members and batch size B=1000" in done.stdout, done.stderr
    assert "lower --envs or --batch-size" in done.stdout


def test_other_errors_are_not_taken_for_memory():
    class Broken(WaitPolicy):
        def act(self, obs, masks, policy_state):
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        small_engine().run_rollout(Broken())


def test_the_policies_satisfy_the_protocol():
    for policy in (WaitPolicy(), random_policy(), StaticTopology("norm")):
        assert isinstance(policy, PolicyProtocol)


# ---- executors ---------------------------------------------------------------------------------


def test_fast_measures_and_exact_does_not():
    exact = small_engine(profile="exact").env.model.choice
    assert exact.executor.name == "vmap"
    assert "trial" in exact.reason
    try:
        fast = small_engine(profile="fast").env.model.choice
        asked = small_engine(profile="fast", executor="loop").env.model.choice
    finally:
        small_engine(profile="exact")
    assert fast.executor.name in ("vmap", "loop")
    assert "measured: vmap" in fast.reason
    assert "loop" in fast.reason
    assert "ms" in fast.reason
    assert asked.executor.name == "loop"
    assert asked.reason == "requested"


def test_executor_autotuning_leaves_nothing_behind():
    try:
        measured = small_engine(profile="fast", executor="auto")
        name = measured.env.model.choice.executor.name
        asked = small_engine(profile="fast", executor=name)
        measured.run_rollout(WaitPolicy())
        asked.run_rollout(WaitPolicy())
    finally:
        small_engine(profile="exact")
    assert same(histories(measured.episode), histories(asked.episode))
