"""How the parts of a network are built: layers, what holds them, parameters and buffers.

A part is a call whose arguments may be parts. Equal blocks differ only in arguments, and become one
class that takes these.
"""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from typing import Any, Final

from torch import Tensor, nn

from esper.growing.code.expressions import Imports, literal
from esper.kasmina.plain_saves.layers import layer_arguments, layer_kind
from esper.leyline.errors import EsperError

WIDTH: Final = 88
INDENT: Final = "    "


class Source(str):
    """An argument that is written as it is."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Call:
    """`head` arguments `tail`, as in `nn.Conv2d(` ... `)`."""

    head: str
    args: Mapping[str, Any]
    tail: str = ")"
    label: str = ""
    """What stands before an argument, with {} in the place of its name."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Arguments that are left out where they have these values, and given by name."""

    def items(self) -> list[tuple[str, Any]]:
        """Its arguments: what stands before each, and the argument."""
        return [
            (("{}=" if name in self.defaults else self.label).format(name), value)
            for name, value in self.args.items()
            if name not in self.defaults or repr(value) != repr(self.defaults[name])
        ]

    @property
    def listed(self) -> bool:
        """Whether it holds parts 0, 1, 2 and so on, which are read by number."""
        return self.head in ("nn.Sequential(", "nn.ModuleList([", "nn.ParameterList([")

    @property
    def is_tensor(self) -> bool:
        """Whether it is a parameter or a buffer."""
        return self.head.startswith(("nn.Parameter(", "nn.Buffer("))


Part = Call | Source
GROUP: Final = '''
class Group(nn.Module):
    """Parts by name, which the module that holds them calls."""

    def __init__(self, parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
'''


def container(parts: Mapping[str, Call]) -> Call:
    """What holds parts that are not called together."""
    if is_listed(parts) and all(part.head.startswith("nn.Parameter(") for part in parts.values()):
        return Call("nn.ParameterList([", parts, "])")
    if numbered(parts) == [*parts]:
        return Call("nn.ModuleList([", parts, "])")
    return Call("Group({", parts, "})", '"{}": ')


def numbered(parts: Mapping[str, Call]) -> list[str]:
    """Names of the modules of parts that have numbers, if these are 0, 1, 2 and so on."""
    names = [name for name in parts if name.isdigit()]
    return [] if not is_listed(names) or any(parts[n].is_tensor for n in names) else names


def is_listed(names: Iterable[str]) -> bool:
    """Whether names are 0, 1, 2 and so on."""
    found = list(names)
    return found == [str(number) for number in range(len(found))]


def is_name(text: str) -> bool:
    """Whether something can be called so."""
    return text.isidentifier() and not keyword.iskeyword(text)


# ---- text -------------------------------------------------------------------------------------


def flat(part: Any) -> str:
    """An argument on one line."""
    if isinstance(part, Call):
        inner = ", ".join(f"{before}{flat(value)}" for before, value in part.items())
        return f"{part.head}{inner}{part.tail}"
    return part if isinstance(part, Source) else literal(part)


def lines(start: str, part: Any, depth: int) -> list[str]:
    """`start` and a part on as many lines as they need; `depth`: of the indentation."""
    space = INDENT * depth
    whole = f"{space}{start}{flat(part)}"
    if not isinstance(part, Call) or not part.items() or len(whole) <= WIDTH:
        return [whole]
    found = [f"{space}{start}{part.head}"]
    for before, value in part.items():
        *above, last = lines(before, value, depth + 1)
        found += [*above, f"{last},"]
    return [*found, f"{space}{part.tail}"]


def function(head: str, body: Sequence[str], depth: int = 0) -> list[str]:
    """`def head:` with its body, whose lines are not indented yet."""
    inner = INDENT * (depth + 1)
    return [f"{INDENT * depth}def {head}:", *(f"{inner}{line}" if line else "" for line in body)]


# ---- sharing ----------------------------------------------------------------------------------


class Arguments:
    """The arguments of the class of equal blocks: what differs between them."""

    def __init__(self) -> None:
        self.values: dict[str, list[Any]] = {}
        """Name -> its value in each block."""

    def common(self, name: str, found: list[Any]) -> Any:
        """The part of all blocks, with arguments in the place of what differs."""
        first = found[0]
        if all(repr(one) == repr(first) for one in found):
            return first
        if all(isinstance(one, Call) for one in found):
            kinds = {(one.head, one.tail, tuple(one.args)) for one in found}
            if len(kinds) == 1:
                every = {key: [one.args[key] for one in found] for key in first.args}
                return replace(
                    first, args={key: self.common(key or name, one) for key, one in every.items()}
                )
        return Source(self._argument(name, found))

    def _argument(self, wanted: str, found: list[Any]) -> str:
        for known, values in self.values.items():
            if repr(values) == repr(found):
                return known
        plain = wanted if is_name(wanted) else f"part{wanted}"
        names = chain((plain,), (f"{plain}{number}" for number in count(2)))
        free = next(name for name in names if name not in self.values)
        self.values[free] = found
        return free


# ---- tensors and layers -------------------------------------------------------------------------


def sizes(value: Tensor) -> dict[str, Any]:
    """The shape of a tensor, as arguments of `torch.zeros`."""
    return {f"size{axis}": size for axis, size in enumerate(value.shape)} or {"": Source("()")}


_SIZES: Final = ("kernel_size", "stride", "padding", "dilation", "output_padding", "output_size")
_RECURRENT: Final = {
    "num_layers": 1, "nonlinearity": "tanh", "bias": True, "batch_first": False, "dropout": 0.0,
    "bidirectional": False, "proj_size": 0,
}  # fmt: skip
"""Defaults of recurrent layers, which take any arguments."""
_LEFT_OUT: Final = ("self", "device", "dtype")


def _simple(name: str, value: Any) -> Any:
    """An argument as people write it.

    >>> _simple("kernel_size", (3, 3)), _simple("normalized_shape", (8,))
    (3, 8)
    """
    if not isinstance(value, tuple | list) or not value:
        return value
    if name == "normalized_shape" and len(value) == 1:
        return value[0]
    return value[0] if name in _SIZES and len(set(value)) == 1 else value


def layer_part(path: str, layer: nn.Module, imports: Imports) -> Call:
    """How a layer is built; raises if that is not known."""
    try:
        kind = layer_kind(layer)
        return _layer(f"nn.{kind}", layer, layer_arguments(layer))
    except EsperError as error:
        if type(layer).__module__.partition(".")[0] == "torch":
            raise EsperError(f"{path} is {error}") from error
    return _own_layer(path, layer, imports)


def _layer(kind: str, layer: nn.Module, args: Mapping[str, Any]) -> Call:
    cls = type(layer)
    defaults = {
        one.name: one.default
        for one in inspect.signature(cls).parameters.values()
        if one.default is not one.empty
    }
    if issubclass(cls, nn.RNNBase):
        defaults = _RECURRENT
    trained = {p.requires_grad for p in layer.parameters()}
    if len(trained) > 1:
        raise EsperError(f"a {cls.__name__} that trains in part")
    if kind == "nn.MultiheadAttention" and args["kdim"] == args["vdim"] == args["embed_dim"]:
        args = {**args, "kdim": None, "vdim": None}
    plain = {name: _simple(name, value) for name, value in args.items()}
    tail = ").requires_grad_(False)" if trained == {False} else ")"
    return Call(f"{kind}(", plain, tail, defaults=defaults)


def _own_layer(path: str, layer: nn.Module, imports: Imports) -> Call:
    """A layer of the user's class, imported, with arguments that it keeps under their names."""
    cls = type(layer)
    parameters = [p for p in inspect.signature(cls).parameters.values() if p.name not in _LEFT_OUT]
    args = {p.name: getattr(layer, p.name, p.default) for p in parameters}
    unknown = [n for n, v in args.items() if v is inspect.Parameter.empty or _is_odd(v)]
    if unknown:
        raise EsperError(
            f"{path} is of your class {cls.__name__}, which does not keep its argument "
            f"{unknown[0]!r} as an attribute"
        )
    try:
        name = imports.add(cls)
        again = cls(**args)
    except EsperError as error:
        raise EsperError(f"{path} is kept whole, and its class {error}") from error
    except Exception as error:  # whatever a user's class makes of its arguments
        raise EsperError(f"{path}: {cls.__name__}(**{args}) fails ({error})") from error
    if _shapes(again) != _shapes(layer):
        raise EsperError(f"{path} is kept whole, and {cls.__name__}(**{args}) has other weights")
    return _layer(name, layer, args)


def _is_odd(value: Any) -> bool:
    return not isinstance(value, int | float | str | bool | tuple | list | type(None))


def _shapes(layer: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in layer.state_dict().items()}
