"""Digests of what a user's model and functions compute: a resume refuses other code.

They are the same in every process of one version of Python: no addresses, no order of sets.
"""

from __future__ import annotations

import dis
import enum
import functools
import hashlib
import sys
import types
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from dataclasses import is_dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from esper.tasks.row_terms import dtype_name

if TYPE_CHECKING:
    from esper.kasmina.tracing import HostTrace

_PLAIN: Final = (
    int, float, complex, str, bytes, range, slice, types.NoneType, types.EllipsisType, PurePath,
    torch.dtype, torch.device, torch.layout, torch.memory_format, np.generic, np.dtype,
)  # fmt: skip
"""What its text says all of."""
_OF_MODULES: Final = frozenset(vars(nn.Module()))
"""Attributes of every module: its mode, what it holds, and torch's own."""
_LIBRARIES: Final = frozenset({"esper", "torch", *sys.stdlib_module_names}) - {"__main__"}


def function_digest(function: Callable[..., Any]) -> str:
    """SHA-256 of what a user's function computes: its code, and the values that it uses."""
    return _hashed(_Description(values=True).of(function))


def model_digest(trace: HostTrace) -> str:
    """SHA-256 of what a model computes, but for the values of its tensors.

    Of a traced one it is the graph, whatever its code looks like.
    """
    from esper.kasmina.tracing.hooks import HookPlan

    model = trace.factory()
    tensors = [
        (name, tuple(tensor.shape), str(tensor.dtype), tensor.requires_grad)
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
    ]
    description = _Description(values=False)
    plan = trace.plan
    if isinstance(plan, HookPlan):
        return _hashed((tensors, description.of(model)))
    constants = tensor_digest(sorted(plan.additions.constants.items()))
    return _hashed((tensors, constants, list(description.nodes(plan.graph, model))))


def tensor_digest(named: Iterable[tuple[str, Tensor]], other: str = "") -> str:
    """SHA-256 over names, shapes, dtypes and contents of tensors."""
    digest = hashlib.sha256(other.encode())
    for name, value in named:
        digest.update(f"{name} {tuple(value.shape)} {dtype_name(value)}\n".encode())
        # As bytes: numpy has no bfloat16.
        flat = value.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _hashed(description: object) -> str:
    return hashlib.sha256(repr(description).encode()).hexdigest()


class _Description:
    """Turns functions, modules and values into nested tuples of texts."""

    def __init__(self, values: bool) -> None:
        """`values`: whether the values of tensors count, besides shapes and types."""
        self._values = values
        self._seen: dict[int, tuple[int, object]] = {}
        """Address -> place of what was described; kept, so that no other gets its address."""

    def of(self, value: Any) -> object:
        """What a value is."""
        if isinstance(value, enum.Enum):
            return _name(type(value)), value.name
        if isinstance(value, _PLAIN):
            return type(value).__name__, repr(value)
        if isinstance(value, list | tuple):
            return [self.of(one) for one in value]
        if isinstance(value, set | frozenset):
            return sorted(repr(self.of(one)) for one in value)
        if isinstance(value, dict):
            return [(self.of(key), self.of(one)) for key, one in value.items()]
        if isinstance(value, Tensor | np.ndarray):
            return self._tensor(value)
        if id(value) in self._seen:
            return "again", self._seen[id(value)][0]
        self._seen[id(value)] = len(self._seen), value
        return self._made(value)

    def _tensor(self, value: Tensor | np.ndarray[Any, Any]) -> object:
        facts = tuple(value.shape), str(value.dtype)
        if not self._values or (isinstance(value, np.ndarray) and value.dtype.kind not in "biufc"):
            return facts
        return facts, tensor_digest([("", torch.as_tensor(value))])

    def _made(self, value: Any) -> object:
        """What something with code or attributes is; compiled or not."""
        value = getattr(value, "_torchdynamo_orig_callable", getattr(value, "_orig_mod", value))
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.MethodType):
            owner = value.__self__
            held = self.of(owner) if isinstance(owner, type | nn.Module) else self._object(owner)
            return self.of(value.__func__), held
        if isinstance(value, functools.partial):
            return self.of(value.func), self.of(value.args), self.of(value.keywords)
        if isinstance(value, property):
            return self.of([value.fget, value.fset])
        if isinstance(value, staticmethod | classmethod) or hasattr(value, "__wrapped__"):
            return type(value).__name__, self.of(value.__wrapped__)
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, nn.Module):
            return self._module(value)
        holds = isinstance(value, Namespace | types.SimpleNamespace)
        if callable(value) or is_dataclass(value) or holds:
            return self._object(value)
        return _name(type(value))

    def _object(self, value: Any) -> object:
        """Its class and its attributes."""
        attributes = vars(value) if hasattr(value, "__dict__") else {}
        return _name(value), self.of(type(value)), self._attributes(attributes)

    def _function(self, function: types.FunctionType) -> object:
        cells = [_content(cell) for cell in function.__closure__ or ()]
        given = [function.__defaults__, function.__kwdefaults__, cells]
        return self._code(function.__code__), self.of(given), list(self._globals(function))

    def _code(self, code: types.CodeType) -> object:
        consts = [
            self._code(one) if isinstance(one, types.CodeType) else self.of(one)
            for one in code.co_consts
        ]
        arguments = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount
        return sys.version_info[:2], code.co_code.hex(), code.co_names, arguments, consts

    def _globals(self, function: types.FunctionType) -> Iterator[object]:
        """What a function of the user's reads from its module."""
        if _is_library(function):
            return
        for name in sorted(_global_names(function.__code__)):
            value = function.__globals__.get(name)
            if isinstance(value, types.FunctionType | type) and _is_library(value):
                yield name, _name(value)
            else:
                yield name, self.of(value)

    def _class(self, kind: type) -> object:
        """Name and code of a class, and of those of the user's that it is made from."""
        found = list[object]()
        for base in kind.__mro__:
            members = {} if _is_library(base) else vars(base)
            found.append((_name(base), self._attributes(members)))
        return found

    def _module(self, module: nn.Module) -> object:
        """Classes and settings of a module and those in it."""
        parts = []
        for name, part in module.named_modules():
            settings = {n: v for n, v in vars(part).items() if n not in _OF_MODULES}
            hooks = [*part._forward_pre_hooks.values(), *part._forward_hooks.values()]
            parts.append((name, self.of(type(part)), self._attributes(settings), self.of(hooks)))
        tensors = (*module.named_parameters(), *module.named_buffers())
        return parts, [(name, self.of(tensor)) for name, tensor in tensors]

    def _attributes(self, attributes: Any) -> list[object]:
        """Names and values, but for what Python adds to a class."""
        return [
            (name, self.of(value))
            for name, value in sorted(attributes.items())
            if not name.startswith("__") or isinstance(value, types.FunctionType)
        ]

    def nodes(self, graph: fx.Graph, model: nn.Module) -> Iterator[object]:
        """What each node of a graph calls, nodes by number."""
        number = {node: index for index, node in enumerate(graph.nodes)}
        for node in graph.nodes:
            given = str(map_arg((node.args, node.kwargs), lambda n: number[n]))
            target: object = node.target
            if node.op == "call_module":
                target = node.target, self.of(model.get_submodule(str(node.target)))
            elif node.op == "call_function":
                target = _name(target) if _is_library(target) else self.of(target)
            yield node.op, target, given


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return "empty"


def _global_names(code: types.CodeType) -> set[str]:
    """Globals that code reads, functions in it included."""
    names = {one.argval for one in dis.get_instructions(code) if one.opname == "LOAD_GLOBAL"}
    inner = (one for one in code.co_consts if isinstance(one, types.CodeType))
    return names.union(*map(_global_names, inner))


def _name(value: Any) -> str:
    """Qualified name of a function or class, or of the class of a value."""
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{getattr(named, '__module__', '')}.{named.__qualname__}"


def _is_library(value: Any) -> bool:
    """Whether a function or class is not the user's."""
    own = value.__globals__.get("__name__") if isinstance(value, types.FunctionType) else None
    module = str(own or getattr(value, "__module__", None) or "builtins")
    file = str(getattr(sys.modules.get(module), "__file__", None) or "")
    return module.partition(".")[0] in _LIBRARIES or "site-packages" in file
