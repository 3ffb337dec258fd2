"""Do model, data and loss fit together? Asked before anything trains; one line if not.

Shape letters: B batch.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn

from esper.growing.data.reading import GrowData
from esper.leyline.errors import EsperError
from esper.leyline.user_errors import format_error
from esper.tasks.objectives import TrainingLoss
from esper.tasks.row_terms import dtype_name

_CHANNELS: Final = (1, 3, 4)
_ROUNDING: Final = 1e-4


def check_against_model(data: GrowData, loss: TrainingLoss, outputs: Tensor) -> None:
    """Raise unless the model's outputs `[B, ...]` for the first training samples fit the loss, and
    the loss the data."""
    if not outputs.dtype.is_floating_point:
        raise EsperError(
            f"the model returns {dtype_name(outputs)}, which has no gradient; return logits or "
            f"numbers, without argmax or rounding"
        )
    bad = ~torch.isfinite(outputs.reshape(len(outputs), -1)).all(dim=1)
    if bool(bad.any()):
        raise EsperError(
            f"the model returns NaN or infinite numbers for sample {int(torch.nonzero(bad)[0])} "
            f"before training; check its layers, and the scale of the inputs"
        )
    for name, part in (("train", data.sample), ("val", data.val), ("test", data.test)):
        loss.check_targets(part.targets, name)
    if loss.kind == "classes":
        _refuse_probabilities(outputs, loss.name)
    _check_loss(loss, outputs, data.sample.targets[: len(outputs)])


def _refuse_probabilities(logits: Tensor, name: str) -> None:
    """Raise if outputs are the result of a softmax: the loss would apply a second one."""
    if len(logits) < 2 or logits.ndim != 2 or bool((logits < 0).any()):
        return
    if bool(((logits.sum(dim=1) - 1).abs() < _ROUNDING).all()):
        raise EsperError(
            f"the model's outputs are probabilities that sum to 1: loss {name!r} takes logits, "
            f"remove the softmax at its end"
        )


def _check_loss(objective: TrainingLoss, logits: Tensor, targets: Tensor) -> None:
    outputs = logits.detach().unsqueeze(0).requires_grad_()
    with torch.enable_grad():
        loss_R = objective.loss(outputs, targets.to(outputs.device).unsqueeze(0))
    if not bool(torch.isfinite(loss_R).all()):
        raise EsperError(
            f"loss {objective.name} is {float(loss_R[0].detach())} on the first samples, before "
            f"training; check it on the model's outputs and the targets"
        )
    if not loss_R.requires_grad:
        raise EsperError(
            f"loss {objective.name} has no gradient; compute it with torch, without .item(), "
            f".detach() or numpy"
        )


# ---- a model that fails ----------------------------------------------------------------------


def model_failure(error: BaseException, model: nn.Module, inputs: Tensor) -> EsperError:
    """Return the line for an exception that the model raised on training inputs."""
    hint = _layout_hint(model, inputs) or _dtype_hint(model, inputs) or _size_hint(model, inputs)
    if not hint and isinstance(error, TypeError):
        hint = "it is called with 1 argument, the inputs of a batch"
    given = f"inputs {tuple(inputs.shape)} {dtype_name(inputs)}"
    advice = f"; {hint}" if hint else ""
    return EsperError(f"the model fails on {given}: {format_error(error)}{advice}")


def _first(model: nn.Module, *kinds: type[nn.Module]) -> Any:
    """Return the first layer of any kind that computes with weights, if it is one of `kinds`."""
    weighted = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear, nn.Embedding)
    first = next((layer for layer in model.modules() if isinstance(layer, weighted)), None)
    return first if isinstance(first, kinds) else None


def _layout_hint(model: nn.Module, inputs: Tensor) -> str:
    conv = _first(model, nn.Conv2d)
    if conv is None:
        return ""
    wanted, shape = conv.in_channels, tuple(inputs.shape[1:])
    if len(shape) == 3 and shape[-1] == wanted != shape[0] and wanted in _CHANNELS:
        return (
            f"images are channels last, the first convolution takes {wanted} channels first: give "
            f"x.permute(0, 3, 1, 2) (numpy: x.transpose(0, 3, 1, 2))"
        )
    if len(shape) == 2:
        return f"images have no channel axis, the first convolution takes {wanted}: give x[:, None]"
    if len(shape) == 3 and shape[0] != wanted:
        return f"images have {shape[0]} channels, the first convolution takes {wanted}"
    return ""


def _dtype_hint(model: nn.Module, inputs: Tensor) -> str:
    if _first(model, nn.Embedding) is not None:
        if inputs.dtype.is_floating_point:
            return "its embedding takes integers: give token ids, as in x.long()"
        most, layer = int(inputs.max()), _first(model, nn.Embedding)
        if most >= layer.num_embeddings:
            return (
                f"token id {most}, the embedding has {layer.num_embeddings} rows: ids are 0 to "
                f"{layer.num_embeddings - 1}"
            )
        return ""
    if not inputs.dtype.is_floating_point and _first(model, nn.Conv1d, nn.Conv2d, nn.Linear):
        return (
            f"its weights are float32, the inputs {dtype_name(inputs)}: convert them in the data, "
            f"as in x.float() / 255"
        )
    return ""


def _size_hint(model: nn.Module, inputs: Tensor) -> str:
    linear = _first(model, nn.Linear)
    if linear is None or inputs.shape[-1] == linear.in_features:
        return ""
    if inputs[0].numel() == linear.in_features:
        return f"its first Linear takes {linear.in_features}: flatten the inputs, x.flatten(1)"
    shape = tuple(inputs.shape[1:])
    return f"its first Linear takes {linear.in_features} features, samples are {shape}"
