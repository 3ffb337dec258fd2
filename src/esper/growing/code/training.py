"""The parts of a script besides the network: recipe, data, augmentation, training loop."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import torch

from esper.growing.code.augmentation import augments, mixes
from esper.growing.code.docs import function
from esper.growing.runs import WARM_UP, Recipe
from esper.growing.trainers.update import MOMENTUM
from esper.kasmina.tracing import Inputs
from esper.leyline.errors import EsperError
from esper.tasks.metric_forms import Metric
from esper.tasks.objectives import TrainingLoss

WRITTEN: Final = (
    "optimizer", "lr", "weight_decay", "clip", "batch_size", "batches", "augment",
    "label_smoothing",
)  # fmt: skip
"""Fields of a recipe that a script follows."""


@dataclass(frozen=True, slots=True, eq=False)
class Training:
    """What all networks of a search have in common, for their scripts."""

    inputs: Inputs
    loss: TrainingLoss
    metric: Metric
    amp: bool
    classes: tuple[str, ...] | None
    """Names of the classes, if labels were strings."""
    weighted: bool
    """Samples have weights."""
    samples: int | None
    """Training samples; None: they were a stream, read anew in every epoch."""


@dataclass(frozen=True, slots=True)
class Start:
    """Weights that a network starts from."""

    file: str = ""
    """Of another run, relative to the run folder; empty: its own."""
    silent: tuple[str, ...] = ()
    """Parameters that start at 0, because their seed is new."""


def check_recipe(recipe: Recipe) -> None:
    """Raise if a recipe has something that a script would leave out."""
    for one in fields(recipe):
        if one.name not in WRITTEN and getattr(recipe, one.name) != one.default:
            raise EsperError(f"a script cannot follow {one.name}={getattr(recipe, one.name)}")


def constant_lines(recipe: Recipe, training: Training) -> list[str]:
    """The recipe as constants."""
    samples, classes = training.samples, training.classes
    length = "  # the search read samples anew in every epoch"
    if samples is not None:
        per_epoch = max(1, samples // min(recipe.batch_size, samples))
        length = f"  # {recipe.batches / per_epoch:.3g} epochs of {samples:,} samples"
    lines = [
        f"LR = {recipe.lr!r}",
        f"WEIGHT_DECAY = {recipe.weight_decay!r}",
        *([f"CLIP = {recipe.clip!r}  # longest gradient"] if recipe.clip else []),
        f"BATCH_SIZE = {recipe.batch_size}",
        f"BATCHES = {recipe.batches}{length}",
        f"WARM_UP = {max(1, round(WARM_UP * recipe.batches))}  # batches",
    ]
    if classes is not None:
        lines.append(f"CLASSES = {list(classes)!r}")
    return lines


# ---- data ---------------------------------------------------------------------------------------


def _dtype(kind: torch.dtype) -> str:
    return str(kind)


def data_lines(training: Training) -> list[str]:
    """Source of `make_data`, which reads a file; to be replaced by the user's own."""
    specs, form = training.inputs.specs, training.inputs.form
    body = [
        '"""Samples and targets of an .npz file; put your own data here."""',
        "data = np.load(path)",
    ]
    read = {s.name: f'torch.as_tensor(data["{s.name}"]).to({_dtype(s.dtype)})' for s in specs}
    if len(specs) == 1 and form in ("tensor", "positional"):
        read = {specs[0].name: f'torch.as_tensor(data["x"]).to({_dtype(specs[0].dtype)})'}
        body.append(f"x = {read[specs[0].name]}")
    elif form == "positional":
        body += ["x = [", *(f"    {text}," for text in read.values()), "]"]
    else:
        body += ["x = {", *(f'    "{name}": {text},' for name, text in read.items()), "}"]
    if training.classes is not None:
        body.append('y = torch.as_tensor(np.searchsorted(CLASSES, data["y"]))')
    else:
        body.append('y = torch.as_tensor(data["y"])')
    return function("make_data(path)", [*body, "return x, y"])


def model_call(inputs: Inputs) -> str:
    """The call of a model on the samples `index`."""
    if len(inputs.specs) == 1 and inputs.form in ("tensor", "positional"):
        return "model(x[index])"
    if inputs.form == "positional":
        return "model(*[value[index] for value in x])"
    stars = "**" if inputs.form == "keywords" else ""
    return f"model({stars}{{name: value[index] for name, value in x.items()}})"


# ---- the loop -----------------------------------------------------------------------------------

SCHEDULE: Final = function(
    "schedule(batch)",
    [
        '"""Share of the learning rate: a linear warm-up, then a cosine to 0."""',
        "if batch < WARM_UP:",
        "    return (batch + 1) / (WARM_UP + 1)",
        "return 0.5 + 0.5 * math.cos(math.pi * (batch - WARM_UP) / max(1, BATCHES - WARM_UP))",
    ],
)


def train_lines(recipe: Recipe, training: Training) -> list[str]:
    """Source of `train`."""
    given = "x, y, weights" if training.weighted else "x, y"
    momentum = f", momentum={MOMENTUM}" if recipe.optimizer == "sgd" else ""
    kind = {"adamw": "AdamW", "sgd": "SGD"}[recipe.optimizer]
    clip = ["nn.utils.clip_grad_norm_(params, CLIP)"] if recipe.clip else []
    loop = [
        "place = number % per_epoch",
        "if place == 0:",
        "    order = torch.randperm(len(y), device=y.device)",
        "index = order[place * size : (place + 1) * size]",
        *_loss_of_batch(recipe, training),
        "optimizer.zero_grad()",
        "loss.backward()",
        *clip,
        "optimizer.step()",
        "scheduler.step()",
    ]
    return function(
        f"train(model, {given}, seed=0)",
        [
            '"""Train a model in place; x and y are on its device."""',
            "torch.manual_seed(seed)",
            "params = [p for p in model.parameters() if p.requires_grad]",
            f"optimizer = torch.optim.{kind}(params, lr=LR{momentum}, weight_decay=WEIGHT_DECAY)",
            "scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)",
            "size = min(BATCH_SIZE, len(y))",
            "per_epoch = len(y) // size  # a last batch with fewer samples is left out",
            "model.train()",
            "for number in range(BATCHES):",
            *(f"    {line}" for line in loop),
        ],
    )


def _loss_of_batch(recipe: Recipe, training: Training) -> list[str]:
    """Lines from `index` to `loss`."""
    call, lines = model_call(training.inputs), list[str]()
    if augments(recipe.augment):
        call = call.replace("x[index]", "augment(x[index])")
    if mixes(recipe.augment):
        lines.append(call.replace("model(", "inputs = ", 1).removesuffix(")"))
        lines.append("kept = 1 - 0.5 * torch.rand((), device=y.device) ** 2")
        call = "model(torch.lerp(inputs.flip(0), inputs, kept))"
    lines.append(f"outputs = {call}")
    if training.amp:
        lines[-1:] = ["with torch.autocast(y.device.type, torch.bfloat16):", f"    {lines[-1]}"]
    outputs = "outputs.float()" if training.amp else "outputs"
    targets = "y[index], weights[index]" if training.weighted else "y[index]"
    loss = f"loss_fn({outputs}, {targets})"
    if not mixes(recipe.augment):
        return [*lines, f"loss = {loss}"]
    other = loss.replace("[index]", "[index.flip(0)]")
    return [*lines, f"loss = kept * {loss}", f"loss = loss + (1 - kept) * {other}"]


def evaluate_lines(inputs: Inputs, metric: str) -> list[str]:
    """Source of `evaluate`."""
    return function(
        "evaluate(model, x, y)",
        [
            f'"""{metric} of a model on samples x and targets y."""',
            "model.eval()",
            "with torch.no_grad():",
            f"    outputs = [{model_call(inputs)} for index in torch.arange(len(y)).split(1024)]",
            "return score(torch.cat(outputs).float().cpu(), y.cpu())",
        ],
    )


WEIGHTS: Final = function(
    "read_weights(path)",
    [
        '"""Weights of a .safetensors file, or of one by torch.save."""',
        'if path.endswith(".safetensors"):',
        "    from safetensors.torch import load_file",
        "",
        "    return load_file(path)",
        "return torch.load(path, weights_only=True)",
    ],
)


def main_lines(training: Training, start: Start) -> list[str]:
    """Source of `main`."""
    form = training.inputs.form
    move = "x.to(device)"
    if len(training.inputs.specs) > 1 or form not in ("tensor", "positional"):
        move = "{name: value.to(device) for name, value in x.items()}"
        if form == "positional":
            move = "[value.to(device) for value in x]"
    weights = []
    train = "train(model, x, y, args.seed)"
    if training.weighted:
        weights = ['weights = torch.as_tensor(np.load(args.train)["weights"]).float().to(device)']
        train = "train(model, x, y, weights, args.seed)"
    given = f', default="{start.file}"' if start.file else ""
    return function(
        "main()",
        [
            "parser = argparse.ArgumentParser()",
            'parser.add_argument("train", help=".npz file, see make_data")',
            'parser.add_argument("test")',
            f'parser.add_argument("--start"{given}, help="file of weights to start from")',
            'parser.add_argument("--save", help="file for the trained weights, by torch.save")',
            'parser.add_argument("--seed", type=int, default=0)',
            "args = parser.parse_args()",
            'device = "cuda" if torch.cuda.is_available() else "cpu"',
            "model = make_model(args.seed)",
            "if args.start:",
            *(f"    {line}" for line in _start_lines(start)),
            "model.to(device)",
            "x, y = make_data(args.train)",
            f"x, y = {move}, y.to(device)",
            *weights,
            train,
            "x, y = make_data(args.test)",
            f'print("test {training.metric.name}", evaluate(model, {move}, y))',
            "if args.save:",
            "    torch.save(model.state_dict(), args.save)",
        ],
    )


def _start_lines(start: Start) -> list[str]:
    if not start.file:
        return ["model.load_state_dict(read_weights(args.start))"]
    lines = ["model.load_state_dict(read_weights(args.start), strict=False)  # seeds may be new"]
    if start.silent:
        names = ", ".join(f'"{name}"' for name in start.silent)
        lines += [
            f"for name in [{names}]:  # a new seed adds nothing at first",
            "    nn.init.zeros_(model.get_parameter(name))",
        ]
    return lines
