"""Model, data and loss of a run, checked against each other before anything trains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from esper.growing.data.parts import GrowPart, Inputs
from esper.growing.data.reading import GrowData
from esper.growing.data.streams import StreamSource
from esper.growing.digests import model_digest
from esper.growing.model_checks import check_against_model, model_failure
from esper.growing.settings import GrowSettings
from esper.kasmina.layers.initialisation import build
from esper.kasmina.layers.modes import in_mode
from esper.kasmina.tracing import HostTrace, planted_model, trace_model
from esper.leyline.errors import EsperError, unknown_name
from esper.leyline.user_errors import user_callback
from esper.tasks.measuring import constant_score
from esper.tasks.metric_forms import Metric, OwnMetric
from esper.tasks.metrics import make_metric
from esper.tasks.objectives import TrainingLoss, choose_loss, make_training_loss

Model = nn.Module | Callable[[], nn.Module]


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """What is trained, on what, and how it is judged."""

    model: Model
    trace: HostTrace
    data: GrowData
    loss: TrainingLoss
    metric: Metric
    architecture: str
    """Digest of what the model computes, but for its weights."""
    weighted: bool = False
    """Samples have weights."""

    def constant_score(self, part: GrowPart) -> float:
        """Metric of the best constant prediction on a part; NaN if it is not known."""
        return constant_score(self.metric, self.data.val.targets, part.targets)


def make_problem(model: Model, data: GrowData, settings: GrowSettings) -> Problem:
    """Trace a model and check it against the data and the loss; raises before anything trains."""
    example = data.example()
    trace = _traced(model, data, settings)
    trace = limit_blueprints(trace, settings.blueprints)
    network = planted_model(trace, {}, 0).eval()
    with torch.no_grad():
        values = [value.clone() for value in trace.inputs.values(example.inputs)]
        outputs = trace.inputs.call(network, values)  # copies: a model may write over them
    loss, shape = settings.loss, tuple(outputs.shape[1:])
    weighted = data.sample.weights is not None
    if weighted:
        # Beside their weights labels are floats, which would be taken for numbers to predict.
        loss = choose_loss(data.sample.targets, shape) if loss == "auto" else loss
        data = data.with_weighted_targets()
    made = make_training_loss(
        loss,
        targets=data.sample.targets,
        output_shape=shape,
        class_weights=settings.class_weights,
        label_smoothing=settings.smoothing,
        weighted=weighted,
    )
    check_against_model(data, made, outputs)
    metric = _checked_metric(settings.metric, made, data)
    return Problem(model, trace, data, made, metric, model_digest(trace), weighted)


def _traced(model: Model, data: GrowData, settings: GrowSettings) -> HostTrace:
    """Try the model on the first samples, and trace it."""
    inputs = data.example().inputs
    try:
        _try_model(model, inputs)
        return trace_model(model, inputs, settings.slots, settings.output)
    except EsperError as error:
        if data.encoding is None or "fails" not in str(error):
            raise
        raise EsperError(f"{error}; {data.encoding}") from error


def _checked_metric(wanted: str | Callable[..., Any], loss: TrainingLoss, data: GrowData) -> Metric:
    """The metric, tried on random outputs of the whole validation part."""
    streamed, val = isinstance(data.train, StreamSource), data.val.targets
    whole = val if streamed else data.sample.targets
    metric = make_metric(wanted, loss, data.sample.targets, whole)
    for name, part in (("val", data.val), ("test", data.test)):
        metric.check(part.targets, name)
    if isinstance(metric, OwnMetric):
        generator = torch.Generator().manual_seed(0)
        metric.value(torch.randn(len(val), *loss.shape, generator=generator), val)
    return metric


def _try_model(model: Model, inputs: Inputs) -> None:
    """Run the model on the first samples, as the user would; raises with a hint if it fails."""
    if not isinstance(model, nn.Module) and not callable(model):
        raise EsperError(
            f"model={type(model).__name__}: give an nn.Module, or a class or function that builds "
            f"one"
        )
    if not isinstance(inputs, Tensor):
        return  # tracing decides how several inputs are passed
    base = model if isinstance(model, nn.Module) else build(model, 0, "model")
    failing = user_callback(f"model {type(base).__name__} fails")
    with failing, in_mode(base, training=False), torch.no_grad():
        try:
            device = next((p.device for p in base.parameters()), torch.device("cpu"))
            base(inputs.to(device))
        except Exception as error:  # whatever a user's model raises
            raise model_failure(error, base, inputs) from error


def limit_blueprints(trace: HostTrace, blueprints: Sequence[str] | None) -> HostTrace:
    """The same host with some of its blueprints; None: all."""
    if blueprints is None:
        return trace
    for name in blueprints:
        if name not in trace.blueprints:
            raise unknown_name("blueprint", name, trace.blueprints, f"for {trace.name}")
    return replace(trace, offered=tuple(blueprints))
