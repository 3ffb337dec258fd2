"""How a resized model is initialised: as the given model shows.

Each parameter of the given model falls into the first class that fits:

- its shape stays, and the model was given as a class or function: what that call has drawn;
- constant along every axis that changes (zero heads, gammas of 0, 1 or 1e-6): the same constant;
- a multiple of the identity, or orthogonal: the same at the new shape;
- torch's default for its layer, within sampling error: torch's default at the new shape;
- anything else: drawn anew, normal or uniform as given, with a deviation that follows a rule.

Rules say how a standard deviation depends on the shape: by torch's default for the layer (the ratio
to it stays), by the fan-in, the fan-out or their sum (Kaiming, Xavier), or not at all (0.02 in a
GPT). All parameters of one kind of layer follow one rule: the one that explains them with the
fewest distinct values, where usual values (a gain of sqrt 2, a deviation of 0.02, that of the
embeddings) count less. Where the evidence is thin the ratio to torch's default stays, because a
deviation that should have shrunk with the fan-in makes deep networks explode.

Gates of recurrent layers and the three parts of an attention's projection are looked at one by one.
A trained instance is treated alike: weights are drawn anew with the deviations of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

_SIGMAS: Final = 4.0
"""Deviations within so many standard errors count as equal."""
_UNIFORM: Final = 1.8
"""Largest value of a uniform parameter, in standard deviations: sqrt 3, and a little."""
_CLEAR: Final = 0.5
"""A rule replaces torch's default if it needs at most this share of its distinct values."""
_EDGE: Final = 10.0
"""Of n uniform numbers the largest is less than the bound by this over n once in exp(10) times."""
_TOLERANCE: Final = 1e-4
"""Of a test for orthogonal weights."""
_USUAL: Final = 0.5
"""What a usual value counts."""


@dataclass(frozen=True, slots=True)
class _Fans:
    """What the deviation of a parameter may depend on."""

    fan_in: int
    fan_out: int
    default: float
    """Torch's standard deviation for the layer; 0: it is constant."""


Rule = Callable[[_Fans], float]
_GAINS: Final = (1.0, 2**0.5, 3**-0.5, 5 / 3, 0.75)
"""Of lecun, he, torch, tanh and selu."""
RuleName = Literal["default", "fan_in", "none", "fan_out", "fan_sum"]
_RULES: Final[dict[RuleName, tuple[Rule, tuple[float, ...]]]] = {
    "default": (lambda fans: fans.default, (1.0,)),
    "fan_in": (lambda fans: fans.fan_in**-0.5, _GAINS),
    "none": (lambda _: 1.0, tuple(k * 10.0**e for k in (1, 2, 5) for e in range(-6, 2))),
    "fan_out": (lambda fans: fans.fan_out**-0.5, _GAINS),
    "fan_sum": (lambda fans: (2 / (fans.fan_in + fans.fan_out)) ** 0.5, _GAINS),
}
"""Name -> deviation at a gain of 1, and usual gains; the first one is taken in doubt."""


@dataclass(eq=False)
class Part:
    """A parameter, or a gate's share of it, in a model."""

    value: Tensor
    """Of one draw."""
    kind: str
    fans: _Fans
    numbers: int
    """How many numbers the deviation comes from."""
    mean: float
    deviation: float
    largest: float
    """Absolute value, over all draws."""
    rule: RuleName = "default"
    gain: float = 1.0

    @property
    def error(self) -> float:
        """Relative standard error of the deviation, at most."""
        return math.sqrt(0.5 / self.numbers)

    @cached_property
    def is_default(self) -> bool:
        """Whether torch's default may have drawn it."""
        if not self.fans.default or self.mean:
            return False
        if self.kind != "Embedding":  # uniform
            share = self.largest / (3**0.5 * self.fans.default)
            if not max(0.0, 1.0 - _EDGE / self.numbers) < share <= 1.0 + 1e-5:
                return False
        if self.numbers == 1:
            return True
        return self.deviation > 0 and _is_close(self.deviation, self.fans.default, self.error)

    @cached_property
    def identity_scale(self) -> float:
        """What it multiplies by if it is a multiple of the identity, else 0."""
        return _identity_scale(self.value)

    @cached_property
    def orthogonal_gain(self) -> float:
        """The norm of its rows or columns if they are orthogonal, else 0."""
        return _orthogonal_gain(self.value)

    @property
    def is_uniform(self) -> bool:
        """Whether it is uniform rather than normal."""
        return self.largest <= _UNIFORM * self.deviation

    @property
    def drawn_deviation(self) -> float:
        """The standard deviation by its rule, at its own shape."""
        return self.gain * _RULES[self.rule][0](self.fans) if self.is_random() else self.deviation

    def is_random(self) -> bool:
        """Whether its deviation suggests a rule."""
        structured = self.identity_scale or self.orthogonal_gain
        return self.deviation > 0 and not structured and not self.is_default

    def fill(self, new: Tensor, fans: _Fans) -> None:
        """Draw it anew into a tensor that holds torch's default."""
        constant = _constant(self.value, new.shape)
        if constant is not None and not (self.numbers == 1 and self.is_default):
            new.copy_(constant)
        elif self.identity_scale:
            new.copy_(_identity(new.shape) * self.identity_scale)
        elif self.orthogonal_gain:
            nn.init.orthogonal_(new, self.orthogonal_gain)
        elif not self.is_default:
            new.uniform_(-(3**0.5), 3**0.5) if self.is_uniform else new.normal_()
            new.mul_(self.gain * _RULES[self.rule][0](fans)).add_(self.mean)


class Initialisation:
    """Draws the parameters of a resized model as those of the given one were drawn."""

    def __init__(self, draws: Sequence[nn.Module], matrices: Iterable[str], keep: bool) -> None:
        """`draws`: models of one factory, or an instance alone; `matrices`: bare parameters that
        are weights; `keep`: a parameter whose shape stays is left as it is."""
        self._keep = keep
        self._parts: dict[str, list[Part]] = {}
        known: dict[int, list[Part]] = {}
        values = [dict(model.named_parameters(remove_duplicate=False)) for model in draws]
        bare = set(matrices)
        for name, parameter in values[0].items():
            if not parameter.numel():
                continue
            path, _, leaf = name.rpartition(".")
            layer = draws[0].get_submodule(path)
            every = torch.stack([found[name].detach() for found in values])
            if id(parameter) not in known:
                known[id(parameter)] = look(layer, leaf, every, name in bare)
            self._parts[name] = known[id(parameter)]
        _find_rules([part for parts in known.values() for part in parts if part.is_random()])

    def parts(self, name: str) -> Sequence[Part]:
        """What the draws show of a parameter, gate by gate; none: it holds no numbers."""
        return self._parts.get(name, ())

    def redraw(self, name: str, old: Tensor, new: Tensor, layer: nn.Module | None = None) -> Tensor:
        """Return the successor of a parameter, at the shape of `new`.

        `layer`: holds `new`, which has torch's default; None for a bare parameter.
        """
        if self._keep and old.shape == new.shape:
            return old.detach()
        if name not in self._parts:
            return new  # it holds no numbers
        parts = self._parts[name]
        fans = _fans(layer, name.rpartition(".")[2], new)
        with torch.no_grad():
            for part, chunk in zip(parts, new.chunk(len(parts)), strict=True):
                part.fill(chunk, fans)
            row = getattr(layer, "padding_idx", None)
            if row is not None and bool((old[row] == old[row, 0]).all()):
                new[row] = old[row, 0]
        return new


def look(layer: nn.Module, leaf: str, every: Tensor, is_matrix: bool) -> list[Part]:
    """Look at a parameter; `every`: its values in all draws."""
    fans = _fans(layer if _kind(layer) else None, leaf, every[0])
    row = getattr(layer, "padding_idx", None)
    if row is not None:
        every = torch.cat([every[:, :row], every[:, row + 1 :]], 1)
    gates = _gates(layer, leaf)
    chunks = every.chunk(gates, 1) if gates > 1 else (every,)  # a single number has no axes
    if _orthogonal_gain(every[0]) and not _identity_scale(chunks[0][0]):
        chunks = (every,)
    kind = _kind(layer) or ("matrix" if is_matrix else "")
    return [_part(chunk, kind, fans) for chunk in chunks]


def _part(every: Tensor, kind: str, fans: _Fans) -> Part:
    # Draws that agree are no more evidence than one.
    numbers = every[0].numel() * (1 if every[0].equal(every[-1]) else len(every))
    mean, deviation = float(every.float().mean()), 0.0
    if bool((every != every.flatten()[0]).any()):
        deviation = float(every.float().std(correction=0))
    if numbers == 1 or abs(mean) <= _SIGMAS * deviation * numbers**-0.5:
        mean = 0.0
    largest = float((every - mean).abs().max())
    return Part(every[0].clone(), kind, fans, numbers, mean, deviation, largest)


def _find_rules(parts: Sequence[Part]) -> None:
    """Set rule and gain of every part."""
    seen = [part.deviation for part in parts if part.kind in ("", "Embedding")]
    for kind in dict.fromkeys(part.kind for part in parts):
        group = [part for part in parts if part.kind == kind]
        found = {
            name: _explained(group, rule, usual, seen if name == "none" else ())
            for name, (rule, usual) in _RULES.items()
            if name != "default" or all(part.fans.default for part in group)
        }
        if not kind:
            found = {"none": found["none"]}
        first = next(iter(found))
        best = min(found, key=lambda name: found[name][0])
        chosen = best if found[best][0] <= _CLEAR * found[first][0] else first
        for part, gain in zip(group, found[chosen][1], strict=True):
            part.rule, part.gain = chosen, gain


def _explained(
    group: Sequence[Part], rule: Rule, usual: Sequence[float], free: Sequence[float]
) -> tuple[float, list[float]]:
    """Return what a rule costs, in distinct gains, and the gain of every part."""
    gains = {i: part.deviation / rule(part.fans) for i, part in enumerate(group)}
    clusters: list[tuple[float, float]] = []  # gain, numbers
    place: dict[int, int] = {}
    for i in sorted(gains, key=lambda i: -group[i].numbers):
        numbers = group[i].numbers
        near = [
            k
            for k, (gain, have) in enumerate(clusters)
            if _is_close(gains[i], gain, math.hypot(group[i].error, (2 * have) ** -0.5))
        ]
        if near:
            place[i] = min(near, key=lambda k: abs(math.log(gains[i] / clusters[k][0])))
            gain, have = clusters[place[i]]
            clusters[place[i]] = (
                (gain * have + gains[i] * numbers) / (have + numbers),
                have + numbers,
            )
        else:
            place[i] = len(clusters)
            clusters.append((gains[i], numbers))
    cost = sum(_price(gain, (2 * have) ** -0.5, usual, free) for gain, have in clusters)
    return cost, [clusters[place[i]][0] for i in range(len(group))]


def _price(gain: float, error: float, usual: Sequence[float], free: Sequence[float]) -> float:
    if any(_is_close(gain, value, 2**0.5 * error) for value in free):
        return 0.0
    return _USUAL if any(_is_close(gain, value, error) for value in usual) else 1.0


def _is_close(a: float, b: float, error: float) -> bool:
    return abs(math.log(a / b)) <= _SIGMAS * error


# ---- layers of torch ---------------------------------------------------------------------------

_KINDS: Final[Mapping[str, tuple[type[nn.Module], ...]]] = {
    "Linear": (nn.Linear, nn.Bilinear),
    "Conv": (_ConvNd,),
    "Embedding": (nn.Embedding, nn.EmbeddingBag),
    "RNN": (nn.RNNBase, nn.RNNCellBase),
    "Attention": (nn.MultiheadAttention,),
}


def _kind(layer: nn.Module) -> str:
    """Kind of a layer that has a fan-in; empty for norms and the user's own modules."""
    return next((kind for kind, types in _KINDS.items() if isinstance(layer, types)), "")


def _gates(layer: nn.Module, leaf: str) -> int:
    """Parts of a parameter, along its first axis, that may be initialised each in its own way."""
    if isinstance(layer, nn.RNNBase | nn.RNNCellBase):
        return max(1, int(getattr(layer, leaf).shape[0]) // int(layer.hidden_size))
    return 3 if isinstance(layer, nn.MultiheadAttention) and leaf.startswith("in_proj") else 1


def _fans(layer: nn.Module | None, leaf: str, value: Tensor) -> _Fans:
    """Return the fans as torch's initialisers count them; a bias has those of its weight."""
    weight = value
    if layer is not None and value.ndim < 2:
        weight = next((p for p in layer.parameters() if p.ndim > 1), value)
    if weight.ndim < 2:
        return _Fans(1, 1, 0.0)
    area = math.prod(weight.shape[2:])
    fan_in, fan_out = weight.shape[1] * area, weight.shape[0] * area
    kind = _kind(layer) if layer is not None else ""
    default = (3 * fan_in) ** -0.5 if kind else 0.0
    if kind == "Embedding":
        default = 1.0
    elif isinstance(layer, nn.RNNBase | nn.RNNCellBase):
        default = (3 * int(layer.hidden_size)) ** -0.5
    elif kind == "Attention":
        default = (2 / (fan_in + fan_out)) ** 0.5 if value.ndim > 1 else 0.0
    return _Fans(fan_in, fan_out, default)


# ---- values ------------------------------------------------------------------------------------


def _constant(value: Tensor, shape: Sequence[int]) -> Tensor | None:
    """Return a value at another shape if it is constant along the axes that change, or entirely."""
    changed = [axis for axis, size in enumerate(shape) if size != value.shape[axis]]
    for axis in changed or range(value.ndim):
        first = value.narrow(axis, 0, 1)
        if not bool((value == first).all()):
            return None
        value = first
    return value.expand(*shape)


def _identity(shape: Sequence[int]) -> Tensor:
    """Return what passes its input on, as a weight of a linear layer or a convolution."""
    empty = torch.zeros(*shape)
    return nn.init.eye_(empty) if empty.ndim == 2 else nn.init.dirac_(empty)


def _identity_scale(value: Tensor) -> float:
    """Return by what a multiple of the identity multiplies, 0 for other values."""
    if not 2 <= value.ndim <= 5 or not 2 <= min(value.shape[:2]) == int(value.count_nonzero()):
        return 0.0
    scale = float(value.sum()) / min(value.shape[:2])
    return scale if value.allclose(_identity(value.shape) * scale) else 0.0


def _orthogonal_gain(value: Tensor) -> float:
    """Return the norm of the rows or columns if they are orthogonal, else 0."""
    if value.ndim < 2 or min(value.shape[0], value[0].numel()) < 2:
        return 0.0
    matrix = value.flatten(1).float()
    matrix = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    squares = matrix.square().sum(1)
    gain = float(squares.mean())
    if gain == 0 or float((squares / gain - 1).abs().max()) > _TOLERANCE:
        return 0.0
    gram = matrix @ matrix.T / gain
    far = (gram - torch.eye(len(gram), dtype=gram.dtype)).abs().max()
    return gain**0.5 if float(far) <= _TOLERANCE else 0.0
