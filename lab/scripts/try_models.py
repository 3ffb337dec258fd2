"""Does `esper.grow` take the models people use? All classifiers of torchvision, 3 transformers.

    python lab/scripts/try_models.py                          every model of both libraries
    python lab/scripts/try_models.py --names swin_t vit_b_16  some
    python lab/scripts/try_models.py --device cuda --jobs 4 --out models.json

Each model is built with random weights, without downloads, for 10 classes and the smallest images
it takes. It goes the way of `esper.grow`: model, data and loss are checked, slots are found, sizes
and compute are measured. Then a seed is planted in every slot, all weights train on one batch, and
the network comes back as a plain module, whose outputs must equal those of the one that trained. A
failure is one line in the table; `--out` gets all of it as JSON.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import json
import multiprocessing
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from esper.growing.budget import Budget
from esper.growing.data.reading import read_data
from esper.growing.problem import limit_blueprints, make_problem
from esper.growing.progress import ProgressPrinter
from esper.growing.run import GrowRun
from esper.growing.runs import Recipe
from esper.growing.settings import GrowSettings
from esper.growing.trainers.job import Job
from esper.kasmina.tracing import carry_weights, finished_model
from esper.leyline.errors import EsperError, unknown_name
from esper.leyline.user_errors import format_error
from esper.scripts.cli.command import run_command

CLASSES: Final = 10
SAMPLES: Final = 4
SEQUENCE: Final = 16
VOCABULARY: Final = 64
MAX_DIFFERENCE: Final = 1e-3
"""Between outputs of the network that trained and the plain module, relative to the largest."""
SIZES: Final = {"inception_v3": 299, "maxvit_t": 224}
"""Images smaller than that are refused by the model."""
SMALL: Final = 64
"""Side of the images of all other models."""
RATES: Final = (1e-4,)
"""Learning rate of the one step."""
PREFERRED: Final = ("depthwise", "lora", "mlp_small")
"""Seeds to plant, the first that fits: small ones, which save time."""
DETECTORS: Final = ("nms", "qnms")
"""Compiled operators that torchvision needs for its import, not for its classifiers."""
_OPERATORS: Final = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class TryModels:
    """Grow models of torchvision and transformers by one step."""

    names: tuple[str, ...] = ()
    """Models to try; none: all."""
    device: str = "auto"
    """Where networks are trained."""
    seconds: float = 120.0
    """Time limit for each model."""
    jobs: int = 1
    """Processes that try models side by side."""
    out: str = ""
    """A JSON file for the results."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one model."""

    name: str
    params: int = 0
    slots: int = 0
    topology: str = ""
    traced: str = ""
    """How it runs: as a graph, with modules kept whole, or by hooks."""
    trainer: str = ""
    seed: str = ""
    difference: float = float("nan")
    seconds: float = 0.0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model to try, and inputs for it."""

    build: Callable[[], nn.Module]
    inputs: Tensor
    targets: Tensor


# ---- the models -------------------------------------------------------------------------------


def torchvision_models() -> dict[str, Callable[[], Candidate]]:
    """All classification models of torchvision, by name; empty if it is not installed."""
    if importlib.util.find_spec("torchvision") is None:
        return {}
    models = _import_torchvision().models
    return {name: _image_model(models, name) for name in models.list_models(module=models)}


def _import_torchvision() -> Any:
    """Import torchvision; where its compiled part does not load, only its detectors miss it."""
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    for name in DETECTORS:
        schema = f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        _OPERATORS.define(schema)  # type: ignore[no-untyped-call]
    return importlib.import_module("torchvision")


def _image_model(models: Any, name: str) -> Callable[[], Candidate]:
    def candidate() -> Candidate:
        side = SIZES.get(name, SMALL)
        options: dict[str, Any] = {"weights": None, "num_classes": CLASSES}
        if name.startswith("vit_"):
            side = 28 if name == "vit_h_14" else 64
            options["image_size"] = side
        if name in ("googlenet", "inception_v3"):
            options["init_weights"] = True  # silences a warning about the default
        images, targets = torch.randn(SAMPLES, 3, side, side), torch.arange(SAMPLES) % CLASSES
        return Candidate(lambda: models.get_model(name, **options), images, targets)

    return candidate


def transformers_models() -> dict[str, Callable[[], Candidate]]:
    """A BERT, a GPT-2 and a ViT with small random weights; empty if there is no transformers."""
    if importlib.util.find_spec("transformers") is None:
        return {}
    return {"bert (transformers)": _bert, "gpt2 (transformers)": _gpt2, "vit (transformers)": _vit}


def _bert() -> Candidate:
    library: Any = importlib.import_module("transformers")
    config = library.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=SEQUENCE,
        num_labels=CLASSES,
    )
    ids = torch.randint(VOCABULARY, (SAMPLES, SEQUENCE))
    return Candidate(
        lambda: library.BertForSequenceClassification(config), ids, torch.arange(SAMPLES) % CLASSES
    )


def _gpt2() -> Candidate:
    library: Any = importlib.import_module("transformers")
    config = library.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=SEQUENCE,
        n_embd=64,
        n_layer=3,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
    )
    ids = torch.randint(VOCABULARY, (SAMPLES, SEQUENCE + 1))
    return Candidate(lambda: library.GPT2LMHeadModel(config), ids[:, :-1], ids[:, 1:])


def _vit() -> Candidate:
    library: Any = importlib.import_module("transformers")
    config = library.ViTConfig(
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=128,
        image_size=32,
        patch_size=8,
        num_labels=CLASSES,
    )
    images = torch.randn(SAMPLES, 3, 32, 32)
    return Candidate(
        lambda: library.ViTForImageClassification(config), images, torch.arange(SAMPLES) % CLASSES
    )


# ---- one model --------------------------------------------------------------------------------


def try_model(name: str, config: TryModels) -> Outcome:
    """Grow one model by a step; any failure is part of the outcome."""
    began = time.perf_counter()
    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = False  # 10 bits would hide or feign a difference
    found = Outcome(name)
    try:
        with _time_limit(config.seconds):
            found = _grown(name, all_models()[name](), config)
    except Exception as error:  # a model, a library or Esper: the table says which
        line = str(error) if isinstance(error, EsperError) else format_error(error)
        found = Outcome(name, error=line)
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    fields = asdict(found) | {"seconds": round(time.perf_counter() - began, 2)}
    return Outcome(**fields)


def _grown(name: str, given: Candidate, config: TryModels) -> Outcome:
    settings = GrowSettings(
        widths=(),
        lr=RATES,
        batch_size=SAMPLES,
        epochs=1,
        optimizer="sgd",
        device=config.device,
    )
    printer = ProgressPrinter(False, None)
    with printer.shown():
        run = _prepared(given, settings, printer)
        difference, trainer = _trained_difference(run, given.inputs)
    if not difference <= MAX_DIFFERENCE:
        raise EsperError(f"the plain module differs from what was trained by {difference:.1e}")
    trace, base = run.problem.trace, run.networks.base
    whole = f"{len(trace.untraced)} whole" if trace.untraced else "graph"
    return Outcome(
        name,
        base.size(base.bare).params,
        len(trace.slots),
        trace.topology,
        f"hooks: {trace.hooked}" if trace.hooked else whole,
        trainer,
        trace.blueprints[0],
        difference,
    )


def _prepared(given: Candidate, settings: GrowSettings, printer: ProgressPrinter) -> GrowRun:
    """What `esper.grow` does before its search, with one blueprint, which saves time."""
    part = (given.inputs, given.targets)
    data = read_data(part, part, part, settings)
    problem = make_problem(given.build(), data, settings)
    names = problem.trace.blueprints
    chosen = next((name for name in PREFERRED if name in names), names[-1])
    problem = replace(problem, trace=limit_blueprints(problem.trace, [chosen]))
    run = GrowRun(problem, settings, Budget(host_runs=1), printer, time.monotonic())
    run.prepare()
    return run


def _trained_difference(run: GrowRun, inputs: Tensor) -> tuple[float, str]:
    """Plant a seed in all slots that it fits, train all weights on one batch, and finish it.

    Largest difference of outputs of the plain module and the network that trained, relative; and
    the trainer.
    """
    base, trace = run.networks.base, run.problem.trace
    topology = tuple(next(iter(base.options(slot)), "") for slot in range(len(trace.slots)))
    size = run.networks.batch_size
    recipe = Recipe(run.optimizer, RATES[0], run.weight_decay, 1.0, size, 1)
    job = Job(0, lambda: base.build(topology, 0), recipe, 0)
    try:
        (outcome,) = run.trainer.train(iter([job]), lambda _: False)
    finally:
        run.trainer.close()
    if not outcome.finite:
        raise EsperError(f"loss {outcome.loss} after one step")
    trained, copied = base.build(topology, 0), base.build(topology, 0)
    for network in (trained, copied):
        carry_weights(network, outcome.weights)
    plain = finished_model(copied).to(run.device)
    if any(type(part).__module__.startswith("esper.") for part in plain.modules()):
        raise EsperError("the plain module holds a module of Esper")
    x = inputs.to(run.device)
    trained.to(run.device).eval()
    with torch.no_grad():
        expected = run.task.outputs(trained, trace.inputs.values(x))
        out = run.task.outputs(plain, trace.inputs.values(x))
    return float((out - expected).abs().max() / expected.abs().max()), outcome.how.trainer


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise TimeoutError(f"more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# ---- all of them ------------------------------------------------------------------------------


def _outcomes(names: Sequence[str], config: TryModels) -> Iterator[Outcome]:
    if config.jobs == 1:
        yield from (try_model(name, config) for name in names)
        return
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(config.jobs, spawned, max_tasks_per_child=8) as pool:
        tried = [pool.submit(try_model, name, config) for name in names]
        yield from (done.result() for done in as_completed(tried))


def all_models() -> dict[str, Callable[[], Candidate]]:
    """Every model of the libraries that are installed."""
    return torchvision_models() | transformers_models()


def main(config: TryModels) -> int:
    """Try all models; the exit status is 0 whatever fails."""
    known = all_models()
    for name in config.names:
        if name not in known:
            raise unknown_name("model", name, known)
    names = config.names or tuple(known)
    found: list[Outcome] = []
    for outcome in _outcomes(names, config):
        found.append(outcome)
        print(_row(outcome), flush=True)
        if config.out:
            Path(config.out).write_text(json.dumps([asdict(o) for o in found], indent=1) + "\n")
    grown = sum(not outcome.error for outcome in found)
    print(f"{grown} of {len(found)} models grown by one step (torch {torch.__version__})")
    return 0


def _row(outcome: Outcome) -> str:
    head = f"{outcome.name:<22} {outcome.seconds:6.1f} s  "
    if outcome.error:
        return f"{head}FAILS  {outcome.error}"
    return (
        f"{head}{outcome.params:>12,} params  {outcome.slots} {outcome.topology:<11} "
        f"{outcome.trainer:<8} {outcome.seed:<12} {outcome.difference:.0e}  "
        f"{outcome.traced}"
    )


if __name__ == "__main__":
    sys.exit(run_command(TryModels, main))
