"""How the parts of a network are built: layers, containers, parameters, buffers and blocks.

A part is a tree. Its *slots* are the numbers in it; equal blocks differ only in these, and become
one class whose arguments they are.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from torch import nn

from esper.growing.code.docs import Call, Doc, keyed, named
from esper.growing.code.expressions import Imports, literal
from esper.kasmina.plain_saves.layers import layer_arguments, layer_kind
from esper.leyline.errors import EsperError

Key = tuple[str, ...]
"""Path of a slot: names of children, then of the argument."""
Slots = Mapping[Key, Any]


@dataclass(frozen=True, slots=True)
class Hole:
    """An argument of the class in the place of a value."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """A call of a class: a layer of torch's, one of the user's, or a block of the script."""

    kind: str
    args: Mapping[str, Any]
    defaults: Mapping[str, Any]
    """Arguments that are left out where they have these values."""
    frozen: bool = False
    by_name: bool = False
    """Several arguments are given by name."""

    def shape(self) -> object:
        """Everything but the slots."""
        return self.kind, tuple(self.args), self.frozen

    def slots(self) -> Iterator[tuple[Key, Any]]:
        """Its numbers, and their places."""
        for name, value in self.args.items():
            yield (name,), value

    def render(self, at: Slots, shown: frozenset[Key]) -> Doc:
        """Its construction. `at`: values in place of its own; `shown`: arguments to write even if
        they have their default."""
        items: list[Doc] = []
        for place, (name, own) in enumerate(self.args.items()):
            value = at.get((name,), own)
            optional = name in self.defaults
            if optional and (name,) not in shown and same(value, self.defaults[name]):
                continue
            doc = _argument(value)
            first = not place and not isinstance(value, bool)
            apart = (optional and not first) or (self.by_name and len(self.args) > 1)
            items.append(named(name, doc) if apart else doc)
        tail = ").requires_grad_(False)" if self.frozen else ")"
        return Call(f"{self.kind}(", tuple(items), tail)


def _argument(value: Any) -> Doc:
    if isinstance(value, Hole):
        return value.name
    if isinstance(value, Layer | Container):
        return value.render({}, frozenset())
    return literal(value)[0]


_SIZES: Final = ("kernel_size", "stride", "padding", "dilation", "output_padding", "output_size")


def simple(name: str, value: Any) -> Any:
    """An argument as people write it.

    >>> simple("kernel_size", (3, 3)), simple("normalized_shape", (8,))
    (3, 8)
    """
    if not isinstance(value, tuple | list) or not value:
        return value
    if name == "normalized_shape" and len(value) == 1:
        return value[0]
    return value[0] if name in _SIZES and len(set(value)) == 1 else value


def same(one: Any, other: Any) -> bool:
    """Whether two arguments of a layer mean the same."""
    if isinstance(one, Hole | Layer | Container) or isinstance(other, Hole | Layer | Container):
        return one is other
    return repr(one) == repr(other)


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A parameter or buffer that is no layer's."""

    form: str
    """`zeros`, `ones`, `full`, `randn`, `uniform`, or the source of its value, without `sizes`."""
    sizes: tuple[int, ...]
    number: float = math.nan
    parameter: bool = True
    trains: bool = True
    persistent: bool = True

    def shape(self) -> object:
        """Everything but the slots."""
        return self.form, len(self.sizes), self.parameter, self.trains, self.persistent

    def slots(self) -> Iterator[tuple[Key, Any]]:
        """Its sizes and its number."""
        for axis, size in enumerate(self.sizes):
            yield (f"size{axis}",), size
        if not math.isnan(self.number):
            yield ("value",), self.number

    def render(self, at: Slots, shown: frozenset[Key]) -> Doc:
        """Its value, as a parameter if it is one."""
        sizes = [at.get((f"size{axis}",), size) for axis, size in enumerate(self.sizes)]
        dims = ", ".join(str(_argument(size)) for size in sizes) or "()"
        number = _argument(at.get(("value",), self.number))
        text = {
            "zeros": f"torch.zeros({dims})",
            "ones": f"torch.ones({dims})",
            "full": f"torch.full(({dims}{',' if len(sizes) == 1 else ''}), {number})",
            "randn": f"{'' if number == '1.0' else f'{number} * '}torch.randn({dims})",
            "uniform": f"torch.empty({dims}).uniform_(-{number}, {number})",
        }.get(self.form, self.form)
        if not self.parameter:
            return text
        return f"nn.Parameter({text})" if self.trains else f"nn.Parameter({text}, False)"


@dataclass(frozen=True, slots=True, eq=False)
class Container:
    """Modules that are not called together, and tensors beside them."""

    children: Mapping[str, Part] = field(default_factory=dict)
    sequential: bool = False
    """It is called as a whole, one child after the other."""

    @property
    def indexed(self) -> bool:
        """Whether its modules are 0, 1, 2 and so on."""
        return bool(self.modules) and [*self.modules] == [str(n) for n in range(len(self.modules))]

    @property
    def listed(self) -> bool:
        """Whether it holds parameters 0, 1, 2 and so on, and nothing else."""
        held = [c for c in self.children.values() if isinstance(c, Value) and c.parameter]
        numbers = [str(n) for n in range(len(held))]
        return bool(held) and [*self.children] == numbers

    @property
    def modules(self) -> dict[str, Layer | Container]:
        """Its children that are modules."""
        return {n: c for n, c in self.children.items() if not isinstance(c, Value)}

    @property
    def kind(self) -> str:
        """How it is built."""
        if self.indexed:
            return "nn.Sequential" if self.sequential else "nn.ModuleList"
        free = not any(hasattr(nn.ModuleDict, name) for name in self.modules)
        return "nn.ModuleDict" if free else "nn.Module"

    def shape(self) -> object:
        """Everything but the slots."""
        inner = tuple((name, child.shape()) for name, child in self.children.items())
        return self.kind, inner

    def slots(self) -> Iterator[tuple[Key, Any]]:
        """Those of its children."""
        for name, child in self.children.items():
            for key, value in child.slots():
                yield (name, *key), value

    def render(self, at: Slots, shown: frozenset[Key]) -> Doc:
        """Its construction with its modules, but for those of an `nn.Module`."""
        docs = {
            name: child.render(below(at, name), frozenset(below(dict.fromkeys(shown), name)))
            for name, child in self.modules.items()
        }
        if self.kind == "nn.Sequential":
            return Call("nn.Sequential(", tuple(docs.values()), ")")
        if self.kind == "nn.ModuleList":
            return Call("nn.ModuleList([", tuple(docs.values()), "])")
        if self.kind == "nn.Module":
            return "nn.Module()"
        if self.listed:
            values = (c.render(below(at, n), shown) for n, c in self.children.items())
            return Call("nn.ParameterList([", tuple(values), "])")
        if not docs:
            return "nn.ModuleDict()"
        pairs = tuple(keyed(name, doc) for name, doc in docs.items())
        return Call("nn.ModuleDict({", pairs, "})")


Part = Layer | Container | Value


def holds_values(part: Part) -> bool:
    """Whether a part is or holds tensors that are no layer's."""
    if isinstance(part, Container):
        return any(map(holds_values, part.children.values()))
    return isinstance(part, Value)


def below(at: Mapping[Key, Any], name: str) -> dict[Key, Any]:
    """Slots of a child."""
    return {key[1:]: value for key, value in at.items() if key[0] == name}


# ---- layers -----------------------------------------------------------------------------------

_RECURRENT: Final = {
    "num_layers": 1, "nonlinearity": "tanh", "bias": True, "batch_first": False, "dropout": 0.0,
    "bidirectional": False, "proj_size": 0,
}  # fmt: skip
"""Defaults of recurrent layers, which take any arguments."""
_LEFT_OUT: Final = ("self", "device", "dtype")


def layer_spec(path: str, layer: nn.Module, imports: Imports) -> Layer | Container:
    """How a layer is built; raises if that is not known."""
    found: Layer | Container
    try:
        if type(layer) is nn.Sequential:
            inner = {n: layer_spec(n, c, imports) for n, c in layer.named_children()}
            found = Container(inner, sequential=True)
            if not found.indexed:
                raise EsperError("an nn.Sequential with names")
            return found
        if type(layer) is nn.TransformerEncoder:
            return _encoder(layer, imports)
        kind = layer_kind(layer)
        return _layer(f"nn.{kind}", type(layer), layer_arguments(layer), layer)
    except EsperError as error:
        if type(layer).__module__.partition(".")[0] == "torch":
            raise EsperError(f"{path} is {error}") from error
    return _own_layer(path, layer, imports)


def _layer(kind: str, cls: type[nn.Module], args: Mapping[str, Any], layer: nn.Module) -> Layer:
    defaults = {
        one.name: one.default
        for one in inspect.signature(cls).parameters.values()
        if one.default is not one.empty
    }
    if issubclass(cls, nn.RNNBase):
        defaults = dict(_RECURRENT)
    params = list(layer.parameters())
    frozen = bool(params) and not any(p.requires_grad for p in params)
    if not frozen and not all(p.requires_grad for p in params):
        raise EsperError(f"a {cls.__name__} that trains in part")
    if kind == "nn.MultiheadAttention" and args["kdim"] == args["vdim"] == args["embed_dim"]:
        args = {**args, "kdim": None, "vdim": None}
    plain = {name: simple(name, value) for name, value in args.items()}
    return Layer(kind, plain, defaults, frozen)


def _encoder(encoder: nn.TransformerEncoder, imports: Imports) -> Layer:
    """`nn.TransformerEncoder` copies one layer."""
    inner = [layer_spec(name, one, imports) for name, one in encoder.layers.named_children()]
    assert isinstance(inner[0], Layer)
    for other in inner[1:]:
        if other.shape() != inner[0].shape() or [*other.slots()] != [*inner[0].slots()]:
            raise EsperError("a TransformerEncoder whose layers differ")
    nested = {"enable_nested_tensor": encoder.enable_nested_tensor}
    norm = {} if encoder.norm is None else {"norm": layer_spec("norm", encoder.norm, imports)}
    args = {"encoder_layer": inner[0], "num_layers": len(inner), **norm, **nested}
    defaults = {"norm": None, "enable_nested_tensor": True}
    return Layer("nn.TransformerEncoder", args, defaults)


def _own_layer(path: str, layer: nn.Module, imports: Imports) -> Layer:
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
    return _layer(name, cls, args, layer)


def _is_odd(value: Any) -> bool:
    return not isinstance(value, int | float | str | bool | tuple | list | type(None))


def _shapes(layer: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in layer.state_dict().items()}
