"""Initial weights of a script: drawn as the network of the search draws them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor, nn

from esper.growing.code.constants import constant_source
from esper.growing.code.expressions import short
from esper.growing.code.parts import INDENT, WIDTH, Call, Source, lines, sizes
from esper.kasmina.tracing.initial_weights import Initialisation, Part, look
from esper.kasmina.tracing.planting import seed_folder
from esper.leyline.errors import EsperError

_FEW: Final = 64
"""Up to so many numbers a deviation counts as torch's unless it is far from it."""
_SIGMAS: Final = 4.0
"""Standard errors of a deviation that are far."""
_ROUNDED: Final = 0.03
"""By so much a number may be rounded, at most."""


def _rounded(number: float, error: float) -> float:
    """A usual number, or a short one, within the sampling error of a deviation.

    >>> _rounded(0.019936, 0.005), _rounded(0.7071, 0.0001)
    (0.02, 0.707)
    """
    exponent = math.floor(math.log10(number))
    for usual in (1.0, 2.0, 5.0, 10.0):
        value = float(f"{usual * 10.0**exponent:.3g}")
        if abs(value / number - 1.0) <= 2.0 * error:
            return value
    for digits in range(1, 6):
        short = float(f"{number:.{digits}g}")
        if abs(short / number - 1.0) <= min(_ROUNDED, 3.0 * error):
            return short
    return float(f"{number:.6g}")


# ---- tensors that are no layer's ----------------------------------------------------------------


def tensor_part(draws: Sequence[nn.Module]) -> Callable[[str, Tensor], Call]:
    """How parameters and buffers outside of torch's layers are built; `draws`: the network with
    several initial weights."""
    drawn = _drawn_buffers(draws)

    def part(path: str, tensor: Tensor) -> Call:
        kind = "" if tensor.dtype == torch.float32 else f", dtype={tensor.dtype}"
        if isinstance(tensor, nn.Parameter):
            trains = "" if tensor.requires_grad else ", False"
            return Call("nn.Parameter(torch.zeros(", sizes(tensor), f"{kind}){trains})")
        if path in drawn:
            zeros = f"torch.zeros({tuple(tensor.shape)}{kind})"
            return Call("nn.Buffer(", {"": Source(drawn[path].format(zeros))})
        return Call("nn.Buffer(", {"": Source(_fixed(path, tensor))})

    return part


def _fixed(path: str, tensor: Tensor) -> str:
    source = constant_source(tensor)
    if source is None:
        raise EsperError(f"{path} holds {tensor.numel():,} fixed numbers that are no formula")
    return source


def _drawn_buffers(draws: Sequence[nn.Module]) -> dict[str, str]:
    """Source that draws a buffer, with {} in the place of its tensor, by name.

    Of those that differ between draws; the user's class draws those of its own layers.
    """
    found = {}
    for name, value in draws[0].named_buffers():
        if value.is_floating_point() and _is_torch(_owner(draws[0], name)):
            every = torch.stack([model.get_buffer(name) for model in draws])
            if not all(one.equal(value) for one in every):
                (part,) = look(nn.Module(), "", every, False)
                part.rule, part.gain = "none", part.deviation
                found[name] = _step(part)
    return found


def _owner(model: nn.Module, name: str) -> nn.Module:
    return model.get_submodule(name.rpartition(".")[0])


def _is_torch(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.")


def _varying(draws: Sequence[nn.Module]) -> bool:
    """Whether the weights of the user's model differ from draw to draw: a factory made it."""
    folder = seed_folder(draws[0])
    own = [n for n, _ in draws[0].named_parameters() if not n.startswith(f"{folder}.")]
    first, last = (dict(model.named_parameters()) for model in (draws[0], draws[-1]))
    return any(not first[name].equal(last[name]) for name in own)


# ---- what is drawn ------------------------------------------------------------------------------

_Rule = tuple[str, ...]
"""How a tensor is drawn: source with {} in its place, part by part; none: as torch does."""


def init_lines(draws: Sequence[nn.Module], fresh: nn.Module) -> list[str]:
    """Body of a function that draws the weights of `model`; empty: torch's defaults are right.

    `fresh`: what the script builds without it.
    """
    shown, varies = Initialisation(draws, (), keep=False), _varying(draws)
    named = [dict(model.named_parameters()) for model in draws]
    rules: dict[str, _Rule] = {}
    for name, value in named[0].items():
        owner = _owner(draws[0], name)
        if not value.numel() or not _is_torch(owner):
            continue  # the user's class draws them
        fixed = varies and all(one[name].equal(value) for one in named[1:])
        if fixed and bool((value != value.flatten()[0]).any()):
            rules[name] = (f"{{}}.copy_({_fixed(name, value)})",)
            continue
        padding = getattr(owner, "padding_idx", None)
        rules[name] = _rule(shown.parts(name), value, fresh.get_parameter(name), padding)
    return _lines(draws[0], rules)


def _rule(parts: Sequence[Part], value: Tensor, fresh: Tensor, padding: int | None) -> _Rule:
    """The calls that draw the parts of a tensor which are not right as they are."""
    chunks = fresh.chunk(len(parts)) if len(parts) > 1 else [fresh]
    steps = []
    for number, (part, chunk) in enumerate(zip(parts, chunks, strict=True)):
        if not _is_right(part, chunk):
            place = ""
            if len(parts) > 1:
                place = f"[{number * len(chunk)}:{(number + 1) * len(chunk)}]"
            steps.append(_step(part).format(f"{{}}{place}"))
    if steps and padding is not None and not bool(value[padding].any()):
        steps.append(f"{{}}[{padding}].zero_()")
    return tuple(steps)


def _is_right(part: Part, fresh: Tensor) -> bool:
    """Whether a part is drawn as torch does."""
    if part.deviation and part.fans.default and part.numbers <= _FEW:
        return abs(math.log(part.deviation / part.fans.default)) <= _SIGMAS * part.error
    if part.deviation:
        return part.is_default
    return bool((fresh == part.value.flatten()[0]).all())


def _step(part: Part) -> str:
    """The call that draws a part, with {} in the place of its tensor."""
    if not part.deviation:
        number = float(part.value.flatten()[0])
        if number in (0.0, 1.0):
            return f"nn.init.{'ones' if number else 'zeros'}_({{}})"
        return f"nn.init.constant_({{}}, {short(number)})"
    if part.identity_scale:
        kind = "eye_" if part.value.ndim == 2 else "dirac_"
        scale = "" if part.identity_scale == 1 else f".mul_({part.identity_scale:.6g})"
        return f"nn.init.{kind}({{}}){scale}"
    if part.orthogonal_gain:
        gain = _rounded(part.orthogonal_gain, 1e-3)
        return f"nn.init.orthogonal_({{}}{'' if gain == 1 else f', gain={gain}'})"
    return _by_fans(part) or _by_number(part)


def _by_fans(part: Part) -> str | None:
    """Kaiming's and Xavier's initialisation, where they explain the deviation."""
    if part.mean or part.value.ndim < 2:
        return None
    kind = "uniform" if part.is_uniform else "normal"
    if part.rule == "fan_sum":
        gain = _rounded(part.gain, part.error)
        return f"nn.init.xavier_{kind}_({{}}{'' if gain == 1 else f', gain={gain}'})"
    names = {1.0: "linear", 2**0.5: "relu"}
    for gain, name in names.items():
        if part.rule in ("fan_in", "fan_out") and abs(part.gain / gain - 1) <= _ROUNDED:
            mode = ', mode="fan_out"' if part.rule == "fan_out" else ""
            return f'nn.init.kaiming_{kind}_({{}}{mode}, nonlinearity="{name}")'
    return None


def _by_number(part: Part) -> str:
    deviation = part.drawn_deviation
    if part.is_uniform:
        bound = _rounded(3**0.5 * deviation, part.error)
        low, high = (f"{part.mean + sign * bound:.6g}" for sign in (-1, 1))
        return f"nn.init.uniform_({{}}, {low}, {high})"
    mean = f"mean={part.mean:.4g}, " if part.mean else ""
    return f"nn.init.normal_({{}}, {mean}std={_rounded(deviation, part.error)})"


# ---- lines --------------------------------------------------------------------------------------


def _lines(model: nn.Module, rules: Mapping[str, _Rule]) -> list[str]:
    """The calls, for all layers of a kind where most are drawn alike, then by name."""
    left = {name: rule for name, rule in rules.items() if rule}
    loops = []
    for kind, leaf in dict.fromkeys(_kind_and_leaf(model, name) for name in left):
        mine = [n for n in rules if _leaf_of(model, n, kind) == leaf]
        common, count = Counter(rules[name] for name in mine).most_common(1)[0]
        if _is_layer(model, kind) and count > 1 and all(rules[name] for name in mine):
            loops += _loop(model, kind, leaf, common)
            left = {n: rule for n, rule in left.items() if n not in mine or rule != common}
    if loops:
        loops.insert(0, "for layer in model.modules():")
    groups: dict[_Rule, list[str]] = {}
    for name, rule in left.items():
        groups.setdefault(rule, []).append(name)
    return [*loops, *(line for rule, names in groups.items() for line in _by_name(rule, names))]


def _is_layer(model: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether `isinstance` with this kind finds layers of torch and nothing else.

    Containers of parameters match too much, and a user's subclass draws its weights itself.
    """
    holders = (nn.Module, nn.ParameterList, nn.ParameterDict)
    named = getattr(nn, kind.__name__, None) is kind and kind not in holders
    return named and all(_is_torch(layer) for layer in model.modules() if isinstance(layer, kind))


def _kind_and_leaf(model: nn.Module, name: str) -> tuple[type[nn.Module], str]:
    return type(_owner(model, name)), name.rpartition(".")[2]


def _leaf_of(model: nn.Module, name: str, kind: type[nn.Module]) -> str:
    """Name of a tensor in its layer; empty: that is of another kind."""
    found, leaf = _kind_and_leaf(model, name)
    return leaf if issubclass(found, kind) else ""


def _loop(model: nn.Module, kind: type[nn.Module], leaf: str, rule: _Rule) -> list[str]:
    layers = [layer for layer in model.modules() if isinstance(layer, kind)]
    lacking = any(getattr(layer, leaf, None) is None for layer in layers)
    given = f" and layer.{leaf} is not None" if lacking else ""
    steps = [f"{INDENT * 2}{step.format(f'layer.{leaf}')}" for step in rule]
    return [f"{INDENT}if isinstance(layer, nn.{kind.__name__}){given}:", *steps]


def _by_name(rule: _Rule, names: Sequence[str]) -> list[str]:
    one = [step.format(f'model.get_parameter("{names[0]}")') for step in rule]
    if len(names) == 1 and max(map(len, one)) + len(INDENT) <= WIDTH:
        return one
    every = Call("[", {name: name for name in names}, "]:")
    steps = [f"{INDENT}{step.format('model.get_parameter(name)')}" for step in rule]
    return [*lines("for name in ", every, 0), *steps]
