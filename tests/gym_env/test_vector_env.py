"""The vector environment: one engine, Gymnasium's rules, and the engine's own numbers."""

# ruff: noqa: E402  # what follows needs gymnasium

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium", reason="gymnasium comes with the dev extra")

from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics

import esper.gym
from esper.gym.spaces import observations
from esper.gym.vector_env import EsperVectorEnv
from esper.leyline import PLANNED, ActionHead, EsperError, LifecycleOp, VetoReason
from esper.tasks.registry import task_names
from esper.tolaria.engine import VectorizedEngine
from gym_support import (
    DRAWN,
    Repeat,
    flat_env,
    play,
    read_mask_arrays,
    same,
    tiny_env,
    tiny_task,
)

PLAN = 3
"""Plan decisions: one for each slot."""


def test_every_task_is_registered():
    assert {f"esper/{name}-v0" for name in task_names()} <= set(gymnasium.registry)


def test_make_vec_gives_one_engine_with_all_members():
    envs = gymnasium.make_vec(
        "esper/digits_impaired-v0", num_envs=5, episode_length=3, batches_per_step=1, device="cpu"
    )
    assert isinstance(envs, VectorEnv)
    assert envs.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP
    assert envs.unwrapped.engine.env.members == envs.num_envs == 5
    obs, info = envs.reset(seed=1)
    assert envs.observation_space.contains(obs)
    assert info["action_mask"]["op"].shape == (5, LifecycleOp.RESTART)
    obs, reward_E, terminated_E, truncated_E, _ = envs.step(envs.action_space.sample())
    assert envs.observation_space.contains(obs)
    assert (reward_E.shape, reward_E.dtype) == ((5,), np.float64)
    assert not terminated_E.any()
    assert not truncated_E.any()


@pytest.mark.parametrize("contexts", [None, DRAWN], ids=["fixed", "drawn"])
def test_a_step_is_the_engines_step_bit_for_bit(contexts):
    """Observations, masks, rewards and final scores equal those of a rollout."""
    env, length = flat_env(3, contexts, length=5), 5
    decisions = length + (PLAN if contexts is not None else 0)
    played = play(env, 7, decisions)
    heads = [step[0] for step in played[1:]]
    vector = env.unwrapped
    engine = VectorizedEngine(vector.task, vector.population.engine_config(7))
    client = Repeat(heads, vector.task)
    rollout = engine.run_rollout(client)
    assert rollout.decisions == len(client.seen) == decisions
    for (_, obs, _, _, info), (signals, masks) in zip(played, client.seen, strict=False):
        assert same(obs, observations(signals))
        assert same(info["action_mask"], env.actions.mask(masks).astype(np.int8))
    assert same([step[2] for step in played[1:]], client.rewards)
    outcome = played[-1][4]["outcome"]
    assert same(outcome["score"], rollout.outcome.score_E)
    assert same(outcome["episode_return"], sum(client.rewards))
    assert same(played[-1][1], observations(rollout.final_signals))


def test_the_same_seed_repeats_a_trajectory_bit_for_bit():
    """Over the end of an episode, in the same environment and in a new one."""
    contexts = None
    env, steps = flat_env(2, contexts, length=3), 8
    first = play(env, 11, steps)
    play(env, 12, 2)  # abandoned, with another seed
    for repeated in (play(env, 11, steps), play(flat_env(2, contexts, length=3), 11, steps)):
        for (_, obs, reward_E, _, info), again in zip(first, repeated, strict=True):
            assert same(obs, again[1])
            assert same(info["score"], again[4]["score"])
            assert reward_E is None or same(reward_E, again[2])


def test_an_episode_abandoned_in_plan_or_training_leaves_no_trace():
    env = flat_env(2, DRAWN)
    whole = play(env, 4, PLAN + 4)
    for abandoned_after in (1, PLAN + 1):
        play(env, 4, abandoned_after, draws=9)
        again = play(env, 4, PLAN + 4)
        assert all(same(a[1], b[1]) for a, b in zip(whole, again, strict=True))


def test_another_seed_and_the_next_episode_have_other_members():
    env = flat_env(2)
    curves = []
    for seed in (1, None, None, 2):  # the second and third abandon the one before
        obs, _ = env.reset(seed=seed)
        curves.append(tuple(obs["global"].ravel().tolist()))
    assert len(set(curves)) == len(curves)


def test_without_a_seed_environments_differ():
    first, second = (tiny_env(2) for _ in range(2))
    first.reset()
    second.reset()
    assert first.engine.config.seed != second.engine.config.seed


def test_autoreset_comes_with_the_next_step():
    env = flat_env(2, length=3)
    played = play(env, 3, 5)
    over = [step[3].tolist() for step in played[1:]]
    assert over == [[False] * 2, [False] * 2, [True] * 2, [False] * 2, [False] * 2]
    _, _, reward_E, _, info = played[4]
    assert reward_E.tolist() == [0.0, 0.0], "the step that resets ignores its actions"
    assert info["step"].tolist() == [0, 0]
    assert "outcome" in played[3][4]
    assert "outcome" not in info
    assert env.unwrapped.engine.round == 1


def test_rewards_sum_to_the_gain_in_score_minus_upkeep():
    played = play(flat_env(3, DRAWN), 5, PLAN + 4)
    total_E = sum(step[2] for step in played[1:])
    upkeep_E = sum(step[4]["reward_parts"].get("upkeep", 0.0) for step in played[1:])
    gained_E = played[-1][4]["outcome"]["score"] - played[0][4]["score"]
    np.testing.assert_allclose(total_E - upkeep_E, gained_E, atol=1e-12)


def test_an_illegal_action_becomes_wait_and_is_reported():
    env = tiny_env(2)
    env.reset(seed=0)
    heads_EA = np.zeros((2, len(ActionHead)), dtype=np.int64)
    heads_EA[0, ActionHead.OP] = LifecycleOp.FOSSILIZE  # there is no seed
    _, _, _, _, info = env.step(heads_EA)
    assert info["illegal"].tolist() == [True, False]
    assert info["veto"].tolist() == [VetoReason.NONE] * 2
    other = tiny_env(2)
    other.reset(seed=0)
    assert same(other.step(np.zeros_like(heads_EA))[4]["score"], info["score"])


def test_masks_say_which_combinations_are_legal():
    env = tiny_env(3, DRAWN)
    _, info = env.reset(seed=4)
    for _ in range(PLAN + 2):
        masks, held = env.masks, info["action_mask"]
        assert same(held["op"], masks.op_EO[:, : LifecycleOp.RESTART].astype(np.int8))
        assert same(held["op_slot"], masks.slot_EOS[:, : LifecycleOp.RESTART].astype(np.int8))
        assert same(held["slot_blueprint"], masks.blueprint_ESK.astype(np.int8))
        read = read_mask_arrays(held)
        assert all(same(getattr(read, f), getattr(masks, f)) for f in masks.__slots__)
        sizes = env.single_action_space.nvec.tolist()
        names = [head.name.lower() for head in ActionHead]
        assert [held[name].shape for name in names] == [(3, size) for size in sizes]
        table, legal = env.actions.table_NA, env.actions.mask(masks)
        for member in range(3):
            used = table[legal[member]]
            for head in (ActionHead.SLOT, ActionHead.BLUEPRINT):
                allowed = np.flatnonzero(held[head.name.lower()][member])
                assert set(used[:, head]) - {0} <= set(allowed.tolist())
        _, _, _, _, info = env.step(np.zeros((3, len(ActionHead)), dtype=np.int64))


def test_plan_decisions_are_steps_in_which_only_planting_is_legal():
    played = play(flat_env(2, PLANNED), 0, PLAN + 4)
    assert [bool(step[4]["planning"].all()) for step in played[:-1]] == [True] * PLAN + [False] * 4
    planned = np.concatenate([step[0][:, ActionHead.OP] for step in played[1 : PLAN + 1]])
    assert set(planned.tolist()) <= {LifecycleOp.WAIT, LifecycleOp.PLANT}
    assert LifecycleOp.PLANT in planned
    assert played[-1][3].all()


def test_contexts_differ_between_members_and_are_seen():
    env = tiny_env(4, DRAWN)
    obs, _ = env.reset(seed=2)
    price = env.engine.context.members.price_E
    assert len(set(price.tolist())) == 4
    column = esper.tamiyo.features.FEATURE_NAMES.whole.index("price_params")
    assert np.argsort(obs["global"][:, column]).tolist() == np.argsort(price).tolist()


def test_named_contexts_and_overrides_reach_the_engine():
    env = EsperVectorEnv(
        tiny_task(), 2, contexts="planned", episode_length=3, rent=0.5, blueprints=("norm",),
        frozen_heads={"tempo": 5}, device="cpu", profile="fast", executor="loop",
    )  # fmt: skip
    spec, plain = env.engine.spec, tiny_task()
    assert spec.context == PLANNED
    assert (spec.episode_length, spec.blueprints) == (3, ("norm",))
    assert spec.score.c_p == 0.5 * plain.score.c_p
    assert dict(env.engine.config.frozen_heads) == {ActionHead.TEMPO: 1}
    assert (env.engine.config.profile, env.engine.config.executor) == ("fast", "loop")
    assert env.single_action_space.nvec[ActionHead.BLUEPRINT] == 1


def test_gymnasiums_wrappers_work():
    env = RecordEpisodeStatistics(flat_env(2, length=2))
    play_on = DictInfoToList(env)
    play_on.reset(seed=0)
    for _ in range(2):
        _, _, _, _, infos = play_on.step(np.zeros(2, dtype=np.int64))
    assert [info["episode"]["l"] for info in infos] == [2, 2]
    assert infos[0]["episode"]["r"] == pytest.approx(infos[0]["outcome"]["episode_return"])


def test_no_step_loops_over_members():
    """A step makes as many Python calls with eight members as with two."""
    counts = []
    for members in (2, 8):
        env = tiny_env(members, executor="vmap")
        env.reset(seed=0)
        waiting = np.zeros((members, len(ActionHead)), dtype=np.int64)
        env.step(waiting)
        calls = [0]

        def count(frame, event, _, calls=calls):
            calls[0] += event == "call" and "/esper/" in frame.f_code.co_filename

        sys.setprofile(count)
        try:
            env.step(waiting)
        finally:
            sys.setprofile(None)
        counts.append(calls[0])
    assert counts[0] == counts[1]


WRONG = {
    "task": (lambda: EsperVectorEnv("digits_impared"), "digits_impaired"),
    "task type": (lambda: EsperVectorEnv(3), "name of a task"),
    "members": (lambda: tiny_env(0), "num_envs=0"),
    "fraction": (lambda: tiny_env(2.5), "num_envs=2.5"),
    "setting": (lambda: tiny_env(2, episode_lenght=3), "episode_length"),
    "length": (lambda: tiny_env(2, episode_length=0), "episode_length=0"),
    "rent": (lambda: tiny_env(2, rent=-1.0), "rent=-1.0"),
    "contexts": (lambda: EsperVectorEnv(tiny_task(), 2, contexts="vared"), "varied"),
    "contexts type": (lambda: EsperVectorEnv(tiny_task(), 2, contexts=3), "ContextSpec"),
    "device": (lambda: tiny_env(2, device="gpu"), "gpu"),
    "profile": (lambda: tiny_env(2, profile="exacty"), "exact"),
    "reward": (lambda: tiny_env(2, reward="scor"), "score"),
    "head": (lambda: tiny_env(2, frozen_heads={"temp": 3}), "tempo"),
    "choice": (lambda: tiny_env(2, frozen_heads={"tempo": 4}), "'4'"),
    "op": (lambda: tiny_env(2, frozen_heads={"op": "WAIT"}), "only the heads after SLOT"),
    "frozen": (lambda: tiny_env(2, frozen_heads="plane"), "plain"),
    "blueprint": (lambda: tiny_env(2, blueprints=("nrm",)), "norm"),
    "blueprints": (lambda: tiny_env(2, blueprints="norm"), "give a tuple"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_argument_is_refused_in_one_line(case):
    make, expected = WRONG[case]
    with pytest.raises(EsperError) as refused:
        make()
    line = str(refused.value)
    assert expected in line
    assert "\n" not in line


def test_wrong_actions_and_seeds_are_refused_in_one_line():
    env = tiny_env(2)
    with pytest.raises(ResetNeeded, match="reset first"):
        env.step(np.zeros((2, 8), dtype=np.int64))
    env.reset(seed=0)
    wrong = {
        "of shape \\(2,\\)": np.zeros(2, dtype=np.int64),
        "of shape \\(3, 8\\)": np.zeros((3, 8), dtype=np.int64),
        "choices per head": np.full((2, 8), 99),
        "expected integers": np.zeros((2, 8)),
    }
    for line, actions in wrong.items():
        with pytest.raises(EsperError, match=line):
            env.step(actions)
    for seed, line in (([1, 2], "one integer"), (-1, "zero"), (1.5, "one integer")):
        with pytest.raises((EsperError, gymnasium.error.Error), match=line):
            env.reset(seed=seed)
    with pytest.raises(EsperError, match="options"):
        env.reset(options={"a": 1})
    env.reset(seed=0)
    assert env.step(np.zeros((2, 8), dtype=np.int64))[0], "nothing was changed"


def test_what_the_package_offers_is_not_hidden_by_its_modules():
    """`esper.gym.flat` is the function, also after its module was imported."""
    import esper.gym.flat_env

    assert callable(esper.gym.flat)
    assert set(esper.gym.__all__) <= {name for name in dir(esper.gym) if not name.startswith("_")}
    modules = {path.stem for path in Path(esper.gym.__file__).parent.glob("*.py")}
    assert not modules & set(esper.gym.__all__)


def without(module: str, code: str) -> str:
    """Last line of what Python says to `code` where a module is not installed."""
    hidden = f"import sys; sys.modules[{module!r}] = None; {code}"
    done = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True)
    assert done.returncode != 0
    return done.stderr.splitlines()[-1]


def test_what_is_not_installed_is_named_in_one_line():
    assert "pip install '.[gym]'" in without("gymnasium", "import esper.gym")
    line = without("stable_baselines3", "import esper.gym; esper.gym.sb3")
    assert "pip install stable-baselines3" in line
