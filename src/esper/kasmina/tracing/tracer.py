"""Trace a user's model with torch.fx, carrying the values of an example along.

Beyond plain fx:
- every node is evaluated on two batches of different size, so that sizes, lengths and control flow
  on them are known, unless they depend on the batch;
- `self.training` becomes a node of the graph instead of a constant;
- modules that cannot be traced, or that draw random numbers in Python, become leaves.

The tracer changes the model it is given (`ModelTracer.trace`): give it a copy, in eval mode.
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import operator
import random
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg
from torch.fx.proxy import TraceError

from esper.kasmina.plain.plain_graph import LeafTracer, TrainingFlag
from esper.kasmina.tracing.inputs import Inputs
from esper.leyline.errors import EsperError

Pair = tuple[Any, Any]
"""Value of a node on the small and on the large batch."""
BATCHES: Final = (2, 3)
"""Samples of the two batches."""


class UntraceableError(EsperError):
    """Why a model has no graph; it may still run whole, by hooks."""


MODE_FLOW: Final = "control flow on self.training"
"""Why a module is kept whole that runs other code in training than in eval mode."""


class ModeError(TraceError):
    """Control flow on the training mode."""


class Level(IntEnum):
    """What the value of a node depends on."""

    SHAPE = 0
    """Sizes only: known when tracing, except for the batch size."""
    STATE = 1
    """Parameters, buffers, constants, training mode."""
    DATA = 2
    """The input, or random numbers."""


_ACCESSORS: Final = frozenset({"size", "dim", "ndimension", "numel", "nelement", "get_device"})
_ATTRIBUTES: Final = frozenset({"shape", "device", "dtype", "ndim", "is_cuda", "requires_grad"})
_RANDOM: Final = frozenset(
    {"rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like",
     "bernoulli", "multinomial", "normal", "poisson", "dropout", "dropout1d", "dropout2d",
     "dropout3d", "alpha_dropout", "feature_alpha_dropout", "feature_dropout", "gumbel_softmax",
     "rrelu", "uniform", "exponential", "cauchy", "geometric", "log_normal", "random"}
)  # fmt: skip
_PURE_LAYERS: Final = (
    nn.Embedding, nn.Linear, nn.LayerNorm, nn.GELU, nn.ReLU, nn.SiLU, nn.Tanh, nn.Sigmoid,
    nn.Softmax, nn.Identity, nn.Flatten, nn.Unflatten, nn.Conv1d, nn.Conv2d, TrainingFlag,
)  # fmt: skip
"""Layers whose output is state if their input is: no random numbers, no running statistics."""


def is_accessor(node: fx.Node) -> bool:
    """Whether a node reads sizes, type or device of a tensor, not its values."""
    if node.op == "call_function" and node.target is getattr:
        return node.args[1] in _ATTRIBUTES
    if node.op == "call_function":
        return node.target is len
    return node.op == "call_method" and node.target in _ACCESSORS


class _ValueProxy(fx.Proxy):
    """A proxy that knows its values on the example."""

    def __getattr__(self, name: str) -> Any:
        found = [getattr(value, name) for value in self.node.meta["values"]]
        if name in ("ndim", "is_cuda"):
            return found[0]
        if callable(found[0]):
            return super().__getattr__(name)
        return self.tracer.create_proxy("call_function", getattr, (self, name), {})

    def __len__(self) -> int:
        return int(self._known(len))

    def __int__(self) -> int:
        return int(self._known(int))

    def __index__(self) -> int:
        return int(self._known(operator.index))

    def __float__(self) -> float:
        return float(self._known(float))

    def _known(self, convert: Callable[[Any], Any]) -> Any:
        tracer = self.tracer
        assert isinstance(tracer, ModelTracer)
        return tracer.known(self.node, convert)


class ModelTracer(LeafTracer):
    """Records the graph of a model that is called with `inputs`."""

    def __init__(
        self,
        inputs: Inputs,
        examples: tuple[list[Tensor], list[Tensor]],
        output: str | int | None,
        mode: bool | None = None,
    ) -> None:
        """`examples`: values of the raw inputs for the two batch sizes; `mode`: what control flow
        of the outermost `forward` on `self.training` follows, None: it cannot be traced.
        """
        super().__init__()
        self.ends: dict[fx.Node, list[str]] = {}
        """Node -> paths of the modules that return it, inner ones first; leaves are not in it."""
        self.forced: set[str] = set()
        """Paths of modules that must be leaves."""
        self._inputs = inputs
        self._examples = examples
        self._output = output
        self._mode = mode
        self._evaluating = False

    # ---- entry ----------------------------------------------------------------------------

    def trace(
        self, root: nn.Module | Callable[..., Any], concrete_args: dict[str, Any] | None = None
    ) -> fx.Graph:
        """Return the graph; constants and training flags are added to `root`."""
        self.ends.clear()
        self.untraced.clear()
        before = random_state()
        with _patched_training(self), _patched_builtins(), torch.no_grad():
            graph = super().trace(root, concrete_args)
        if random_state() != before:
            raise UntraceableError("its forward draws random numbers in Python")
        return graph

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        """Return a function of the model's inputs, and its arguments."""
        inputs = self._inputs

        def forward(root: nn.Module, *given: Any) -> Any:
            values = given if inputs.form != "dict" else [given[0][s.name] for s in inputs.specs]
            out = inputs.call(lambda *args, **kw: root_fn(root, *args, **kw), values)
            return pick_output(out, self._output)

        proxies = [self.create_proxy("placeholder", name, (), {}) for name in inputs.arguments]
        return forward, [self.root, *proxies]

    def _example(self, argument: str, index: int) -> Any:
        """Return the value of an argument on one of the batches."""
        values = self._examples[index]
        if self._inputs.form == "dict":
            return {spec.name: v for spec, v in zip(self._inputs.specs, values, strict=True)}
        return values[self._inputs.arguments.index(argument)]

    # ---- nodes and their values -----------------------------------------------------------

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """Return a proxy that knows its values."""
        return _ValueProxy(node, self)

    def create_arg(self, a: Any) -> Any:
        """As in torch; proxies first, whatever they claim to be."""
        return a.node if isinstance(a, fx.Proxy) else super().create_arg(a)

    def create_node(
        self,
        kind: str,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str | None = None,
        type_expr: Any | None = None,
    ) -> fx.Node:
        """Record a node, and evaluate it on the example."""
        node = super().create_node(kind, target, args, kwargs, name, type_expr)
        if kind == "output":
            return node
        state, self._evaluating = random_state(), True
        try:
            values = tuple(self._evaluate(node, index) for index in range(len(BATCHES)))
        except Exception:
            self.graph.erase_node(node)
            raise
        finally:
            self._evaluating = False
            _restore_random(state)
        node.meta["values"] = values
        node.meta["level"] = self._level(node)
        if kind == "call_module":
            module = self.root.get_submodule(str(target))
            node.meta["inplace"] = getattr(module, "inplace", False) is True
        return node

    def _evaluate(self, node: fx.Node, index: int) -> Any:
        """Return the value of a node on one of the batches."""
        if node.op == "placeholder":
            return self._example(str(node.target), index)
        args, kwargs = map_arg((node.args, dict(node.kwargs)), lambda n: n.meta["values"][index])
        given = [n.meta["values"][index] for n in node.all_input_nodes]
        versions = [_version(value) for value in given]
        out = _call(self.root, node, args, kwargs)  # attributes are tensors meanwhile
        after = [_version(value) for value in given]
        node.meta["writes"] = [
            n for n, a, b in zip(node.all_input_nodes, versions, after, strict=True) if a != b
        ]
        return out

    def _level(self, node: fx.Node) -> Level:
        if node.op in ("placeholder", "get_attr"):
            return Level.DATA if node.op == "placeholder" else Level.STATE
        if is_accessor(node):
            return Level.SHAPE
        level = max((n.meta["level"] for n in node.all_input_nodes), default=Level.SHAPE)
        if node.op == "call_module":
            pure = isinstance(self.root.get_submodule(str(node.target)), _PURE_LAYERS)
            return max(level, Level.STATE) if pure else Level.DATA
        name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
        if str(name).rstrip("_") in _RANDOM:
            return Level.DATA
        if any(n.meta["level"] == Level.STATE for n in node.meta.get("writes", ())):
            return Level.DATA  # another call would find another state
        return Level(level)

    def known(self, node: fx.Node, convert: Callable[[Any], Any]) -> Any:
        """Return a property of a value that sizes determine; raises if it depends on the batch."""
        values = node.meta["values"]
        is_size = convert is len and not isinstance(values[0], str)
        if node.target == FLAG and self._mode is not None:
            return convert(self._mode)
        if str(node.target).rpartition(".")[2] == FLAG:
            raise ModeError(MODE_FLOW)
        if node.meta["level"] != Level.SHAPE and not is_size:
            raise TraceError(f"control flow on a value of the data ({_described(node)})")
        found = [convert(value) for value in values]
        if found[0] != found[1]:
            raise TraceError(f"control flow on the batch size ({_described(node)})")
        return found[0]

    def to_bool(self, obj: fx.Proxy) -> bool:
        """Return conditions on sizes; those on data or training mode cannot be traced."""
        return bool(self.known(obj.node, bool))

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        """Iterate over a value of known length."""
        count = self.known(obj.node, len)
        return iter([obj[index] for index in range(count)])  # type: ignore[index]

    # ---- modules --------------------------------------------------------------------------

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """torch's own layers, and modules that cannot be traced."""
        if type(m) is nn.TransformerEncoder:
            return False
        leaf = super().is_leaf_module(m, module_qualified_name)
        return leaf or isinstance(m, TrainingFlag) or module_qualified_name in self.forced

    def call_module(
        self,
        m: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Trace a module; it becomes a leaf if that fails or freezes random numbers."""
        if self._evaluating:
            return forward(*args, **kwargs)
        path = self.path_of_module(m)
        if self.is_leaf_module(m, path):
            return super().call_module(m, forward, args, kwargs)
        if type(m) is nn.TransformerEncoder:
            forward = partial(_encode, m)
        nodes, depth, before = len(self.graph.nodes), len(self.module_stack), random_state()
        out = super().call_module(m, forward, args, kwargs)
        if random_state() != before:
            _restore_random(before)
            self._undo(nodes, depth)
            self.untraced[path] = "it draws random numbers in Python"
            out = self.create_proxy("call_module", path, args, kwargs)
        if isinstance(out, fx.Proxy) and path not in self.untraced:
            self.ends.setdefault(out.node, []).append(path)
        return out

    def _undo(self, nodes: int, depth: int) -> None:
        for node in list(self.graph.nodes)[nodes:]:
            self.ends.pop(node, None)
        super()._undo(nodes, depth)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, fx.Proxy]) -> Any:
        """Return proxies of parameters and buffers, except while a node is evaluated."""
        if self._evaluating:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def training_of(self, module: nn.Module) -> Any:
        """Return `module.training`: a node of the graph for modules that are traced."""
        paths = getattr(self, "submodule_paths", None)
        if self._evaluating or not paths or module not in paths:
            return module.__dict__["training"]
        path = paths[module]
        if path and self.is_leaf_module(module, path):
            return module.__dict__["training"]
        if FLAG not in module._modules:
            flag = TrainingFlag()
            module.add_module(FLAG, flag)
            paths[flag] = f"{path}.{FLAG}" if path else FLAG
        module._modules[FLAG].training = module.__dict__["training"]  # type: ignore[union-attr]
        return self.create_proxy("call_module", paths[module._modules[FLAG]], (), {})


FLAG: Final = "_training"
"""Name of the training flag in its module."""


def _encode(
    encoder: nn.TransformerEncoder,
    src: Any,
    mask: Any = None,
    src_key_padding_mask: Any = None,
    is_causal: bool | None = None,
) -> Any:
    """`nn.TransformerEncoder.forward` as a loop over its layers, which fx can trace."""
    for layer in encoder.layers:
        src = layer(
            src,
            src_mask=mask,
            is_causal=bool(is_causal),
            src_key_padding_mask=src_key_padding_mask,
        )
    return src if encoder.norm is None else encoder.norm(src)


def pick_output(out: Any, output: str | int | None) -> Any:
    """Return the first tensor of what a model returns, or the one `output` names."""
    if output is not None:
        return _named_output(out, output)
    if isinstance(out, dict):
        out = tuple(out.values())
    elif dataclasses.is_dataclass(out):
        out = tuple(getattr(out, part.name) for part in dataclasses.fields(out))
    if isinstance(out, Sequence) and not isinstance(out, str):
        tensors = [part for part in out if _is_tensor(part)]
        if not tensors:
            raise EsperError("the model returns no tensor: pick one with output=")
        return tensors[0]
    if isinstance(out, fx.Proxy) and isinstance(out.node.meta["values"][0], tuple | dict):
        value: Any = out.node.meta["values"][0]
        keys: Any = value.keys() if isinstance(value, dict) else range(len(value))
        first = next((key for key in keys if isinstance(value[key], Tensor)), None)
        return out if first is None else out[first]  # type: ignore[index]
    return out


def check_output(name: str, out: object, samples: int) -> None:
    """Raise unless what was picked is a tensor, batch first."""
    if not isinstance(out, Tensor):
        raise EsperError(f"{name} returns {type(out).__name__}, not a tensor: see output=")
    if out.ndim < 1 or len(out) != samples:
        raise EsperError(
            f"{name} turns a batch of {samples} into {tuple(out.shape)}: its output must be batch "
            f"first; pick another with output="
        )


def _named_output(out: Any, output: str | int) -> Any:
    try:
        return out[output]
    except (KeyError, IndexError, TypeError) as error:
        if isinstance(output, str) and not isinstance(out, dict) and hasattr(out, output):
            return getattr(out, output)
        found = list(out) if isinstance(out, dict) else type(out).__name__
        raise EsperError(f"output={output!r}: the model returns {found}") from error


def _is_tensor(part: Any) -> bool:
    value = part.node.meta["values"][0] if isinstance(part, fx.Proxy) else part
    return isinstance(value, Tensor)


def _call(root: nn.Module, node: fx.Node, args: Any, kwargs: Any) -> Any:
    if node.op == "get_attr":
        return operator.attrgetter(str(node.target))(root)
    if node.op == "call_module":
        return root.get_submodule(str(node.target))(*args, **kwargs)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    return node.target(*args, **kwargs)  # type: ignore[operator]


def _version(value: Any) -> int:
    return value._version if isinstance(value, Tensor) and not value.is_inference() else 0


def _described(node: fx.Node) -> str:
    source = node.all_input_nodes[0] if node.all_input_nodes else node
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "?")
    return str(name) if source is node else f"{name} of {source.name}"


def random_state() -> tuple[bytes, tuple[Any, ...], object]:
    """State of the generators of torch (on the CPU), numpy and Python."""
    kind, words, *rest = np.random.get_state()
    numpy_state = (kind, np.asarray(words).tobytes(), *rest)
    return torch.get_rng_state().numpy().tobytes(), numpy_state, random.getstate()


def _restore_random(state: tuple[bytes, tuple[Any, ...], object]) -> None:
    if state == random_state():
        return
    words, numpy_state, python_state = state
    torch.set_rng_state(torch.frombuffer(bytearray(words), dtype=torch.uint8))
    kind, numpy_words, *rest = numpy_state
    np.random.set_state((kind, np.frombuffer(numpy_words, dtype=np.uint32), *rest))
    random.setstate(python_state)  # type: ignore[arg-type]


@contextlib.contextmanager
def kept_random_state() -> Iterator[None]:
    """Restore the generators of torch (on the CPU), numpy and Python after the block."""
    state = random_state()
    try:
        yield
    finally:
        _restore_random(state)


@contextlib.contextmanager
def _patched_builtins() -> Iterator[None]:
    """Let `isinstance(x, Tensor)` hold for proxies of tensors inside the block, as checks expect,
    and let `len` read batch sizes, which a method of the proxy may not: it must return an int.

    A `__class__` of the proxy would do for the first, too, but torch's parser of arguments believes
    it, and `torch.pow(x, 3.0)` then reads the memory of a tensor that is not there.
    """
    original, count = builtins.isinstance, builtins.len

    def patched(value: Any, kinds: Any) -> bool:
        if original(value, kinds):
            return True
        if type(value) is not _ValueProxy:
            return False
        known: Any = value.node.meta["values"][0]
        return original(known, Tensor) and original(known, kinds)

    def size_or_len(value: Any) -> Any:
        if type(value) is _ValueProxy:
            small, large = value.node.meta["values"]
            if original(small, Tensor) and count(small) != count(large):
                return value.size(0)
        return count(value)

    builtins.isinstance, builtins.len = patched, size_or_len
    try:
        yield
    finally:
        builtins.isinstance, builtins.len = original, count


@contextlib.contextmanager
def _patched_training(tracer: ModelTracer) -> Iterator[None]:
    """Let `module.training` ask the tracer inside the block."""

    def read(module: nn.Module) -> Any:
        return tracer.training_of(module)

    def write(module: nn.Module, value: bool) -> None:
        module.__dict__["training"] = value

    nn.Module.training = property(read, write)  # type: ignore[assignment]
    try:
        yield
    finally:
        del nn.Module.training
