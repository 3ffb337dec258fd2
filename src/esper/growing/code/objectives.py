"""Loss and metric of a script, as torch's functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from torch import nn

from esper.growing.code.expressions import Imports, function_name
from esper.growing.code.parts import function
from esper.growing.runs import Recipe
from esper.kasmina.training.losses import IGNORED, cross_entropy
from esper.leyline.errors import EsperError
from esper.tasks.member_functions import MemberFunction
from esper.tasks.metric_forms import MeanMetric, Metric, OwnMetric
from esper.tasks.objectives import TrainingLoss
from esper.tasks.row_terms import ClassTerms, NumberTerms, RowTerms

_NUMBERS: Final = {
    "mae": "error.abs().mean()",
    "rmse": "error.square().mean(0).sqrt().mean()",
    "r2": "(1 - error.square().mean(0) / y.var(0, correction=0)).mean()",
}
_CLASSES: Final = {
    "accuracy": "(outputs.argmax(-1) == y).float().mean()",
    "log_loss": "F.cross_entropy(outputs.double(), y)",
    "perplexity": "F.cross_entropy(outputs.double(), y).exp()",
}
_RIGHT: Final = "((outputs > 0) == (y > 0.5)){}.float().mean()"
_BINARY: Final = {
    "accuracy": _RIGHT,
    "label_accuracy": _RIGHT,
    "log_loss": "F.binary_cross_entropy_with_logits(outputs.double(), y.double())",
}
_SKLEARN: Final = {
    "balanced_accuracy": "balanced_accuracy_score(y, {predicted})",
    "f1": "f1_score(y, {predicted})",
    "f1_macro": 'f1_score(y, {predicted}, average="macro")',
    "roc_auc": "roc_auc_score(y, {scores}{several})",
    "average_precision": "average_precision_score(y, {scores})",
}


# ---- the loss -----------------------------------------------------------------------------------


def loss_lines(loss: TrainingLoss, recipe: Recipe, imports: Imports) -> list[str]:
    """Source of `loss_fn`."""
    terms = loss.terms
    if isinstance(terms, MemberFunction):
        return _own_function("loss_fn(outputs, targets)", terms.function, "loss", imports)
    found = []
    if terms.weights_K is not None:
        numbers = ", ".join(f"{float(weight):.9g}" for weight in terms.weights_K)
        found = [f"CLASS_WEIGHTS = torch.tensor([{numbers}])", "", ""]
    # A loss with options of its own does not take the recipe's (`trainers/task.py`).
    smoothing = recipe.label_smoothing if loss.loss is cross_entropy else None
    if not terms.weighted:
        before, value = _mean_loss(terms, smoothing)
        return [*found, *function("loss_fn(outputs, targets)", [*before, f"return {value}"])]
    shares = _shares(terms)
    total = "(weights * share.reshape_as(losses)).sum()" if shares else "weights.sum()"
    body = [
        *shares,
        f"losses = {_loss(terms, smoothing, 'none')}.reshape(len(targets), -1)",
        "weights = weights[:, None].expand_as(losses)",
        f"return (losses * weights).sum() / {total}",
    ]
    return [*found, *function("loss_fn(outputs, targets, weights)", body)]


def _mean_loss(terms: RowTerms, smoothing: float | None) -> tuple[list[str], str]:
    """Lines, and then the expression of the mean over all targets."""
    shares = _shares(terms)
    if isinstance(terms, ClassTerms) or not shares:
        return [], _loss(terms, smoothing)
    return shares, f"{_loss(terms, smoothing, 'sum')} / share.sum()"


def _shares(terms: RowTerms) -> list[str]:
    """Lines that define `share`, the class weight of each target; none: all are 1."""
    if terms.weights_K is None:
        return []
    if isinstance(terms, ClassTerms):
        return ["share = CLASS_WEIGHTS.to(outputs)[targets]"]
    return ["no, yes = CLASS_WEIGHTS.to(outputs)", "share = no + (yes - no) * targets.float()"]


def _loss(terms: RowTerms, smoothing: float | None, reduction: str = "mean") -> str:
    """torch's function, with class weights."""
    reduce = "" if reduction == "mean" else f', reduction="{reduction}"'
    if isinstance(terms, ClassTerms):
        return _cross_entropy(terms, terms.smoothing if smoothing is None else smoothing, reduce)
    given = "outputs.reshape(targets.shape), targets.float()"
    if isinstance(terms, NumberTerms):
        name = {"mse": "mse_loss", "mae": "l1_loss"}.get(terms.name, "huber_loss")
        delta = f", delta={terms.delta:g}" if name == "huber_loss" and terms.delta != 1 else ""
        return f"F.{name}({given}{delta}{reduce})"
    weight = "" if terms.weights_K is None else ", weight=share"
    return f"F.binary_cross_entropy_with_logits({given}{weight}{reduce})"


def _cross_entropy(terms: ClassTerms, smoothing: float, reduce: str) -> str:
    options = ", weight=CLASS_WEIGHTS.to(outputs)" if terms.weights_K is not None else ""
    options += f", label_smoothing={smoothing:g}" if smoothing else ""
    options += f", ignore_index={terms.ignore_index}" if terms.ignore_index != IGNORED else ""
    given = "outputs, targets"
    if len(terms.shape) > 1 and terms.axis == len(terms.shape) - 1:
        given = "outputs.flatten(0, -2), targets.flatten()"
    return f"F.cross_entropy({given}{options}{reduce})"


def _own_function(head: str, made: Callable[..., Any], what: str, imports: Imports) -> list[str]:
    """A function of the user's: imported, or to be put in by hand."""
    given = head[head.index("(") + 1 : -1]
    try:
        if isinstance(made, nn.Module | partial):
            raise EsperError("an object")
        name = function_name(made, imports)
    except EsperError:
        shown = getattr(made, "__name__", type(made).__name__)
        return function(head, [f'raise NotImplementedError("put your {what} here: {shown}")'])
    if what == "loss":
        return function(head, [f"return {name}({given}).mean()"])
    return function(head, [f"return float(torch.as_tensor({name}({given})).float().mean())"])


# ---- the metric ---------------------------------------------------------------------------------


def metric_lines(metric: Metric, imports: Imports) -> list[str]:
    """Source of `score`, of all outputs and targets, on the CPU."""
    head, reading = "score(outputs, y)", metric.reading
    if isinstance(metric, OwnMetric):
        return _own_function(head, metric.function, f"metric {metric.name}", imports)
    assert reading is not None
    constant = _constant_loss(metric)
    if constant is not None:
        doc = '"""Share of the loss of the best constant prediction that is explained."""'
        before, value = _mean_loss(reading, None)
        lines = [*before, f"return 1 - float({value}) / {constant:.9g}"]
        return function(head, [doc, *(line.replace("targets", "y") for line in lines)])
    if isinstance(reading, NumberTerms):
        body = [
            "outputs, y = outputs.reshape(len(y), -1).double(), y.reshape(len(y), -1).double()",
            "error = y - outputs",
        ]
        return function(head, [*body, f"return float({_NUMBERS[metric.name]})"])
    several = _class_lines if isinstance(reading, ClassTerms) else _binary_lines
    return function(head, several(metric.name, reading, imports))


def _constant_loss(metric: Metric) -> float | None:
    """Loss that the metric `explained` is relative to; None: it is another metric."""
    if metric.name != "explained" or not isinstance(metric, MeanMetric):
        return None
    assert isinstance(metric.terms, partial)
    return float(metric.terms.args[0])


def _class_lines(name: str, reading: Any, imports: Imports) -> list[str]:
    body = []
    if len(reading.shape) > 1:
        kept = f"y != {reading.ignore_index}"
        body = ["outputs = outputs.movedim(1, -1)"] if reading.axis == 0 else []
        body.append(f"outputs, y = outputs[{kept}], y[{kept}]")
    if name in _CLASSES:
        return [*body, f"return float({_CLASSES[name]})"]
    if reading.classes == 2:
        scores, several = "outputs[:, 1] - outputs[:, 0]", ""
    else:
        scores, several = "outputs.double().softmax(-1)", ', multi_class="ovr"'
    return [*body, _sklearn(name, "outputs.argmax(-1)", scores, several, imports)]


def _binary_lines(name: str, reading: Any, imports: Imports) -> list[str]:
    many = reading.name == "multilabel"
    if name in _BINARY:
        each = ".flatten(1).all(1)" if many and name == "accuracy" else ""
        shaped = "outputs, y = outputs.reshape(y.shape), y.float()"
        return [shaped, f"return float({_BINARY[name].format(each)})"]
    flat = "" if many else ".flatten()"
    shaped = f"outputs, y = outputs.reshape(y.shape){flat}, (y > 0.5).long(){flat}"
    return [shaped, _sklearn(name, "(outputs > 0).long()", "outputs", "", imports)]


def _sklearn(name: str, predicted: str, scores: str, several: str, imports: Imports) -> str:
    call = _SKLEARN[name].format(predicted=predicted, scores=scores, several=several)
    used = call.partition("(")[0]
    imports.lines[used] = f"from sklearn.metrics import {used}"
    return f"return float({call})"
