"""The parts of a script besides the network: recipe, data, training loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from string import Template
from typing import Final

from esper.growing.code.augmentation import augments, mixes
from esper.growing.runs import WARM_UP, Recipe
from esper.growing.trainers.update import MOMENTUM
from esper.kasmina.tracing import Inputs
from esper.tasks.metric_forms import Metric
from esper.tasks.objectives import TrainingLoss

_PROGRAM: Final = Template('''
def schedule(batch):
    """Share of the learning rate: a linear warm-up, then a cosine to 0."""
    if batch < WARM_UP:
        return (batch + 1) / (WARM_UP + 1)
    return 0.5 + 0.5 * math.cos(math.pi * (batch - WARM_UP) / max(1, BATCHES - WARM_UP))


$loss


def train(model, $given, seed=0):
    """Train a model in place; x and y are on its device."""
    torch.manual_seed(seed)
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.$optimizer, weight_decay=WEIGHT_DECAY)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    size = min(BATCH_SIZE, len(y))
    per_epoch = len(y) // size  # a last batch with fewer samples is left out
    model.train()
    for number in range(BATCHES):
        place = number % per_epoch
        if place == 0:
            order = torch.randperm(len(y), device=y.device)
        index = order[place * size : (place + 1) * size]
        $step
        scheduler.step()


$score


def evaluate(model, x, y):
    """$metric of a model on samples x and targets y."""
    model.eval()
    with torch.no_grad():
        outputs = [$call for index in torch.arange(len(y)).split(1024)]
    return score(torch.cat(outputs).float().cpu(), y.cpu())


def make_data(path):
    """Samples and targets of an .npz file; put your own data here."""
    data = np.load(path)
    $x
    $y
    return x, y


def read_weights(path):
    """Weights of a .safetensors file, or of one by torch.save."""
    if path.endswith(".safetensors"):
        from safetensors.torch import load_file

        return load_file(path)
    return torch.load(path, weights_only=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("train", help=".npz file, see make_data")
    parser.add_argument("test")
    parser.add_argument("--start"$start, help="file of weights to start from")
    parser.add_argument("--save", help="file for the trained weights, by torch.save")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = make_model(args.seed)
    if args.start:
        $load
    model.to(device)
    x, y = make_data(args.train)
    x, y = $move, y.to(device)
    $weights
    train(model, $given, args.seed)
    x, y = make_data(args.test)
    print("test $metric", evaluate(model, $move, y))
    if args.save:
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
''')


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
        *([f"CLIP = {recipe.clip!r}  # maximum gradient norm"] if recipe.clip else []),
        f"BATCH_SIZE = {recipe.batch_size}",
        f"BATCHES = {recipe.batches}{length}",
        f"WARM_UP = {max(1, round(WARM_UP * recipe.batches))}  # batches",
    ]
    if classes is not None:
        lines.append(f"CLASSES = {list(classes)!r}")
    return lines


def program(
    recipe: Recipe, training: Training, start: Start, loss: Sequence[str], score: Sequence[str]
) -> str:
    """Source of everything after the network; `loss`, `score`: lines of these functions."""
    read = 'weights = torch.as_tensor(np.load(args.train)["weights"]).float().to(device)'
    y = 'torch.as_tensor(data["y"])'
    if training.classes is not None:
        y = 'torch.as_tensor(np.searchsorted(CLASSES, data["y"]))'
    momentum = f", momentum={MOMENTUM}" if recipe.optimizer == "sgd" else ""
    kind = {"adamw": "AdamW", "sgd": "SGD"}[recipe.optimizer]
    text = _PROGRAM.substitute(
        loss="\n".join(loss),
        score="\n".join(score),
        given="x, y, weights" if training.weighted else "x, y",
        optimizer=f"{kind}(params, lr=LR{momentum}",
        step="\n        ".join(_step_lines(recipe, training)),
        metric=training.metric.name,
        call=_model_call(training.inputs),
        x="\n    ".join(_reading_lines(training.inputs)),
        y=f"y = {y}",
        start=f', default="{start.file}"' if start.file else "",
        load="\n        ".join(_start_lines(start)),
        move=_each(training.inputs, "value.to(device)"),
        weights=read if training.weighted else "",
    )
    return text.replace("    \n", "").strip()


# ---- data ---------------------------------------------------------------------------------------


def _is_single(inputs: Inputs) -> bool:
    return len(inputs.specs) == 1 and inputs.form in ("tensor", "positional")


def _each(inputs: Inputs, text: str) -> str:
    """Something of every tensor `value` of the samples `x`, in the form of these."""
    if _is_single(inputs):
        return text.replace("value", "x")
    if inputs.form == "positional":
        return f"[{text} for value in x]"
    return f"{{name: {text} for name, value in x.items()}}"


def _model_call(inputs: Inputs) -> str:
    """The call of a model on the samples `index`."""
    stars = {"positional": "*", "keywords": "**"}.get(inputs.form, "")
    return f"model({'' if _is_single(inputs) else stars}{_each(inputs, 'value[index]')})"


def _reading_lines(inputs: Inputs) -> list[str]:
    """Lines of `make_data` for the samples."""
    single = _is_single(inputs)
    names = ["x"] if single else [spec.name for spec in inputs.specs]
    read = [
        f'torch.as_tensor(data["{name}"]).to({spec.dtype})'
        for name, spec in zip(names, inputs.specs, strict=True)
    ]
    if single:
        return [f"x = {read[0]}"]
    if inputs.form == "positional":
        return ["x = [", *(f"    {text}," for text in read), "]"]
    pairs = zip(names, read, strict=True)
    return ["x = {", *(f'    "{name}": {text},' for name, text in pairs), "}"]


# ---- the loop -----------------------------------------------------------------------------------


def _step_lines(recipe: Recipe, training: Training) -> list[str]:
    """Lines from `index` to the step of the optimizer."""
    clip = ["nn.utils.clip_grad_norm_(params, CLIP)"] if recipe.clip else []
    after = ["optimizer.zero_grad()", "loss.backward()", *clip, "optimizer.step()"]
    call, lines = _model_call(training.inputs), list[str]()
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
        return [*lines, f"loss = {loss}", *after]
    other = loss.replace("[index]", "[index.flip(0)]")
    return [*lines, f"loss = kept * {loss}", f"loss = loss + (1 - kept) * {other}", *after]


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
