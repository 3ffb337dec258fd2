"""Loss and metric of a script, as torch's functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from torch import nn

from esper.growing.code.docs import function
from esper.growing.code.expressions import Imports, function_name
from esper.growing.runs import Recipe
from esper.kasmina.training.losses import IGNORED, cross_entropy
from esper.leyline.errors import EsperError
from esper.tasks.member_functions import MemberFunction
from esper.tasks.metric_forms import MeanMetric, Metric, OwnMetric
from esper.tasks.objectives import TrainingLoss
from esper.tasks.row_terms import BinaryTerms, ClassTerms, NumberTerms, RowTerms

_SKLEARN: Final = {
    "balanced_accuracy": "balanced_accuracy_score(y, predicted)",
    "f1": "f1_score(y, predicted)",
    "f1_macro": 'f1_score(y, predicted, average="macro")',
    "roc_auc": 'roc_auc_score(y, scores, multi_class="ovr")',
    "average_precision": "average_precision_score(y, scores)",
}


# ---- the loss -----------------------------------------------------------------------------------


def loss_lines(loss: TrainingLoss, recipe: Recipe, imports: Imports) -> list[str]:
    """Source of `loss_fn`."""
    terms = loss.terms
    # A loss with options of its own does not take the recipe's (`trainers/task.py`).
    smoothing = recipe.label_smoothing if loss.loss is cross_entropy else None
    if isinstance(terms, MemberFunction):
        return _own_function("loss_fn(outputs, targets)", terms.function, "loss", imports)
    if not terms.weighted:
        return [*_class_weights(terms), *function(_HEAD, _body(terms, smoothing))]
    body = [line.replace("targets.float()", "targets") for line in _body(terms, smoothing, "none")]
    *before, last = body
    value = last.removeprefix("return ")
    body = [
        *before,
        f"losses = {value}.reshape(len(targets), -1)",
        "weights = weights[:, None].expand_as(losses)",
        *_class_share(terms),
        "return (losses * weights).sum() / weights.sum()",
    ]
    if isinstance(terms, ClassTerms) and terms.weights_K is not None:
        body[-1] = "return (losses * weights).sum() / (weights * share).sum()"
    head = "loss_fn(outputs, targets, weights)"
    return [*_class_weights(terms), *function(head, body)]


_HEAD: Final = "loss_fn(outputs, targets)"


def _class_weights(terms: RowTerms) -> list[str]:
    if terms.weights_K is None:
        return []
    numbers = ", ".join(f"{float(weight):.9g}" for weight in terms.weights_K)
    return [f"CLASS_WEIGHTS = torch.tensor([{numbers}])", "", ""]


def _class_share(terms: RowTerms) -> list[str]:
    if not isinstance(terms, ClassTerms) or terms.weights_K is None:
        return []
    return ["share = CLASS_WEIGHTS.to(outputs)[targets].reshape_as(losses)"]


def _body(terms: RowTerms, smoothing: float | None, reduction: str = "mean") -> list[str]:
    reduce = "" if reduction == "mean" else f', reduction="{reduction}"'
    if isinstance(terms, ClassTerms):
        return _cross_entropy(terms, terms.smoothing if smoothing is None else smoothing, reduce)
    if isinstance(terms, NumberTerms):
        name = {"mse": "mse_loss", "mae": "l1_loss"}.get(terms.name, "huber_loss")
        delta = f", delta={terms.delta:g}" if name == "huber_loss" and terms.delta != 1 else ""
        return [f"return F.{name}(outputs.reshape(targets.shape), targets.float(){delta}{reduce})"]
    assert isinstance(terms, BinaryTerms)
    given = "outputs.reshape(targets.shape), targets.float()"
    if terms.weights_K is None:
        return [f"return F.binary_cross_entropy_with_logits({given}{reduce})"]
    return [
        "no, yes = CLASS_WEIGHTS.to(outputs)",
        "class_weights = targets * yes + (1 - targets.float()) * no",
        f'losses = F.binary_cross_entropy_with_logits({given}, reduction="none")',
        "return (losses * class_weights).sum() / class_weights.sum()",
    ]


def _cross_entropy(terms: ClassTerms, smoothing: float, reduce: str) -> list[str]:
    options = ", weight=CLASS_WEIGHTS.to(outputs)" if terms.weights_K is not None else ""
    options += f", label_smoothing={smoothing:g}" if smoothing else ""
    options += f", ignore_index={terms.ignore_index}" if terms.ignore_index != IGNORED else ""
    given = "outputs, targets"
    if len(terms.shape) > 1 and terms.axis == len(terms.shape) - 1:
        given = "outputs.flatten(0, -2), targets.flatten()"
    return [f"return F.cross_entropy({given}{options}{reduce})"]


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
    head = "score(outputs, y)"
    if isinstance(metric, OwnMetric):
        return _own_function(head, metric.function, f"metric {metric.name}", imports)
    assert metric.reading is not None
    constant = _constant_loss(metric)
    if constant is None:
        return function(head, _metric_body(metric.name, metric.reading, imports))
    *before, last = [line.replace("targets", "y") for line in _body(metric.reading, None)]
    doc = '"""Share of the loss of the best constant prediction that is explained."""'
    value = last.removeprefix("return ")
    return function(
        head, [doc, *before, f"loss = {value}", f"return 1 - float(loss) / {constant:.9g}"]
    )


def _constant_loss(metric: Metric) -> float | None:
    """Loss that the metric `explained` is relative to; None: it is another metric."""
    if metric.name != "explained" or not isinstance(metric, MeanMetric):
        return None
    assert isinstance(metric.terms, partial)
    return float(metric.terms.args[0])


def _metric_body(name: str, reading: RowTerms, imports: Imports) -> list[str]:
    if isinstance(reading, NumberTerms):
        error = "y.reshape(len(y), -1) - outputs.reshape(len(y), -1)"
        last = {
            "mae": ["return float(error.abs().mean())"],
            "rmse": ["return float(error.square().mean(0).sqrt().mean())"],
            "r2": [
                "spread = y.reshape(len(y), -1).double().var(0, correction=0)",
                "return float((1 - error.square().mean(0) / spread).mean())",
            ],
        }[name]
        return [f"error = ({error}).double()", *last]
    if isinstance(reading, ClassTerms):
        return _class_metric(name, reading, imports)
    return _binary_metric(name, reading, imports)


def _class_metric(name: str, reading: ClassTerms, imports: Imports) -> list[str]:
    places = len(reading.shape) > 1
    body = ["outputs = outputs.movedim(1, -1)"] if places and reading.axis == 0 else []
    if places:
        kept = reading.ignore_index
        body += [f"outputs, y = outputs[y != {kept}], y[y != {kept}]"]
    if name == "accuracy":
        return [*body, "return float((outputs.argmax(-1) == y).float().mean())"]
    if name in ("log_loss", "perplexity"):
        power = ".exp()" if name == "perplexity" else ""
        return [*body, f"return float(F.cross_entropy(outputs.double(), y){power})"]
    two = reading.classes == 2
    scores = "outputs[:, 1] - outputs[:, 0]" if two else "outputs.double().softmax(-1)"
    return [*body, *_sklearn(name, "outputs.argmax(-1)", scores, imports, two)]


def _binary_metric(name: str, reading: RowTerms, imports: Imports) -> list[str]:
    body = ["outputs, y = outputs.reshape(y.shape), y.float()"]
    if name == "accuracy" and reading.name == "multilabel":
        return [
            *body,
            "return float(((outputs > 0) == (y > 0.5)).flatten(1).all(1).float().mean())",
        ]
    if name in ("accuracy", "label_accuracy"):
        return [*body, "return float(((outputs > 0) == (y > 0.5)).float().mean())"]
    if name == "log_loss":
        return [
            *body,
            "return float(F.binary_cross_entropy_with_logits(outputs.double(), y.double()))",
        ]
    flat = "" if reading.name == "multilabel" else ".flatten()"
    body = [f"outputs, y = outputs.reshape(y.shape){flat}, (y > 0.5).long(){flat}"]
    macro = name == "f1_macro" or reading.name == "multilabel"
    return [*body, *_sklearn(name, "(outputs > 0).long()", "outputs", imports, not macro)]


def _sklearn(name: str, predicted: str, scores: str, imports: Imports, two: bool) -> list[str]:
    call = _SKLEARN[name]
    if two:
        call = call.replace(', multi_class="ovr"', "")
    used = call.partition("(")[0]
    imports.lines[used] = f"from sklearn.metrics import {used}"
    call = call.replace("predicted", predicted).replace("scores", scores)
    return [f"return float({call})"]
