"""The script of a network: `network_script` writes it, and tries what it has written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, fx, nn

from esper.device.rng import forked_rng
from esper.growing.code.augmentation import augment_lines
from esper.growing.code.classes import NetworkCode, network_code
from esper.growing.code.expressions import Imports
from esper.growing.code.objectives import loss_lines, metric_lines
from esper.growing.code.parts import flat, function, layer_part
from esper.growing.code.training import Start, Training, constant_lines, program
from esper.growing.code.weights import init_lines, tensor_part
from esper.growing.runs import Recipe
from esper.kasmina.layers.counting import count_parameters
from esper.kasmina.tracing.planting import seed_folder
from esper.leyline.errors import EsperError

_DRAWS: Final = (4, 2)
"""Initial weights that are looked at, of a small network and of a large one."""
_SMALL: Final = 200_000
"""Parameters of a small network."""
_TOLERANCE: Final = 1e-5
_IMPORTS: Final = ("import argparse", "import math")
_OTHERS: Final = (
    "import numpy as np", "import torch", "import torch.nn.functional as F", "from torch import nn",
)  # fmt: skip
_ADVICE: Final = '; export("net.pt2") writes the network, and `recipe` says how it was trained'


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """The network of a script."""

    title: str
    """What it is, in one sentence."""
    notes: Sequence[str]
    """What a reader should know besides, a line each."""
    name: str
    """Class of the user's model."""
    build: Callable[[int], nn.Module]
    """Builds it, in training mode, with the initial weights of a seed."""
    recipe: Recipe
    start: Start = field(default_factory=Start)


def network_script(subject: Subject, training: Training, example: Sequence[Tensor]) -> str:
    """A script that trains a network again; raises in one line where it cannot be written.

    `example`: raw inputs of some samples.
    """
    try:
        return _Script(subject, training, example).write()
    except EsperError as error:
        raise EsperError(f"code(): {error}{_ADVICE}") from error
    except Exception as error:  # graphs of users' models are of any kind
        reason = f"{type(error).__name__}: {error}"
        raise EsperError(f"code(): it cannot be written ({reason}){_ADVICE}") from error


class _Script:
    def __init__(self, subject: Subject, training: Training, example: Sequence[Tensor]) -> None:
        self._subject, self._training, self._example = subject, training, example
        self._imports = Imports()
        first = subject.build(0)
        more = _DRAWS[0] if count_parameters(first) <= _SMALL else _DRAWS[1]
        self._draws = [first, *(subject.build(seed) for seed in range(1, more))]

    def write(self) -> str:
        network = self._network()
        fresh = self._run(network.classes, network.construction)
        model = _model_lines(network, init_lines(self._draws, fresh))
        self._check(self._run(model, "make_model()"))
        return self._joined(model)

    def _network(self) -> NetworkCode:
        first, given = self._draws[0], self._subject.name
        name = given if given.isidentifier() and not hasattr(nn, given) else "Network"
        if isinstance(first, fx.GraphModule):
            return network_code(first, name, tensor_part(self._draws), self._imports)
        if seed_folder(first) is not None or first._forward_hooks:
            raise EsperError(f"{given} runs by hooks, torch.fx cannot trace it")
        return NetworkCode([], flat(layer_part(given, first, self._imports)))

    # ---- trying it ------------------------------------------------------------------------

    def _run(self, lines: Sequence[str], construction: str) -> nn.Module:
        """Build the network of the script; raises if its tensors are others than the search's."""
        head = [*_IMPORTS, *_OTHERS, "import operator", *self._imports.lines.values()]
        source = "\n".join([*head, *lines, f"made = {construction}"])
        space: dict[str, Any] = {"__name__": "script"}
        with forked_rng(0):
            exec(compile(source, "<network>", "exec"), space)
        made: nn.Module = space["made"]
        if _shapes(made) != _shapes(self._draws[0]):
            raise EsperError("the network of the script would have other parameters")
        return made

    def _check(self, made: nn.Module) -> None:
        """Raise unless the network of the script computes what that of the search does."""
        network, inputs = self._draws[0], self._training.inputs
        made.load_state_dict(network.state_dict())
        with torch.no_grad(), forked_rng(0):
            found, expected = (
                inputs.call(model.eval(), [value.clone() for value in self._example])
                for model in (made, network)
            )
        if not _equal(found, expected):
            raise EsperError("the network of the script would give other outputs")

    # ---- the whole ------------------------------------------------------------------------

    def _joined(self, model: Sequence[str]) -> str:
        subject, training, recipe = self._subject, self._training, self._subject.recipe
        axes = len(training.inputs.specs[0].shape)
        loss = loss_lines(training.loss, recipe, self._imports)
        metric = metric_lines(training.metric, self._imports)
        augment = augment_lines(recipe.augment, axes)
        rest = program(recipe, training, subject.start, loss, metric)
        parts = ["\n".join(model), "\n".join(augment), rest]
        text = "\n\n\n".join(part for part in parts if part)
        constants = constant_lines(recipe, training)
        head = [_docstring(subject), "", *self._import_lines(text), "", *constants]
        return "\n".join(head) + "\n\n\n" + text + "\n"

    def _import_lines(self, text: str) -> list[str]:
        standard = [*_IMPORTS, *(["import operator"] if "operator." in text else [])]
        every = sorted(set(self._imports.lines.values()))
        own = [line for line in every if not line.startswith("from sklearn")]
        others = [line for line in _OTHERS if line.split()[-1] != "F" or "F." in text]
        others += [line for line in every if line not in own]
        heading = ["", "# Classes and functions of your own, kept whole:"] if own else []
        return [*standard, "", *others, *heading, *own]


def _model_lines(network: NetworkCode, init: Sequence[str]) -> list[str]:
    """Its classes, and the function that makes it."""
    found, made = [*network.classes], network.construction.split("\n")
    body = ['"""The network with its initial weights."""', "torch.manual_seed(seed)"]
    if init:
        doc = '"""Draw weights as your model does, where that is not torch\'s default."""'
        found += ["@torch.no_grad()", *function("init_weights(model)", [doc, *init]), "", ""]
        body += [f"model = {made[0]}", *made[1:], "init_weights(model)", "return model"]
    else:
        body += [f"return {made[0]}", *made[1:]]
    return [*found, *function("make_model(seed=0)", body)]


def _shapes(model: nn.Module) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in model.state_dict().items()}


def _equal(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor) or one.shape != other.shape:
        return False
    return torch.allclose(one, other, _TOLERANCE, _TOLERANCE, equal_nan=True)


def _docstring(subject: Subject) -> str:
    lines = [f'"""{subject.title}', "", *subject.notes, '"""']
    return "\n".join(lines)
