"""Stragglers on purpose, and a plain update on ragged rollouts to compare with.

Ranks that straggle wait, after a given step, until enough others have finished, and the others go
on from their first step when it is reached; what is cut thus does not depend on the speed of the
machine.
"""

from __future__ import annotations

import copy
import os
import pickle
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from esper.leyline.streams import stream_seed
from esper.simic import client as client_module
from esper.simic.agent import PPOAgent, RolloutBuffer
from esper.simic.agent.update import evaluate
from esper.simic.training.runner import run_ppo_updates
from esper.simic.training.vectorized import make_trainer
from loop_support import tiny_config, tiny_task, weights


class Stalls:
    """Listener that waits after a step of a round until its rank is cut, or kills it there."""

    def __init__(self, out: Path, after: dict[int, int], dies: bool, rounds: set[int]) -> None:
        """`after`: step by round; `rounds`: those in which any rank stalls."""
        self.out, self.after, self.dies, self.rounds = out, after, dies, rounds
        self.trainer: Any = None

    def on_round_start(self, round_index, members): ...

    def on_slot_events(self, round_index, step, payload): ...

    def on_step(self, record):
        step, number = record.signals.step, record.signals.round_index
        reached = self.out / f"stalled-{number}"
        if number not in self.after and number in self.rounds:
            wait_for(reached.exists, "nobody stalled")
        elif self.after.get(number) == step:
            reached.touch()
            wait_for(lambda: self.trainer._rule.ends_early(step + 1), "nobody finished")
            if self.dies:
                os.kill(os.getpid(), signal.SIGKILL)

    def on_round_end(self, rollout): ...


def wait_for(condition: Callable[[], bool], otherwise: str) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until, otherwise
        time.sleep(0.005)


def train_with_stragglers(world: Any, out: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """`stalls`: by rank, the step of each round after which it straggles; `share`: of the ranks
    that cut it."""
    config = tiny_config(settings["rounds"], envs=settings["envs"], executor="loop")
    changes = settings.get("ppo", {})
    config = replace(config, cut_stragglers=settings["share"], ppo=replace(config.ppo, **changes))
    stalled = {
        int(rank): {int(k): v for k, v in after.items()}
        for rank, after in settings["stalls"].items()
    }
    stalls = Stalls(
        out, stalled.get(world.rank, {}), settings.get("dies") == world.rank,
        {number for after in stalled.values() for number in after},
    )  # fmt: skip
    stalls.trainer = trainer = make_trainer(
        config, listeners=[stalls], spec=tiny_task(), world=world
    )
    agent, seen = trainer.client.agent, []
    observe = agent.obs_normalizer.observe

    def note_observation(obs):
        seen.append(obs.global_EG.copy())
        observe(obs)

    def note_update(agent, passes, rollout, normalizer, use_amp):
        number = trainer.engine.round
        agent.save(out / f"agent-{number}-{world.rank}")
        kept = {"buffer": copy.deepcopy(rollout), "seen": list(seen)}
        kept["run_updates"] = agent.run_updates
        (out / f"update-{number}-{world.rank}").write_bytes(pickle.dumps(kept))
        seen.clear()
        metrics = run_ppo_updates(agent, passes, rollout, normalizer, use_amp)
        torch.save(weights(agent), out / f"weights-{number}-{world.rank}")
        return metrics

    agent.obs_normalizer.observe = note_observation
    client_module.run_ppo_updates = note_update
    history = trainer.run()
    return {
        "steps": [record.steps for record in history],
        "member_steps": [record.steps_E.tolist() for record in history],
        "cut_steps": [record.cut_steps for record in history],
        "scores": [record.score_E.tolist() for record in history],
        "mean_scores": [record.mean_score for record in history],
        "value_losses": [record.metrics.value_loss for record in history],
        "running_returns": agent.reward_normalizer.return_E.tolist(),
        "scale": agent.reward_normalizer.scale,
        "observation": {n: a.tolist() for n, a in agent.obs_normalizer.state().items()},
    }


# ---- the same in one process -------------------------------------------------------------------


class RaggedUpdate:
    """One update pass over rollouts of different lengths, step by step and member by member."""

    def __init__(self, agent: PPOAgent, buffers: list[RolloutBuffer]) -> None:
        self.agent, self.config = agent, agent.config
        for buffer in buffers:
            buffer.legal_O |= np.any([it.legal_O for it in buffers], axis=0)
        self.members = [(b, m) for b in buffers for m in range(b.members)]
        """Members of all ranks, in order."""
        returns = np.concatenate([self._returns(*it) for it in self.members])
        agent.reward_normalizer.seen.update(returns[:, None])
        self.scale = agent.reward_normalizer.scale
        self.advantages = [self._advantages(*it) for it in self.members]
        self.decided = [b.decided_TE[:, m] for b, m in self.members]
        chosen = np.concatenate([a[d] for a, d in zip(self.advantages, self.decided, strict=True)])
        self.mean, self.deviation = chosen.mean(), chosen.std()

    def _returns(self, buffer: RolloutBuffer, m: int) -> np.ndarray:
        """Discounted sums of unscaled rewards so far; every member begins an episode."""
        sums, running = [], 0.0
        for t in range(buffer.filled):
            running = self.config.gamma * running + buffer.reward_TE[t, m]
            sums.append(running)
            running = 0.0 if buffer.terminal_TE[t, m] else running
        return np.array(sums)

    def _advantages(self, buffer: RolloutBuffer, m: int) -> np.ndarray:
        gamma, decay, found, ahead = self.config.gamma, self.config.gae_lambda, [], 0.0
        value_after = buffer.bootstrap_TE[buffer.filled - 1, m]
        for t in reversed(range(buffer.filled)):
            if buffer.terminal_TE[t, m]:
                value_after = ahead = 0.0
            value = buffer.value_TE[t, m]
            surprise = buffer.reward_TE[t, m] / self.scale + gamma * value_after - value
            ahead, value_after = surprise + gamma * decay * ahead, value
            found.insert(0, ahead)
        return np.array(found)

    def run(self) -> None:
        """All epochs; changes the agent's weights."""
        agent, config = self.agent, self.config
        for group in agent.optimizer.param_groups:
            group["lr"] = agent.learning_rate
        for epoch in range(config.epochs):
            seed = stream_seed(agent.seed, "minibatch", agent.updates_done, epoch)
            order = np.random.default_rng(seed).permutation(len(self.members))
            for part in np.array_split(order, min(config.minibatches, len(order))):
                agent.optimizer.zero_grad()
                self._loss(part).backward()
                torch.nn.utils.clip_grad_norm_(agent.network.parameters(), config.max_grad_norm)
                agent.optimizer.step()

    def _loss(self, part: np.ndarray) -> torch.Tensor:
        """Mean over the steps of these members that were taken."""
        config = self.config
        policy, entropy, value, steps, choices = 0.0, 0.0, 0.0, 0, 0
        for number in part:
            buffer, m = self.members[number]
            batch = buffer.minibatch(torch.tensor([m]))
            output = evaluate(self.agent.network, batch, False)
            before = torch.tensor(buffer.value_TE[: buffer.filled, m], dtype=torch.float32)
            raw = torch.tensor(self.advantages[number], dtype=torch.float32)
            wanted, now = before + raw, output.value[:, 0]
            advantage = (raw - self.mean) / (self.deviation + 1e-8)
            error = (now - wanted) ** 2
            if config.value_clip is not None:
                near = before + (now - before).clamp(-config.value_clip, config.value_clip)
                error = torch.maximum(error, (near - wanted) ** 2)
            value, steps = value + error.sum(), steps + len(error)
            ratio = (output.choices.log_prob_A - batch.log_prob_TMA)[:, 0].sum(-1).exp()
            kept = ratio.clamp(1 - config.clip, 1 + config.clip)
            for t in np.flatnonzero(self.decided[number]):
                policy = policy - torch.minimum(ratio[t] * advantage[t], kept[t] * advantage[t])
                weight_A = torch.tensor(config.head_entropy)
                entropy = entropy + (weight_A * output.choices.entropy_A[t, 0]).sum()
                choices += 1
        policy, entropy = policy / max(1, choices), entropy / max(1, choices)
        return policy + config.value_coef * value / steps - self.agent.entropy_coef * entropy
