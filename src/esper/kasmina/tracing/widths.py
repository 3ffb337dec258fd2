"""The user's model at other widths: `scaled_model(model, example, 1.5)`.

Every layer between the data and the output is replaced by one of the same class with scaled sizes
and fresh weights, drawn as the given ones were (`initial_weights`). Which widths belong to the data
is found in one pass (`width_sources`), new widths come from a table (`width_rules`), and what a
layer must take in is read off the tensor it is given, so that flattening, concatenation and splits
need no rules of their own.

Code that reads sizes from integers of its module (`self.width`) is tried with these scaled too, if
they equal a scaled width. Sizes written out in `forward` cannot be changed, and are an error.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from esper.device.rng import forked_rng
from esper.kasmina.layers.counting import Size, count_parameters, flop_counter
from esper.kasmina.layers.initialisation import build, check_parameters
from esper.kasmina.tracing.host import Factory, HostTrace, factory_of, trace_model
from esper.kasmina.tracing.initial_weights import Initialisation
from esper.kasmina.tracing.inputs import Inputs, Raw
from esper.kasmina.tracing.resizing import (
    RESIZABLE,
    Resizer,
    Sizes,
    is_frozen,
    sizes_for,
)
from esper.kasmina.tracing.tracer import kept_random_state, pick_output
from esper.kasmina.tracing.width_rules import Rule, choices
from esper.kasmina.tracing.width_sources import (
    EXTRA,
    FROZEN,
    INPUT,
    OUTPUT,
    POSITIONS,
    find_sources,
    named_tensors,
    tensors_in,
)
from esper.leyline.errors import EsperError
from esper.leyline.user_errors import format_error, is_out_of_memory, user_code

_SAMPLES = 3
MANY_DRAWS: Final = 7
"""Models of a factory, besides the first, whose weights show how they are drawn."""
SMALL_MODEL: Final = 200_000
"""Parameters of a model that is cheap to build; of a larger one, two show enough."""
_ADVICE = "read sizes from tensors in forward, as in x.flatten(1)"
_ALWAYS = (OUTPUT, FROZEN, POSITIONS)
_ANCHORS = ((*_ALWAYS, INPUT, EXTRA), (*_ALWAYS, INPUT), _ALWAYS)
"""What fixes widths, tried in order: too much fixed costs freedom, too little does not run."""


@dataclass(frozen=True, eq=False)
class ScaledModel:
    """The user's model at another width."""

    factory: Factory
    """Builds one with fresh weights, from torch's global generator."""
    size: Size
    """Counted while its code runs, before it is traced."""
    trace: Callable[[], HostTrace]
    """Traces it."""

    @cached_property
    def host(self) -> HostTrace:
        """Its trace; made when first asked for."""
        with plain_kernels():
            return self.trace()


@dataclass(slots=True, eq=False)
class _Plan:
    """New sizes of everything in a model, by path."""

    attributes: dict[tuple[str, str], Any] = field(default_factory=dict)
    tensors: dict[str, tuple[int, ...]] = field(default_factory=dict)
    layers: dict[str, Sizes] = field(default_factory=dict)

    def apply(self, model: nn.Module, initialisation: Initialisation) -> nn.Module:
        resizer = Resizer(model, initialisation)
        self.prepare(model, resizer)
        for path, sizes in self.layers.items():
            resizer.layer(path, sizes)
        return model

    def prepare(self, model: nn.Module, resizer: Resizer) -> None:
        """Set what is no layer."""
        for (path, name), value in self.attributes.items():
            setattr(model.get_submodule(path), name, value)
        for name, shape in self.tensors.items():
            resizer.tensor(name, shape)


def scaled_model(
    model: nn.Module | Factory,
    example: Raw,
    factor: float,
    output: str | int | None = None,
    slots: int | Sequence[str] = 8,
) -> ScaledModel:
    """Return the user's model with all inner widths multiplied by `factor`, rounded.

    Sizes of the raw inputs and of the output stay, and so do frozen layers. The given model is not
    changed; weights are drawn anew, as the given ones were (`initial_weights`). `output`, `slots`:
    those of `trace_model`. Raises `EsperError` with the reason if it is not possible.
    """
    return Scaling(model, example, output, slots).at(factor)


class Scaling:
    """A model that is scaled by one or several factors: what they share is found once."""

    def __init__(
        self,
        model: nn.Module | Factory,
        example: Raw,
        output: str | int | None = None,
        slots: int | Sequence[str] = 8,
    ) -> None:
        """See `scaled_model`."""
        self._output, self._slots = output, slots
        self._tried: dict[str, ScaledModel | str] = {}
        """By rule: close factors round to one."""
        with kept_random_state(), plain_kernels():
            self._factory = factory_of(model)
            self._base = build(self._factory, 0, "model").cpu()
            check_parameters(self._base)
            self._name = type(self._base).__name__
            self._inputs = Inputs.of(self._base, example)
            self._example = self._inputs.few(example, _SAMPLES)
            self._values = self._inputs.batch(example, _SAMPLES)
            with user_code(f"{self._name} fails on the example"), forked_rng(0):
                copied = copy.deepcopy(self._base).eval()
                self._sources = find_sources(copied, self._inputs, self._clones(), output)
            self._initialisation = self._shown(isinstance(model, nn.Module))

    def at(self, factor: float) -> ScaledModel:
        """Try rules until a scaled model runs as the user's does; raises if none does."""
        if not 0 < factor < float("inf"):
            raise EsperError(f"factor={factor}: must be positive and finite")
        with kept_random_state(), plain_kernels():
            return self._scaled(factor)

    def own(self) -> ScaledModel:
        """The model at its own width, with its own weights."""
        with kept_random_state(), plain_kernels():
            size = self._trained[1]
        return ScaledModel(self._factory, size, self._tracer(self._factory))

    def _tracer(self, factory: Factory) -> Callable[[], HostTrace]:
        return partial(trace_model, factory, self._example, self._slots, self._output)

    def _shown(self, is_instance: bool) -> Initialisation:
        """Look at the weights of an instance, or of several models of a factory."""
        size = sum(p.numel() for p in self._base.parameters())
        more = 0 if is_instance else MANY_DRAWS if size <= SMALL_MODEL else 1
        others = [build(self._factory, draw, "model").cpu() for draw in range(1, more + 1)]
        matrices = [name for name, is_matrix in self._sources.tensors.items() if is_matrix]
        return Initialisation([self._base, *others], matrices, keep=not is_instance)

    def _scaled(self, factor: float) -> ScaledModel:
        failures: dict[str, str] = {}
        for anchors in _ANCHORS:
            fixed = self._sources.fixed(anchors)
            widths = self._sources.widths(fixed)
            if not widths:
                continue
            for rule, attributes in choices(self._base, self._sources, widths, factor):
                key = repr((sorted(fixed), rule, attributes))
                if key in failures:
                    continue
                found = self._tried.get(key) or self._attempt(rule, fixed, attributes)
                self._tried[key] = found
                if isinstance(found, ScaledModel):
                    return found
                failures[key] = found
        if not failures:
            raise EsperError(
                f"{self._name} has no inner width to scale: all belong to its inputs or its output"
            )
        reason = next(iter(failures.values()))
        raise EsperError(f"{self._name} cannot be scaled by {factor:g}: {reason}")

    def _attempt(
        self, rule: Rule, fixed: set[str], attributes: dict[tuple[str, str], Any]
    ) -> ScaledModel | str:
        """Return the model of a rule, if it runs and trains; else why not."""
        try:
            plan, model = self._derive(rule, fixed, attributes)
            size = self._checked(model)
        except Exception as error:
            return why_not(error)
        factory, initialisation = self._factory, self._initialisation

        def scaled() -> nn.Module:
            return plan.apply(factory().cpu(), initialisation)

        return ScaledModel(scaled, size, self._tracer(scaled))

    def _derive(
        self, rule: Rule, fixed: set[str], attributes: dict[tuple[str, str], Any]
    ) -> tuple[_Plan, nn.Module]:
        """Run a copy whose layers are resized when they are called; return it with its sizes."""
        model = copy.deepcopy(self._base).eval()
        plan = _Plan(attributes, self._tensor_shapes(model, rule, fixed))
        resizer = Resizer(model, self._initialisation)
        calls = _Calls(type(model).__name__)

        def resize(path: str, layer: nn.Module) -> Callable[..., None]:
            def hook(_: nn.Module, args: Any, kwargs: Any) -> None:
                if path in plan.layers or is_frozen(layer):
                    return
                given = list(tensors_in([args, kwargs]))
                keep = path in fixed
                sizes = sizes_for(
                    layer,
                    given,
                    lambda width: width if keep or width == 1 else rule.table.get(width, width),
                    lambda number: rule.heads.get(number, number),
                )
                resizer.layer(path, sizes)
                plan.layers[path] = sizes

            return hook

        hooks: list[RemovableHandle] = []
        for path, layer in model.named_modules():
            hooks += calls.watch(path, layer)
            if isinstance(layer, RESIZABLE):
                hooks.append(layer.register_forward_pre_hook(resize(path, layer), with_kwargs=True))
        with forked_rng(0), torch.no_grad(), calls.named():
            plan.prepare(model, resizer)
            with calls:
                out = pick_output(self._inputs.call(model, self._clones()), self._output)
        self._check_shape(out, calls)
        for hook in hooks:
            hook.remove()
        return plan, model

    def _tensor_shapes(
        self, model: nn.Module, rule: Rule, fixed: set[str]
    ) -> dict[str, tuple[int, ...]]:
        """Return new shapes of tensors that are no layer's; of most, one axis is the width."""
        found: dict[str, tuple[int, ...]] = {}
        tensors = named_tensors(model)
        for name, is_matrix in self._sources.tensors.items():
            old = tuple(tensors[name].shape)
            axes = [axis for axis, size in enumerate(old) if rule.table.get(size, size) != size]
            if is_matrix:
                axes = [axis for axis in axes if axis > 0 or name not in fixed]
            elif name in fixed or _may_be_mask(tensors[name]):
                axes = []
            else:
                tied = self._sources.tied_widths(name)
                axes = ([axis for axis in axes if old[axis] in tied] or axes)[-1:]
            if axes:
                found[name] = tuple(
                    rule.table[n] if axis in axes else n for axis, n in enumerate(old)
                )
        return found

    def _check_shape(self, out: Any, calls: _Calls | None = None) -> None:
        if not isinstance(out, Tensor) or tuple(out.shape) != self._sources.shape:
            found = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
            where = f" ({calls.suspect})" if calls and calls.suspect else ""
            raise EsperError(
                f"its output becomes {found} instead of {self._sources.shape}{where}; {_ADVICE}"
            )

    def _checked(self, model: nn.Module) -> Size:
        """Count what a scaled model computes; raises unless it runs and trains."""
        unused, _ = self._trained
        missing, size = self._train(model)
        if missing - unused:
            raise EsperError(f"no gradient reaches {min(missing - unused)}")
        return size

    @cached_property
    def _trained(self) -> tuple[set[str], Size]:
        return self._train(copy.deepcopy(self._base))

    def _train(self, model: nn.Module) -> tuple[set[str], Size]:
        """Return names of the parameters that a batch gives no gradient, and the size."""
        out, missing, size = train_once(model, self._inputs, self._clones(), self._output)
        self._check_shape(out)
        return missing, size

    def _clones(self) -> list[Tensor]:
        return [value.clone() for value in self._values]


def train_once(
    model: nn.Module, inputs: Inputs, values: list[Tensor], output: str | int | None
) -> tuple[Tensor, set[str], Size]:
    """Run a model forward and backward on some samples.

    Returns its output, the names of the parameters that get no gradient, and the size.
    """
    with forked_rng(0), torch.enable_grad(), flop_counter() as counter:
        out = pick_output(inputs.call(model.train(), values), output)
        forward = counter.total
        out.float().square().sum().backward()
    macs = [flops // (2 * len(values[0])) for flops in (forward, counter.total)]
    missing = {name for name, p in model.named_parameters() if p.grad is None}
    return out, missing, Size(count_parameters(model), macs[0], macs[1])


def why_not(error: Exception) -> str:
    """What stops a model at another width or depth; a lack of memory is raised."""
    if is_out_of_memory(error):
        raise error
    return str(error) if isinstance(error, EsperError) else format_error(error)


def _may_be_mask(tensor: Tensor) -> bool:
    """Whether a tensor is of positions, not of widths: integers, or a square that is no weight."""
    square = tensor.ndim > 1 and tensor.shape[-1] == tensor.shape[-2]
    trains = isinstance(tensor, nn.Parameter)
    return not tensor.is_floating_point() or (square and not trains)


class _Calls(TorchFunctionMode):
    """Remembers which module and operation runs, for errors."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.suspect = ""
        """A reshape that moved samples."""
        self._name = name
        self._stack: list[str] = []
        self._operation = ""

    def watch(self, path: str, module: nn.Module) -> tuple[RemovableHandle, RemovableHandle]:
        return (
            module.register_forward_pre_hook(lambda *_: self._stack.append(path)),
            module.register_forward_hook(lambda *_: self._pop()),
        )

    def _pop(self) -> None:
        self._stack.pop()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._operation = str(getattr(func, "__name__", func)).strip("_")
        out = func(*args, **(kwargs or {}))
        if self._operation in ("view", "reshape") and not self.suspect:
            before, after = args[0].shape[:1], out.shape[:1]
            self.suspect = self._place() if before == (_SAMPLES,) != after else ""
        return out

    def _place(self) -> str:
        path = self._stack[-1] if self._stack else ""
        return f"{self._operation} in {path or self._name}"

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Name module and operation in errors of the block."""
        try:
            yield
        except EsperError:
            raise
        except Exception as error:
            if is_out_of_memory(error):
                raise
            failed = f"{self._place()} fails ({format_error(error)})"
            raise EsperError(f"{failed}; {_ADVICE}") from error


@contextlib.contextmanager
def plain_kernels() -> Iterator[None]:
    """Let torch's encoder layers call their parts, which hooks see; compute without oneDNN, which
    prepares every shape anew: that takes longer than a few samples do.
    """
    mkldnn, fast = torch.backends.mkldnn, torch.backends.mha.get_fastpath_enabled()
    before = mkldnn.enabled
    torch.backends.mha.set_fastpath_enabled(False)
    mkldnn.enabled = False  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        mkldnn.enabled = before
