"""Initial weights of a script: drawn as the network of the search draws them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from esper.growing.code.constants import constant_source
from esper.growing.code.docs import INDENT, WIDTH
from esper.growing.code.expressions import short
from esper.growing.code.specs import Value
from esper.kasmina.tracing.initial_weights import Initialisation, Part, look
from esper.kasmina.tracing.planting import seed_folder
from esper.leyline.errors import EsperError

_SIGMAS: Final = 4.0
"""Deviations within so many standard errors count as equal."""
_MEANS: Final = 6.0
"""The same for means; those that are meant to differ from 0 do so by far."""
_FLAT: Final = 1.8
"""Largest value of a uniform parameter, in standard deviations: sqrt 3, and a little."""
_ROUNDED: Final = 0.03
"""By so much a number may be rounded, at most."""


def rounded(number: float, error: float) -> float:
    """A usual number, or a short one, within the sampling error of a deviation.

    >>> rounded(0.019936, 0.005), rounded(0.7071, 0.0001)
    (0.02, 0.7071)
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


class TensorValues:
    """How the parameters and buffers outside of torch's layers are built."""

    def __init__(self, draws: Sequence[nn.Module]) -> None:
        """`draws`: the network with several initial weights."""
        self._states = [_state(model) for model in draws]
        self._saved = set(draws[0].state_dict())
        self._varies = varying(draws)

    def __call__(self, path: str, tensor: Tensor) -> Value:
        """How a tensor is built; raises if its values are no formula."""
        every = torch.stack([state[path].detach() for state in self._states])
        is_parameter = isinstance(tensor, nn.Parameter)
        trains, kept = tensor.requires_grad, path in self._saved
        fixed = bool((every == every[:1]).all()) and (self._varies or not is_parameter)
        form, sizes, number = _form(path, every, fixed or not tensor.is_floating_point())
        return Value(form, sizes, number, is_parameter, trains, kept)


def _state(model: nn.Module) -> dict[str, Tensor]:
    named = (
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    )
    return dict(named)


def varying(draws: Sequence[nn.Module]) -> bool:
    """Whether the weights of the user's model differ from draw to draw: a factory made it."""
    folder = seed_folder(draws[0])
    own = [n for n, _ in draws[0].named_parameters() if not n.startswith(f"{folder}.")]
    first, last = (dict(model.named_parameters()) for model in (draws[0], draws[-1]))
    return any(not first[name].equal(last[name]) for name in own)


def _form(path: str, every: Tensor, fixed: bool) -> tuple[str, tuple[int, ...], float]:
    """(form, sizes, number) of a `Value`."""
    value, sizes = every[0], tuple(every.shape[1:])
    plain = value.dtype == torch.float32 and bool((every == every.flatten()[0]).all())
    if plain and value.numel():
        number = float(value.flatten()[0])
        if number in (0.0, 1.0):
            return ("ones" if number else "zeros"), sizes, math.nan
        return "full", sizes, short(number)
    if fixed:
        source = constant_source(value)
        if source is None:
            raise EsperError(f"{path} holds {value.numel():,} fixed numbers that are no formula")
        return source, (), math.nan
    (part,) = look(nn.Module(), "", every, False)
    if part.identity_scale or part.orthogonal_gain:
        dims = ", ".join(map(str, sizes))
        made = nn.init.eye_ if part.identity_scale else nn.init.orthogonal_
        scale = part.identity_scale or part.orthogonal_gain
        return f"{scale:.6g} * nn.init.{made.__name__}(torch.empty({dims}))", (), math.nan
    if part.mean:
        return _drawn(part, sizes), (), math.nan
    if part.is_uniform:
        return "uniform", sizes, rounded(3**0.5 * part.deviation, part.error)
    return "randn", sizes, rounded(part.deviation, part.error)


def _drawn(part: Part, sizes: tuple[int, ...]) -> str:
    dims = ", ".join(map(str, sizes))
    deviation, mean = rounded(part.deviation, part.error), float(f"{part.mean:.4g}")
    if not part.is_uniform:
        return f"{mean} + {deviation} * torch.randn({dims})"
    bound = rounded(3**0.5 * part.deviation, part.error)
    return f"torch.empty({dims}).uniform_({mean - bound:.6g}, {mean + bound:.6g})"


# ---- layers -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Rule:
    """How one parameter of a layer is drawn: source with {} in its place, part by part."""

    steps: tuple[str, ...]


def init_lines(draws: Sequence[nn.Module], fresh: Sequence[nn.Module]) -> list[str]:
    """Body of a function that draws the weights of `model`; empty: torch's defaults are right.

    `fresh`: what the script builds without it.
    """
    shown, usual = (Initialisation(models, (), keep=False) for models in (draws, fresh))
    varies = varying(draws)
    rules: dict[str, _Rule | None] = {}
    seen: set[int] = set()
    for name, parameter in draws[0].named_parameters():
        owner = draws[0].get_submodule(name.rpartition(".")[0])
        if id(parameter) in seen or not _is_torch(owner):
            continue  # others were built with their values
        seen.add(id(parameter))
        parts, before = shown.parts(name), usual.parts(name)
        if all(_alike(*both) for both in zip(parts, before, strict=True)):
            rules[name] = None
            continue
        fixed = varies and all(
            dict(model.named_parameters())[name].equal(parameter) for model in draws[1:]
        )
        rules[name] = _rule(name, parts, parameter, fixed, getattr(owner, "padding_idx", None))
    return _lines(draws[0], rules)


def _is_torch(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn")


def _alike(one: Part, other: Part) -> bool:
    """Whether two parameters may be draws of the same kind."""
    if not one.deviation or not other.deviation:
        return one.deviation == other.deviation and one.mean == other.mean
    if one.is_default and other.is_default:
        return True
    structure = (bool(one.identity_scale), bool(one.orthogonal_gain))
    if structure != (bool(other.identity_scale), bool(other.orthogonal_gain)):
        return False
    error = math.hypot(one.error, other.error)
    near = abs(math.log(one.deviation / other.deviation)) <= _SIGMAS * error
    apart = abs(one.mean - other.mean) / (one.deviation * 2**0.5 * error)
    return near and apart <= _MEANS and _is_flat(one) == _is_flat(other)


def _is_flat(part: Part) -> bool:
    """Whether it is uniform, even if its mean is not that of the distribution."""
    return part.largest - abs(part.mean) <= _FLAT * part.deviation


def _rule(
    name: str, parts: Sequence[Part], parameter: Tensor, fixed: bool, padding: int | None
) -> _Rule:
    if fixed and bool((parameter != parameter.flatten()[0]).any()):
        source = constant_source(parameter)
        if source is None:
            raise EsperError(f"{name} starts from {parameter.numel():,} fixed numbers")
        return _Rule((f"{{}}.copy_({source})",))
    if len(parts) == 1:
        steps = [_step(parts[0]).format("{}")]
    else:
        size = len(parameter) // len(parts)
        steps = [
            _step(part).format(f"{{}}[{n * size}:{(n + 1) * size}]")
            for n, part in enumerate(parts)
            if not part.is_default
        ]
    if padding is not None and not bool(parameter[padding].any()):
        steps.append(f"{{}}[{padding}].zero_()")
    return _Rule(tuple(steps))


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
        gain = rounded(part.orthogonal_gain, 1e-3)
        return f"nn.init.orthogonal_({{}}{'' if gain == 1 else f', gain={gain}'})"
    return _by_fans(part) or _by_number(part)


def _by_fans(part: Part) -> str | None:
    """Kaiming's and Xavier's initialisation, where they explain the deviation."""
    if part.mean or part.value.ndim < 2:
        return None
    kind = "uniform" if part.is_uniform else "normal"
    if part.rule == "fan_sum":
        gain = rounded(part.gain, part.error)
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
        bound = rounded(3**0.5 * deviation, part.error)
        low, high = (f"{part.mean + sign * bound:.6g}" for sign in (-1, 1))
        return f"nn.init.uniform_({{}}, {low}, {high})"
    mean = f"mean={part.mean:.4g}, " if part.mean else ""
    return f"nn.init.normal_({{}}, {mean}std={rounded(deviation, part.error)})"


# ---- lines --------------------------------------------------------------------------------------


def _lines(model: nn.Module, rules: Mapping[str, _Rule | None]) -> list[str]:
    by_kind: dict[type[nn.Module], dict[str, _Rule]] = {}
    left = {name: rule for name, rule in rules.items() if rule is not None}
    for kind, leaf in _kinds(model, rules):
        mine = [n for n in rules if _matches(model, n, kind, leaf)]
        found = [rules[name] for name in mine]
        common = Counter(rule for rule in found if rule is not None).most_common(1)
        if None in found or not common or common[0][1] < 2:
            continue
        by_kind.setdefault(kind, {})[leaf] = common[0][0]
        for name in mine:
            if left.get(name) == common[0][0]:
                del left[name]
    return [*_loops(model, by_kind), *_by_name(left)]


def _kinds(
    model: nn.Module, rules: Mapping[str, _Rule | None]
) -> list[tuple[type[nn.Module], str]]:
    found: dict[tuple[type[nn.Module], str], None] = {}
    for name, rule in rules.items():
        owner, _, leaf = name.rpartition(".")
        kind = type(model.get_submodule(owner))
        if rule is not None and getattr(nn, kind.__name__, None) is kind:
            found[kind, leaf] = None
    return list(found)


def _matches(model: nn.Module, name: str, kind: type[nn.Module], leaf: str) -> bool:
    owner, _, own = name.rpartition(".")
    return own == leaf and isinstance(model.get_submodule(owner), kind)


def _loops(model: nn.Module, by_kind: Mapping[type[nn.Module], Mapping[str, _Rule]]) -> list[str]:
    if not by_kind:
        return []
    lines, word = ["for layer in model.modules():"], "if"
    for kind, leaves in by_kind.items():
        lines.append(f"{INDENT}{word} isinstance(layer, nn.{kind.__name__}):")
        for leaf, rule in leaves.items():
            lacking = any(
                isinstance(m, kind) and getattr(m, leaf, None) is None for m in model.modules()
            )
            space = INDENT * (3 if lacking else 2)
            if lacking:
                lines.append(f"{INDENT * 2}if layer.{leaf} is not None:")
            lines += [f"{space}{step.format(f'layer.{leaf}')}" for step in rule.steps]
        word = "if"
    return lines


def _by_name(rules: Mapping[str, _Rule]) -> list[str]:
    groups: dict[_Rule, list[str]] = {}
    for name, rule in rules.items():
        groups.setdefault(rule, []).append(name)
    lines: list[str] = []
    for rule, names in groups.items():
        one = [step.format(f'model.get_parameter("{names[0]}")') for step in rule.steps]
        if len(names) == 1 and max(map(len, one)) + len(INDENT) <= WIDTH:
            lines += one
            continue
        lines += [f"for name in {_listed(names)}:"]
        lines += [f"{INDENT}{step.format('model.get_parameter(name)')}" for step in rule.steps]
    return lines


def _listed(names: Sequence[str]) -> str:
    whole = "[" + ", ".join(f'"{name}"' for name in names) + "]"
    if len(whole) + 20 <= WIDTH:
        return whole
    inner = "\n".join(f'{INDENT}"{name}",' for name in names)
    return f"[\n{inner}\n]"
