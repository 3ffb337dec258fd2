"""Settings of `esper.grow` besides model, data, budget and run folder: all of them, once.

`GrowSettings` is the signature of `esper.grow`, the flags of `esper grow`, the record in grow.json
and the table in docs/grow-reference.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from esper.growing.budget import take_numpy_values
from esper.jobs.settings import LOCAL
from esper.leyline.errors import EsperError, shown, unknown_name
from esper.leyline.seeds import require_seed

if TYPE_CHECKING:
    from torch import Tensor, device

    Device = device
    Function = Callable[..., Any]
else:  # what a command line can hold; --help loads no torch
    Device = Function = str
    Tensor = Sequence[float]

Optimizer = Literal["adamw", "sgd", "own"]
StreamChoice = Literal["auto", "always", "never"]
EXECUTORS: Final = ("auto", "sharded")
MAX_DEPTHS: Final = 3
_NUMBERS: Final = (
    "lr", "widths", "depths", "epochs", "clip", "weight_decay", "batch_size", "label_smoothing",
)  # fmt: skip
"""Settings that may hold numbers of numpy."""
WHERE: Final = ("device", "executor", "on")
"""Settings of the machine: a search may be resumed with others."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class GrowSettings:
    """Settings of one search."""

    columns: Sequence[str] | None = None
    """Names of the inputs and then of the target, for tables and dict samples."""
    categorical: Literal["auto"] | Sequence[int | str] | None = None
    """Columns of a table to encode, by name or place; auto: those of text, categories or booleans;
    None: none are."""
    stream: StreamChoice = "auto"
    """Whether train is read anew in every epoch; auto: if it does not fit in memory, or if reading
    a sample twice gives different values."""
    batch_size: int | None = None
    """Samples of a batch; default: the loader's, or about a fortieth of the samples, a power of 2
    from 16 to 128."""
    loss: str | Function = "auto"
    """Loss by name, or a function of your own, on the command line FILE.py:NAME."""
    metric: str | Function = "auto"
    """Metric by name, or a function of your own, on the command line FILE.py:NAME."""
    class_weights: Sequence[float] | Tensor | None = None
    """Weight of each class in the built-in losses."""
    label_smoothing: float | Literal["auto"] = "auto"
    """Label smoothing of the built-in losses; auto: none, and 0.1 is tried."""
    augment: str = "auto"
    """Random changes of training samples: flip and cutout (images), shift (signals and images, by
    an eighth of a side at most), scale (signals), noise (signals and tables), mixup, several of
    them joined by +, or none; auto: none, and stronger and stronger ones are tried."""
    output: int | str | None = None
    """Index or key of the tensor to train on, if forward returns several; default: the first."""
    slots: int | Sequence[str] = 8
    """How many places to grow at, at most, or paths of the modules they come after."""
    blueprints: Sequence[str] | None = None
    """Names of the seeds to choose from; default: all that fit."""
    inherit: bool = False
    """Also try networks that start from the weights of a finished run, with a seed more or less;
    otherwise each starts anew."""
    widths: Sequence[float] | Literal["auto"] = "auto"
    """Multiples of the model's width to try besides, none if empty; auto: the widest that the
    budget allows and up to eight narrower ones."""
    depths: Sequence[float] | Literal["auto"] = "auto"
    """Multiples of the number of its blocks to try besides, three at most, none if empty, where the
    model repeats blocks; auto: half and twice."""
    epochs: float | Literal["auto"] = "auto"
    """Length of a full training run; auto: about 1,500 batches, but 4 to 80 epochs."""
    train_step: Function | None = None
    """Training step of your own: a function of the model and a batch (inputs, targets) that returns
    the loss; on the command line FILE.py:NAME."""
    optimizer: str | Function = "auto"
    """adamw (the default) or sgd, or a function of your own that makes a torch optimizer for
    parameters, whose rates are then multiplied; on the command line FILE.py:NAME."""
    scheduler: Function | None = None
    """A function of a torch optimizer and the number of batches that makes a learning rate
    schedule, stepped after every batch; default: a warm-up and a cosine; on the command line
    FILE.py:NAME."""
    lr: float | Sequence[float] | Literal["auto"] = "auto"
    """One learning rate, or several to try, and no others; auto: 0.015 (transformers 0.009, SGD
    0.05), a third and three times of it first."""
    weight_decay: float | Literal["auto"] = "auto"
    """Weight decay of the optimizer; auto: 0.05 with AdamW, 0.0005 with SGD,
    and others are tried."""
    clip: float | None = 1.0
    """Maximum norm of the gradient of a network; None: no clipping."""
    amp: bool | Literal["auto"] = "auto"
    """Train in bfloat16 by autocast, with float32 weights; auto: on a GPU."""
    refit: bool | Literal["auto"] = "auto"
    """Train the pick and your model once more, on train and val together, before test is looked at;
    auto: after a search with `minutes`, where val was cut from train and that takes 15 % of them
    at most; never with sample weights or if test is val."""
    seed: int = 0
    """Seed of splits, batches, initial weights of factories, and the search."""
    device: str | Device = "auto"
    """cpu, cuda, cuda:<number>; auto: a GPU if there is one."""
    executor: str = "auto"
    """sharded: every network is cut over the ranks of a torchrun job; auto: the trainer of the
    device."""
    on: str = LOCAL
    """Where runs are trained: local (this machine), ray (the Ray of this machine, started if there
    is none), or ray://HOST:PORT (a cluster)."""

    def __post_init__(self) -> None:
        take_numpy_values(self, _NUMBERS)
        _require_one_of("executor", self.executor, EXECUTORS)
        _require_one_of("stream", self.stream, get_args(StreamChoice))
        if not _is_function(self.optimizer):
            _require_one_of("optimizer", self.optimizer, ("auto", "adamw", "sgd"))
        require_seed(self.seed, "seed")
        for name, fits, wanted in self._rules():
            if not fits:
                raise EsperError(f"{name}={shown(getattr(self, name))}: {wanted}")

    def _rules(self) -> list[tuple[str, bool, str]]:
        """(setting, whether it is valid, what to give instead)."""
        size, names, columns = self.batch_size, self.blueprints, self.columns
        decay = self.weight_decay == "auto" or self.weight_decay == 0
        smooth, own = self.label_smoothing, _is_function(self.optimizer)
        return [
            ("train_step", _is_function(self.train_step),
             "give a function, as in lambda model, batch: ..., or None"),
            ("scheduler", _is_function(self.scheduler),
             "give a function, as in lambda optimizer, batches: ..., or None"),
            ("lr", not own or self.lr == "auto",
             "your optimizer has rates of its own, which are multiplied; leave lr out"),
            ("weight_decay", not own or self.weight_decay == "auto",
             "your optimizer has its own; leave weight_decay out"),
            ("columns", columns is None or (_is_list(columns) and len(columns) > 1),
             "name the inputs and then the target, as in ('image', 'label')"),
            ("categorical", self.categorical in (None, "auto") or (
                _is_list(self.categorical) and len(self.categorical or ()) > 0),
             "name columns of a table, as in ['city'], or give 'auto', or None"),
            ("batch_size", size is None or (_is_whole(size) and size > 0),
             "give a whole number of 1 or more"),
            ("blueprints", names is None or (_is_list(names) and len(names) > 0),
             "give names, as in ['norm'], or None for all that fit"),
            ("label_smoothing", smooth == "auto" or smooth == 0 or _is_positive(smooth),
             "give a share from 0 to below 1, or 'auto'"),
            ("widths", self.widths == "auto" or _all_positive(self.widths),
             "give multiples of the model's width, as in (0.5, 2), () for none, or 'auto'"),
            ("depths", self.depths == "auto" or (
                _all_positive(self.depths) and len(self.depths) <= MAX_DEPTHS),
             "give up to three multiples of the number of blocks, as in (0.5, 2), () for none, or "
             "'auto'"),
            ("epochs", self.epochs == "auto" or _is_positive(self.epochs),
             "give a finite number above 0, or 'auto'"),
            ("lr", self.lr == "auto" or _is_positive(self.lr) or (
                _all_positive(self.lr) and len(self.lr) > 0),  # type: ignore[arg-type]
             "learning rates are numbers above 0, and finite; give one, several, or 'auto'"),
            ("weight_decay", decay or _is_positive(self.weight_decay),
             "give a number of 0 or more, or 'auto'"),
            ("clip", self.clip is None or _is_positive(self.clip),
             "give the maximum gradient norm, a number above 0, or None"),
            ("inherit", isinstance(self.inherit, bool), "give True or False"),
            ("refit", isinstance(self.refit, bool) or self.refit == "auto",
             "give True, False, or 'auto'"),
            ("amp", isinstance(self.amp, bool) or self.amp == "auto",
             "give True, False, or 'auto'"),
        ]  # fmt: skip

    @property
    def smoothing(self) -> float:
        """Label smoothing of the first runs."""
        return 0.0 if self.label_smoothing == "auto" else self.label_smoothing

    def record(self) -> tuple[tuple[str, str], ...]:
        """(name, value) of each setting, as grow.json holds them; a resume compares them."""
        return tuple((field.name, _text(getattr(self, field.name))) for field in fields(self))


def _require_one_of(name: str, value: object, valid: Sequence[str]) -> None:
    if value not in valid:
        raise unknown_name(name, value, valid)


def _is_function(value: object) -> bool:
    """Whether a setting is a function, the name of one in a file, or not given."""
    return value is None or callable(value) or (isinstance(value, str) and ".py:" in value)


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _is_whole(value: object) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _is_positive(value: object) -> bool:
    """Whether a value is a finite number above 0."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 < float(value) < math.inf  # type: ignore[arg-type]


def _all_positive(value: object) -> bool:
    return _is_list(value) and all(map(_is_positive, value))  # type: ignore[call-overload]


def _text(value: Any) -> str:
    """A setting in words, the same however it is written.

    >>> _text((1, 2.0)), _text(0.5), _text(True), _text(None)
    ('1, 2', '0.5', 'True', 'None')
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:.17g}"
    return _function_text(value) if callable(value) else str(value)


def _function_text(function: Any) -> str:
    """A function by its code, and its name."""
    from esper.growing.digests import function_digest

    named = getattr(function, "func", function)  # of a partial
    name = getattr(named, "__name__", type(named).__name__)
    return f"code {function_digest(function)[:12]} of {name}"
