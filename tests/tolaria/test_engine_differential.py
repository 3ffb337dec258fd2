"""The engine's numbers are those of other ways to compute them: loop, plain PyTorch, other E."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from engine_support import Diary, histories, random_policy, small_engine, small_task
from epoch_order import epoch_order
from esper.tamiyo.baselines import StaticTopology, WaitPolicy
from esper.tasks.registry import get_task_spec
from esper.tasks.spec import OptimSettings


def run(executor: str, seed: int = 0, members: int = 4, **task):
    diary = Diary()
    spec = small_task(**task)
    engine = small_engine(spec, diary, executor=executor, members=members, seed=seed)
    rollout = engine.run_rollout(random_policy(seed, spec))
    return engine, rollout, diary


def actions_of(diary: Diary) -> np.ndarray:
    return np.stack([[getattr(r.decision.actions, h) for h in ("op", "slot", "blueprint")]
                     for r in diary.records])  # fmt: skip


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_vmap_and_loop_agree_over_a_whole_rollout(seed):
    """Same actions, same lives of seeds, same losses and rewards to rounding."""
    fused, fused_rollout, fused_diary = run("vmap", seed)
    plain, _plain_rollout, plain_diary = run("loop", seed)
    assert (fused.env.model.choice.executor.name, plain.env.model.choice.executor.name) == (
        "vmap", "loop",
    )  # fmt: skip
    assert np.array_equal(actions_of(fused_diary), actions_of(plain_diary))
    assert fused_rollout.outcome.germinated_E.sum() >= 4, "seeds were grown at all"
    for name, values in histories(fused.episode).items():
        np.testing.assert_allclose(values, histories(plain.episode)[name], rtol=2e-4, atol=2e-5)
    for a, b in zip(fused_diary.records, plain_diary.records, strict=True):
        assert np.array_equal(a.signals.slots.stage_ES, b.signals.slots.stage_ES)
        np.testing.assert_allclose(a.rewards.total, b.rewards.total, atol=2e-5)
        np.testing.assert_allclose(
            a.counterfactuals.contribution_ES, b.counterfactuals.contribution_ES, atol=0.02
        )


@pytest.mark.parametrize("executor", ["vmap", "loop"])
@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_one_member_trains_like_a_plain_pytorch_loop(executor, schedule):
    """50 batches: same weights, same batches, losses within 1e-5."""
    steps, batch = 50, 16
    settings = OptimSettings(host_lr=0.1, seed_lr=0.1, schedule=schedule)
    spec = small_task(batches_per_step=1, episode_length=steps, batch_size=batch, kernel_size=3)
    spec = dataclasses.replace(spec, optim=settings)
    engine = small_engine(spec, members=1, executor=executor, seed=3)
    host = copy.deepcopy(engine.env.model.member(0).host).train()

    data = spec.load()
    images = (data.train.inputs.astype(np.float32) - data.mean[:, None, None]) / data.std[
        :, None, None
    ]
    order = epoch_order(3, 1, len(data.train), steps * batch)[0].reshape(steps, batch)
    optimizer = torch.optim.SGD(host.parameters(), lr=settings.host_lr, momentum=0.9)
    expected = []
    for step in range(steps):
        rate = settings.host_lr
        if schedule == "cosine":
            rate *= 0.5 * (1 + np.cos(np.pi * step / steps))
        optimizer.param_groups[0]["lr"] = rate
        index = order[step]
        x, y = torch.from_numpy(images[index]), torch.from_numpy(data.train.labels[index])
        loss = F.cross_entropy(host(x), y)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(host.parameters(), 1.0)
        optimizer.step()
        expected.append(loss.item())

    engine.run_rollout(WaitPolicy())
    found = engine.episode.train_loss_TE[1:, 0]
    assert expected[-1] < 0.85 * expected[0], "it learns something worth comparing"
    np.testing.assert_allclose(found, expected, atol=1e-5)
    trained = engine.env.model.member(0).host.state_dict()
    for name, value in host.state_dict().items():
        torch.testing.assert_close(trained[name], value, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_member_0_is_the_same_for_1_and_8_members(executor):
    """20 batches: identical data order and actions, losses within 1e-5."""
    task = {"batches_per_step": 1, "episode_length": 20}
    alone, _, alone_diary = run(executor, members=1, **task)
    among, _, among_diary = run(executor, members=8, **task)
    for step in range(20):
        (x_1, y_1), (x_8, y_8) = (next(e.batches.step(step)) for e in (alone, among))
        assert torch.equal(y_1[0], y_8[0])
        assert torch.equal(x_1[0], x_8[0])
    assert np.array_equal(actions_of(alone_diary)[:, :, 0], actions_of(among_diary)[:, :, 0])
    for name, values in histories(alone.episode).items():
        np.testing.assert_allclose(values[:, 0], histories(among.episode)[name][:, 0], atol=1e-5)


def test_the_score_is_what_the_grown_members_are_worth():
    """On real data: accuracy and score of the last step recomputed from the members themselves."""
    spec = get_task_spec("digits_impaired")
    spec = dataclasses.replace(spec, episode_length=4)
    engine = small_engine(spec, members=2)
    policy = StaticTopology(dict.fromkeys(("r0c0", "r0c2"), "conv_heavy"))
    outcome = engine.run_rollout(policy).outcome
    population, data = engine.env.model, spec.load()
    x = torch.from_numpy(data.normalised(data.val_score))[None]
    with torch.no_grad():
        logits = population.forward(x)
    right = logits.argmax(-1) == torch.from_numpy(data.val_score.labels)
    np.testing.assert_allclose(outcome.accuracy_E, right.double().mean(dim=1), atol=1e-12)
    host_params = sum(p.numel() for p in spec.host_factory().parameters())
    host_macs = population.probe.host_macs
    params, macs = population.parameters_E() / host_params, population.macs_E() / host_macs
    assert (params > 3).all(), "two conv_heavy seeds outweigh the host"
    flops = macs  # planted from the start: every train batch costs their MACs on top
    rent = (
        spec.score.c_p * np.log2(params)
        + spec.score.c_m * np.log2(macs)
        + spec.score.c_f * (flops - 1)
    )
    np.testing.assert_allclose(outcome.score_E, outcome.accuracy_E - rent, atol=1e-12)
    np.testing.assert_allclose(outcome.flops_ratio_E, flops, rtol=1e-12)
