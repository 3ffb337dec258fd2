"""A run as the terminal interface shows it, made of records with fixed figures."""

from __future__ import annotations

import math
from pathlib import Path

from textual.app import App

from esper.karn import views
from esper.karn.tui.app import EsperTUI
from esper.karn.tui.reader import RunShot
from esper.karn.tui.run_screen import RunScreen
from esper.karn.views.headline import Basis, Fact, Headline
from esper.leyline.statistics import Estimate
from esper.storage.live import LiveRecord

NAN = math.nan
SLOTS = ("r0c0", "r0c1")
STAGES = ("GERMINATED", "TRAINING", "BLENDING", "HOLDING", "FOSSILIZED")
RESULT = Headline(
    "training score 0.6360", Basis.TRAINING, 0.636,
    facts=(Fact("training score", "0.6360", "mean of round 8, not judged"),),
)  # fmt: skip
UNDER_WAY = LiveRecord(
    "training", share=0.835, seconds_left=12.0, round=8, step=7, steps=20, accuracy=0.61,
    score=0.59, members=2, stages=(("TRAINING", 2), ("BLENDING", 1)),
)  # fmt: skip


def life(member: int, slot: str, blueprint: str, starts: tuple[int, ...]) -> views.SeedLife:
    """A seed that enters one stage after the other at these steps."""
    ends = (*starts[1:], None)
    spans = zip(STAGES, starts, ends, strict=False)
    return views.SeedLife(
        7, member, slot, blueprint, tuple(views.StageSpan(*span) for span in spans), "live",
        0.02, 0.01, 64, 832,
    )  # fmt: skip


def member(number: int, *slots: tuple[str, str]) -> views.MemberState:
    """A member whose slots hold (stage, blueprint)."""
    held = tuple(
        views.SlotState(name, stage, blueprint, 3, 0.5, 0.01, 0.01)
        for name, (stage, blueprint) in zip(SLOTS, slots, strict=True)
    )
    return views.MemberState(
        7, 11, number, 0.6 + number / 50, 0.62, 1.1, 1.0, 0.6, 0.2, 0.5, 0.13, "GERMINATE", "r0c1",
        "", 0.01, 0.4, held,
    )  # fmt: skip


def round_point(at: int) -> views.RoundPoint:
    score = 0.5 + 0.15 * (1 - math.exp(-at / 3))
    near = Estimate(score, score - 0.04, score + 0.04)
    return views.RoundPoint(
        round=at, members=2, score=near, accuracy=near, best_member_score=score, train_accuracy=NAN,
        mean_return=0.4, added_params=60.0, added_macs=900.0, flops_ratio=1.3, germinated=2.0,
        fossilized=1.0, pruned=0.0, rollbacks=0, restarts=0, stages=(), budget=1.0, spent=1.0,
        seconds=3.0, time=1.0e9 + at,
    )  # fmt: skip


def ppo_point(at: int) -> views.PPOPoint:
    values = dict.fromkeys(views.PPOPoint.__dataclass_fields__, 0.1 + at / 50)
    fixed = {"round": at, "head_entropy": (), "epochs_run": 4, "early_stopped": False}
    return views.PPOPoint(**(values | fixed))


def speed_point(at: int) -> views.SpeedPoint:
    phases = (("TRAIN", 2.0), ("VALIDATION", 0.5), ("UPDATE", 0.25))
    return views.SpeedPoint(30.0 + at, 1.0, 90.0, 5000.0, 0.7, 2.3, 0.14, 0.2, 0.8, 2e9, at, phases)


def training_shot(state: views.RunState = views.RunState.RUNNING) -> RunShot:
    """A training run in its eighth round of ten."""
    running = state is views.RunState.RUNNING
    summary = views.RunSummary(
        path=Path("runs/digits__ppo__0"), name="digits__ppo__0", kind=views.RunKind.TRAIN,
        state=state, task="digits", policy="ppo", seed=0, created="2026-01-02 03:04:05",
        seconds=61.0, pace=7.5 if running else None, done=8, total=10, unit="rounds",
        score=0.636, best_score=0.636, result=RESULT, live=UNDER_WAY if running else None,
        resume="" if running else "esper train ppo --resume runs/digits__ppo__0",
    )  # fmt: skip
    setup = views.RunSetup(
        task="digits", policy="ppo", seed=0, rounds=10, members=2, episode_length=20,
        batches_per_step=4, batch_size=64, profile="exact", executor="vmap", executor_reason="",
        device="cpu", slots=SLOTS, blueprints=("norm", "conv_light"), host_params=496,
        host_macs=3536,
    )  # fmt: skip
    return RunShot(
        summary=summary,
        setup=setup,
        rounds=tuple(map(round_point, range(8))),
        members=(
            member(0, ("BLENDING", "conv_light"), ("DORMANT", "")),
            member(1, ("FOSSILIZED", "norm"), ("TRAINING", "conv_light")),
        ),
        seeds=(
            life(0, "r0c0", "conv_light", (2, 3, 6)),
            life(1, "r0c0", "norm", (0, 1, 3, 5, 8)),
            life(1, "r0c1", "conv_light", (7, 8)),
        ),
        ppo=tuple(map(ppo_point, range(8))),
        anomalies=(views.Anomaly(4, "KL", 0.1, 0.05, "KL divergence 0.1, above 0.05", 1.0e9),),
        actions=(
            views.RoundActions(
                7,
                (
                    views.ActionCount("WAIT", 30, 30, 40, 0.7),
                    views.ActionCount("GERMINATE", 10, 9, 22, 0.3),
                ),
                (views.SlotCount("r0c0", 8, 7, 0.4), views.SlotCount("r0c1", 2, 2, -0.05)),
            ),
        ),
        speeds=tuple(map(speed_point, range(8))),
    )


class ShotApp(EsperTUI):
    """The interface opened on one run that does not change."""

    def __init__(self, shot: RunShot) -> None:
        super().__init__(Path("runs"))
        self._shots = [shot]
        self._first = RunScreen(shot.summary.path, shot.summary.kind, self._next)

    def _next(self) -> RunShot | None:
        return self._shots.pop() if self._shots else None


def screen_text(app: App[None]) -> str:
    """What the terminal shows, without colours."""
    width, height = app.size
    lines = app.screen._compositor.render_strips()[:height]
    return "\n".join("".join(part.text for part in strip)[:width].rstrip() for strip in lines)
