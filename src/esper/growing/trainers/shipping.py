"""What travels between the process of a search and its workers: networks, data, loss, metric.

Networks travel as descriptions and tensors, so that nothing of the user's script runs again in a
worker. What only the user's own code can compute stays in the process of the search.
"""

from __future__ import annotations

import io
import pickle
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType
from typing import IO, Any, Final

import numpy as np
import torch
from torch import Tensor, fx, nn

from esper.device.rng import forked_rng
from esper.growing.trainers.data import Samples
from esper.growing.trainers.task import Task
from esper.kasmina.layers.modes import in_mode
from esper.kasmina.plain_saves.describe import describe, same_outputs
from esper.kasmina.plain_saves.rebuild import rebuild
from esper.kasmina.plain_saves.records import GraphRecord
from esper.kasmina.tracing import Inputs
from esper.leyline.errors import EsperError

ALIGNED: Final = 64
"""Bytes: where tensors start in memory, as those that torch allocates."""
_KNOWN: Final = frozenset({"esper", "torch", "numpy", "builtins", "functools", "collections"})
"""Packages whose functions a worker has; "_codecs" and the like are reached through them."""


# ---- tensors -------------------------------------------------------------------------------------


def tensor_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors by name in one piece."""
    from safetensors.torch import save

    # Copies: safetensors refuses tensors that share memory, as tied weights do.
    whole = {n: v.detach().cpu().clone(memory_format=torch.contiguous_format) for n, v in
             tensors.items()}  # fmt: skip
    return save(whole)


def read_tensors(content: bytes) -> dict[str, Tensor]:
    """What `tensor_bytes` wrote."""
    from safetensors.torch import load

    return load(content)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor lies in a block of memory."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    first: int
    size: int


@dataclass(frozen=True, slots=True)
class _DataForm:
    """Where the samples of a search lie in a block of memory that all workers share."""

    train: tuple[_Place, ...]
    """Of its inputs, then of its targets."""
    val: tuple[_Place, ...]
    bytes: int

    def samples(self, block: Tensor) -> tuple[Samples, Samples]:
        """Training and validation samples, without a copy."""
        train, val = ([_view(block, place) for place in part] for part in (self.train, self.val))
        return Samples(train[:-1], train[-1]), Samples(val[:-1], val[-1])


def _view(block: Tensor, place: _Place) -> Tensor:
    piece = block[place.first : place.first + place.size]
    return piece.view(place.dtype).view(place.shape)


def data_tensors(train: Samples, val: Samples) -> list[Tensor]:
    """The tensors of samples in the order of `_DataForm`."""
    return [*train.values, train.targets, *val.values, val.targets]


def _data_form(train: Samples, val: Samples) -> _DataForm:
    first, places = 0, list[_Place]()
    for value in data_tensors(train, val):
        places.append(_Place(value.dtype, tuple(value.shape), first, value.nbytes))
        first += -(-value.nbytes // ALIGNED) * ALIGNED
    count = len(train.values) + 1
    return _DataForm(tuple(places[:count]), tuple(places[count:]), first)


def data_pieces(tensors: Iterable[Tensor]) -> Iterable[memoryview]:
    """Their bytes, each filled up to where the next one starts."""
    for value in tensors:
        flat = value.detach().cpu().contiguous().flatten()
        array: Any = flat.view(torch.uint8).numpy() if len(flat) else b""
        yield memoryview(array)
        yield memoryview(bytes(-value.nbytes % ALIGNED))


def write_block(tensors: Iterable[Tensor]) -> IO[bytes]:
    """Write tensors to a file without a name, which is gone when nobody holds it any more."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 (the caller closes it)
    try:
        for piece in data_pieces(tensors):
            file.write(piece)
        file.flush()
    except BaseException:
        file.close()
        raise
    return file


def together(pieces: Iterable[memoryview]) -> Any:
    """Pieces as one array, for transports that send no files."""
    return np.frombuffer(b"".join(pieces), dtype=np.uint8)


def read_block(descriptor: int, size: int) -> Tensor:
    """Map such a file into memory: workers of one machine hold it once."""
    return torch.from_file(f"/dev/fd/{descriptor}", shared=False, size=size, dtype=torch.uint8)


# ---- functions -----------------------------------------------------------------------------------


class _KnownOnly(pickle.Pickler):
    """Refuses functions and classes that a worker may not have, or only by running a script."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type | FunctionType | BuiltinFunctionType):
            package = (value.__module__ or "builtins").partition(".")[0].lstrip("_")
            if package not in _KNOWN:
                raise pickle.PicklingError(f"{value.__module__}.{value.__qualname__}")
        return NotImplemented


def _shipped(value: object) -> bytes | None:
    """A value for a worker; None if it needs code of the user's.

    As bytes: pipes would send its tensors as descriptors, which no other program can open.
    """
    held = io.BytesIO()
    try:
        _KnownOnly(held).dump(value)
    except (pickle.PicklingError, AttributeError, TypeError):  # closures, lambdas, locks
        return None
    return held.getvalue()


@dataclass(frozen=True, slots=True)
class TaskForm:
    """A task without its samples."""

    inputs: Inputs
    loss: bytes
    metric: bytes | None
    """None: only the search has it, and judges what comes back."""
    amp: bool
    data: _DataForm
    switches: tuple[Any, ...]

    def task(self, block: Tensor, device: str) -> Task:
        """The task on a device of this process; sets torch's switches as in the search."""
        for (setter, _), value in zip(_SWITCHES, self.switches, strict=True):
            setter(value)
        train, val = self.data.samples(block)
        place = torch.device(device)
        # The bytes are those of our own search, through a pipe that nobody else can write to.
        metric: Any = None if self.metric is None else pickle.loads(self.metric)
        loss = pickle.loads(self.loss)
        return Task(self.inputs, train.to(place), val.to(place), loss, metric, place, self.amp)


def _set_mkldnn(on: bool) -> None:
    torch.backends.mkldnn.enabled = on  # type: ignore[assignment]


_SWITCHES: Final[tuple[tuple[Callable[[Any], None], Callable[[], Any]], ...]] = (
    (torch.set_default_dtype, torch.get_default_dtype),
    (torch.set_float32_matmul_precision, torch.get_float32_matmul_precision),
    (torch.set_deterministic_debug_mode, torch.get_deterministic_debug_mode),
    (_set_mkldnn, lambda: torch.backends.mkldnn.enabled),
)
"""Switches of torch that decide how it computes: how they are set, and read."""


def task_form(task: Task) -> tuple[TaskForm | None, str]:
    """The form of a task; None, and why, if only the process of the search can train it."""
    if not isinstance(task.train, Samples):
        return None, "a stream is read by one process"
    if task.own.given:
        return None, f"{task.own.given[0]}= of your own is computed in one process"
    loss = _shipped(task.loss)
    if loss is None:
        return None, "a loss of your own is computed in one process"
    data = _data_form(task.train, task.val)
    switches = tuple(read() for _, read in _SWITCHES)
    return TaskForm(task.inputs, loss, _shipped(task.metric), task.amp, data, switches), ""


# ---- networks ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _NetworkForm:
    """A network without its values."""

    graph: GraphRecord
    names: tuple[str, ...]
    """Modules, parameters and buffers, in their order: an optimiser counts parameters by it."""
    unsaved: tuple[str, ...]
    """Buffers that state dicts leave out."""
    evaluated: tuple[str, ...]
    """Modules that are in eval mode."""


def describe_network(network: nn.Module) -> tuple[_NetworkForm, dict[str, Tensor]]:
    """The form of a network and its values; raises with what has none."""
    if isinstance(network, fx.GraphModule) and (
        network._forward_hooks or network._forward_pre_hooks or network._backward_hooks
    ):
        raise EsperError("it has hooks")
    graph, values = describe(network)
    saved = network.state_dict(keep_vars=True)
    unsaved = [name for name, _ in network.named_buffers() if name not in saved]
    evaluated = [name for name, part in network.named_modules() if not part.training]
    form = _NetworkForm(graph, _names(network), tuple(unsaved), tuple(evaluated))
    return form, values


def _names(network: nn.Module) -> tuple[str, ...]:
    return (
        *(name for name, _ in network.named_modules()),
        *(name for name, _ in network.named_parameters()),
        *(name for name, _ in network.named_buffers()),
    )


def rebuild_network(form: _NetworkForm, values: Mapping[str, Tensor]) -> nn.Module:
    """The network, in the modes and with the order of the one that was described."""
    network = rebuild(form.graph, values, "network").train()
    order = {name: place for place, name in enumerate(form.names)}
    for path, part in network.named_modules():
        prefix = f"{path}." if path else ""
        for held in (part._modules, part._parameters, part._buffers):
            _sort(held, order, prefix)
        for name in part._buffers:
            if prefix + name in form.unsaved:
                part._non_persistent_buffers_set.add(name)
        part.training = path not in form.evaluated
    return network


def rebuilt(form: _NetworkForm, content: bytes) -> nn.Module:
    """The same of values in one piece."""
    return rebuild_network(form, read_tensors(content))


def _sort(held: dict[str, Any], order: Mapping[str, int], prefix: str) -> None:
    items = sorted(held.items(), key=lambda item: order.get(prefix + item[0], len(order)))
    held.clear()
    held.update(items)


class Forms:
    """Descriptions of networks, compared with the networks themselves once for each kind."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._right: dict[str, bool] = {}

    def describe(self, network: nn.Module) -> tuple[_NetworkForm, dict[str, Tensor]] | None:
        """A network for a worker; None if it might not be the same."""
        try:
            form, values = describe_network(network)
        except EsperError:
            return None
        kind = repr(form)
        if kind not in self._right:
            self._right[kind] = self._same(network, form, values)
        return (form, values) if self._right[kind] else None

    def _same(self, network: nn.Module, form: _NetworkForm, values: Mapping[str, Tensor]) -> bool:
        """Whether the description gives the names, order and outputs of the network."""
        again = rebuild_network(form, {name: value.clone() for name, value in values.items()})
        own, other = network.state_dict(), again.state_dict()
        if _names(again) != form.names or list(own) != list(other):
            return False
        inputs = [value[:2].cpu() for value in self._task.val.values]
        try:
            with in_mode(network, training=False), torch.no_grad(), forked_rng(0):
                one, two = (self._task.outputs(each, inputs) for each in (network, again.eval()))
        except Exception:  # whatever a network raises: it will again where it is trained
            return False
        return same_outputs(one, two)
