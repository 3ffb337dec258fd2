"""Populations worth saving, how to go on with them, and their whole state as bytes.

Most of it is also run by fresh processes, through `in_fresh_process`.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from esper.kasmina import MorphogeneticModel, OptimConfig, Population
from esper.leyline import BlendStyle, EsperError, LifecycleOp, SeedStage
from support import batch, bring_to, good_signals, make_population, pass_step, tiny_host

SIX = ("r0c0", "r1c0", "r0c1", "r1c1", "r0c2", "r1c2")
FIVE = 5
"""Members of `every_stage`."""


def every_stage(executor: str = "loop", kind: str = "sgd") -> Population:
    """Seeds of all styles, one at least in each stage, with trained values and moments."""
    optim = OptimConfig(kind=kind, weight_decay=0.01)  # type: ignore[arg-type]
    p = make_population(FIVE, executor, seed=7, slots=SIX, optim=optim)
    p.reset(3)
    if kind == "adamw":
        p.set_rates(1e-3, [1e-3, 2e-3, 1e-3, 3e-3, 1e-3])
    p.plant([3], "r0c2", "conv_light", prunable=True)
    bring_to(p, SeedStage.FOSSILIZED, [0, 1], "r0c0", "conv_light")
    bring_to(p, SeedStage.FOSSILIZED, [2], "r0c0", "attention", style=BlendStyle.MULTIPLY)
    bring_to(p, SeedStage.HOLDING, [1, 3], "r0c1", "conv_heavy", style=BlendStyle.GATE)
    bring_to(p, SeedStage.HOLDING, [0, 2], "r1c1", "norm")
    bring_to(p, SeedStage.HOLDING, [4], "r0c0", "conv_light")
    bring_to(p, SeedStage.HOLDING, [4], "r1c0", "conv_light", style=BlendStyle.MULTIPLY)
    bring_to(p, SeedStage.HOLDING, [4], "r0c1", "conv_light", style=BlendStyle.GATE)
    bring_to(p, SeedStage.BLENDING, [0], "r0c2", "conv_light", style=BlendStyle.GATE, tempo=8)
    for step in range(6):
        if step == 0:
            p.prune([4], "r0c0")
        if step == 2:
            p.prune([4], "r1c0")
        if step == 4:
            p.prune([4], "r0c1", speed=8)
            p.germinate([1, 3], "r1c2", "conv_heavy", style=BlendStyle.MULTIPLY)
        pass_step(p, train=True, seed=step)
    p.prune([0], "r1c1")
    p.germinate([2], "r0c2", "conv_light", style=BlendStyle.GATE)
    return p


def train_on(p: Population) -> dict[str, torch.Tensor]:
    """Eight steps with every kind of operation; what was measured on the way."""
    seen: dict[str, torch.Tensor] = {}
    for step in range(8):
        p.set_rates(p.trainer.host_lr_E.numpy() * 0.9, p.trainer.seed_lr_E.numpy() * 0.95)
        p.begin_step()
        for part in range(2):
            stats = p.train_batch(*batch(p.members, 100 + 2 * step + part))
            seen[f"{step}.{part} loss"] = stats.loss_E
            seen[f"{step}.{part} shadow"] = stats.shadow_loss_ES
            seen[f"{step}.{part} gradients"] = stats.grad_norm_ES
        seen[f"{step} validation"] = p.evaluate(*batch(p.members, 99)).loss_R
        p.end_step(good_signals(p))
        _act(p, step)
    seen["macs"] = torch.from_numpy(p.macs_E())
    return seen


def _act(p: Population, step: int) -> None:
    if step == 0:
        p.fossilize([1], "r0c1")
        p.germinate([3, 4], "r1c1", "attention", style=BlendStyle.GATE, tempo=5)
    if step == 1:
        p.set_alpha_target([3], "r0c1", 0.5, speed=3)
        p.prune([2], "r1c1", speed=3)
    if step == 2:
        p.germinate([4], "r0c0", "conv_light")  # where one was pruned before the save
    if step == 3:
        e, s = np.nonzero(p.lifecycle.legal_ops()[..., LifecycleOp.ADVANCE])
        p.advance(e, s)


def state(p: Population) -> dict[str, torch.Tensor]:
    """Every tensor and array of a population, found without the code that saves them."""
    arrays = {n: v for n, v in vars(p.lifecycle).items() if n.endswith(("_ES", "_E"))}
    out = {n: torch.from_numpy(v) for n, v in arrays.items()} | {"passes": p.passes_E}
    signals = p.lifecycle.signals
    out |= {f"signals {n}": torch.from_numpy(getattr(signals, n)) for n in signals.__slots__}
    stores = {"host": p.network.host}
    stores |= {f"bank {key}": store for key, store in p.network.banks.items()}
    stores |= {f"gate {key}": store for key, store in p.network.gates.items()}
    for owner, store in stores.items():
        out[owner] = store.flat_EP.detach()
        out |= {f"{owner} {name}": value for name, value in store.fixed.items()}
        assert store.flat_EP.grad is None
    for optimizer in (p.trainer.host_optimizer, p.trainer.seed_optimizer):
        for key, moments in optimizer.state.items():
            out |= {f"moments {key} {name}": value for name, value in moments.items()}
    out |= {"host_lr": p.trainer.host_lr_E, "seed_lr": p.trainer.seed_lr_E}
    return out | {"legal": torch.from_numpy(p.lifecycle.legal_ops())}


def bits(p: Population) -> dict[str, str]:
    """All of a population, to be compared bit for bit (NaN included), orders kept."""
    facts = (p.seed, p.round, p.config, p.probe, list(p.network.banks), list(p.network.gates))
    return raw(state(p)) | {"facts": repr(facts)}


def raw(tensors: dict[str, torch.Tensor]) -> dict[str, str]:
    """Tensors as text that keeps every bit."""
    return {n: t.detach().contiguous().numpy().tobytes().hex() for n, t in tensors.items()}


def outputs(model: Population | MorphogeneticModel) -> torch.Tensor:
    """What it makes of one batch of data."""
    x, _ = batch(FIVE, seed=50)
    with torch.no_grad():
        return model.forward(x if isinstance(model, Population) else x[0])


def population_story(folder: str) -> dict[str, str]:
    """In a fresh process: load, look, go on, start the next round."""
    p = Population.load(folder, tiny_host)
    reported = {f"at once {name}": value for name, value in bits(p).items()}
    reported |= raw({"outputs": outputs(p)}) | raw(train_on(p))
    return reported | bits(p) | next_round(p)


def population_stories(folder: str, count: int) -> list[dict[str, str]]:
    """In a fresh process: the story of each save in a folder."""
    return [population_story(os.path.join(folder, str(number))) for number in range(count)]


def next_round(p: Population) -> dict[str, str]:
    """The first batch of a new episode."""
    p.reset(p.round + 1)
    p.plant([0], "r0c0", "conv_light")
    p.train_batch(*batch(p.members, 7))
    return {f"next {name}": value for name, value in bits(p).items()}


def member_stories(folder: str) -> list[dict[str, str]]:
    """In a fresh process: load each member and look."""
    return [_member_story(os.path.join(folder, str(index))) for index in range(FIVE)]


def _member_story(folder: str) -> dict[str, str]:
    model = MorphogeneticModel.load(folder, tiny_host)
    reported = raw({"outputs": outputs(model)}) | raw(dict(model.named_parameters()))
    return reported | {"reports": repr(model.reports), "member": str(model.member)}


def in_fresh_process(call: str, timeout: float = 300, threads: int | None = None) -> object:
    """What an expression about this module gives in a new interpreter, by JSON.

    By default it has as many threads as this one: sums are split between them. What forks needs 1:
    OpenMP's threads do not survive that, and the next sum would wait for them.
    """
    count = torch.get_num_threads() if threads is None else threads
    program = f"import json, saving_cases as c; print(json.dumps(c.{call}))"
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    out = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": str(count)},
    )
    assert out.returncode == 0, out.stderr
    return json.loads(out.stdout.splitlines()[-1])


def small(mark: int) -> Population:
    """A population that saves in milliseconds; `mark` tells one from another."""
    p = make_population(2, "loop", seed=mark, slots=("r0c0", "r0c1"))
    p.reset(mark)
    bring_to(p, SeedStage.BLENDING, [1], "r0c0", style=BlendStyle.GATE)
    pass_step(p, train=True, seed=mark)
    return p


def found(folder: str | Path, known: dict[str, dict[str, str]]) -> str:
    """Which of the known states a folder holds, whole; an error where it is none of them."""
    held = bits(Population.load(folder, tiny_host))
    (name,) = (name for name, state in known.items() if state == held)
    return name


def names_in(folder: str | Path) -> list[str]:
    """The files there, the hash of the tensor file left out."""
    return sorted(name.partition("-")[0] for name in os.listdir(folder))


def _end(child: int) -> int:
    """Wait for a child; the signal that ended it, 0 if none did."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_at_random(folder: str, count: int) -> dict[str, int]:
    """Children save over an old save without pause and are killed: what the folder holds then."""
    old, new = small(1), small(2)
    known = {"old": bits(old), "new": bits(new)}
    old.save(folder)
    moments = np.random.default_rng(5)
    seen = {"old": 0, "new": 0, "midway": 0}
    for _ in range(count):
        child = os.fork()
        if child == 0:
            while True:
                new.save(folder)
                old.save(folder)
        time.sleep(moments.uniform(0.005, 0.05))
        os.kill(child, signal.SIGKILL)
        assert _end(child) == -signal.SIGKILL
        seen["midway"] += names_in(folder) != ["manifest.json", "tensors"]
        seen[found(folder, known)] += 1
    new.save(folder)
    assert names_in(folder) == ["manifest.json", "tensors"], "leftovers are swept by the next save"
    return seen


def killed_at_each_call(folder: str) -> dict[str, list[str]]:
    """A child kills itself at the n-th step of a save, for every n: what the folder holds then."""
    old, new = small(1), small(2)
    return {"over": _killed_saves(folder, old, new), "first": _killed_saves(folder, None, new)}


def _killed_saves(folder: str, old: Population | None, new: Population) -> list[str]:
    known = {"new": bits(new)} | ({"old": bits(old)} if old else {})
    seen: list[str] = []
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        if old:
            old.save(folder)
        child = os.fork()
        if child == 0:
            _die_at(len(seen))
            new.save(folder)
            os._exit(0)
        if _end(child) == 0:
            return seen
        whole = os.path.exists(os.path.join(folder, "manifest.json"))
        seen.append(found(folder, known) if whole else "nothing")


def _die_at(step: int) -> None:
    """Kill this process when saving reaches the given step: before a call, or halfway a write."""
    steps = itertools.count()

    def tick() -> None:
        if next(steps) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    def before(call: Callable[..., object]) -> Callable[..., object]:
        def counted(*args: object, **named: object) -> object:
            tick()
            return call(*args, **named)

        return counted

    class Halting(io.FileIO):
        def write(self, data: bytes) -> int:  # type: ignore[override]
            tick()
            half = super().write(data[: len(data) // 2])
            tick()
            return half + super().write(data[half:])

    for name in ("replace", "fsync", "unlink"):
        setattr(os, name, before(getattr(os, name)))
    os.fdopen = Halting  # type: ignore[assignment]


def refused_saves(top: str) -> dict[str, list[str]]:
    """What saving says on a full disk, and where it may not write; each in a child of its own."""
    found = {}
    for refusal in (full_disk, read_only):
        with tempfile.TemporaryFile() as answer:
            if (child := os.fork()) == 0:
                lines = refusal(os.path.join(top, refusal.__name__))
                os.write(answer.fileno(), json.dumps(lines).encode())
                os._exit(0)
            assert _end(child) == 0
            answer.seek(0)
            found[refusal.__name__] = json.loads(answer.read())
    return found


def interrupted_saves(top: str, count: int) -> dict[str, object]:
    """Everything that can come between a save and its end, in one process."""
    return {
        "at each call": killed_at_each_call(os.path.join(top, "each")),
        "at random": killed_at_random(os.path.join(top, "random"), count),
        **refused_saves(top),
    }


def full_disk(folder: str) -> list[str]:
    """Files may not grow beyond 4 kB (a real limit of the system): the lines of refusal."""
    old, new = small(1), small(2)
    known = {"old": bits(old), "new": bits(new)}
    old.save(folder)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    lines = []
    for place in (folder, os.path.join(folder, "deeper", "still")):
        try:
            new.save(place)
        except EsperError as error:
            lines.append(str(error))
    assert found(folder, known) == "old"
    assert names_in(folder) == ["deeper", "manifest.json", "tensors"]
    return lines


def read_only(folder: str) -> list[str]:
    """Saving as a user who may not write there: the lines of refusal."""
    old, new = small(1), small(2)
    known = {"old": bits(old), "new": bits(new)}
    old.save(folder)
    os.chmod(folder, 0o555)
    if os.getuid() == 0:  # root may write anywhere
        os.setuid(65534)
    lines = []
    for place in (folder, os.path.join(folder, "deeper")):
        try:
            new.save(place)
        except EsperError as error:
            lines.append(str(error))
    assert found(folder, known) == "old"
    return lines
