"""Simplify a traced member: remove identities, fold scales, merge seeds linear at each position.

Every pass preserves the function. User host modules are not changed: only modules below `seeds`
(path prefixes that end in a dot) are.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

_SPACE: dict[type[nn.Module], int] = {
    nn.Linear: 0,
    nn.LayerNorm: 0,
    nn.Conv1d: 1,
    nn.Conv2d: 2,
    nn.GroupNorm: 2,
    nn.BatchNorm2d: 2,
}
"""Modules that end in a factor (and offset) per channel -> number of axes after the channels (of a
group norm: unless it follows a Conv1d)."""
_Linear = nn.Linear | nn.Conv1d | nn.Conv2d


def simplify(plain: fx.GraphModule, seeds: Sequence[str]) -> None:
    """Drop what does nothing, fold scales, and merge linear seeds; `seeds`: prefixes of paths."""
    _drop_identities(plain)
    _fold_scales(plain, seeds)
    _merge_linear_seeds(plain, seeds)


def _drop_identities(plain: fx.GraphModule) -> None:
    """Remove modules that return their input."""
    for node in list(plain.graph.nodes):
        if _is_unary_call(node) and _is_identity(plain.get_submodule(node.target)):
            node.replace_all_uses_with(node.args[0])
            plain.graph.erase_node(node)


def _is_identity(module: nn.Module) -> bool:
    return type(module) is nn.Identity or (type(module) is nn.Dropout and module.p == 0)


# ---- scales -------------------------------------------------------------------------------


def _fold_scales(plain: fx.GraphModule, seeds: Sequence[str]) -> None:
    """Fold constants and per-channel scales of seeds into the preceding layer.

    In graph order, so that a seed's own scale comes before its alpha.
    """
    for node in list(plain.graph.nodes):
        for value, factor in _operands(node, operator.mul, torch.mul):
            scale = _scale(plain, factor, seeds)
            if scale is not None and (_is_one(scale) or _absorb(plain, value, scale, seeds)):
                node.replace_all_uses_with(value)
                plain.graph.erase_node(node)
                break
    plain.graph.eliminate_dead_code(has_effect)


def _scale(plain: fx.GraphModule, factor: object, seeds: Sequence[str]) -> float | Tensor | None:
    """Return a number, or a seed's parameter that nothing else uses; otherwise None."""
    if isinstance(factor, int | float):
        return float(factor)
    if isinstance(factor, fx.Node) and factor.op == "get_attr" and len(factor.users) == 1:
        path, name = str(factor.target).rpartition(".")[::2]
        parameter = plain.get_submodule(path)._parameters.get(name)
        if _is_in_seed(factor, seeds) and parameter is not None and _unshared(plain, [parameter]):
            return parameter
    return None


def _is_one(scale: float | Tensor) -> bool:
    return not isinstance(scale, Tensor) and scale == 1


def _absorb(
    plain: fx.GraphModule, node: fx.Node, scale: float | Tensor, seeds: Sequence[str]
) -> bool:
    """Scale the result of `node` at its source, if possible and if nothing else uses it."""
    if len(node.users) != 1:
        return False
    if node.op == "call_module":
        module = _exclusive_module(plain, node, seeds)
        return module is not None and _scale_affine(module, scale, _space(plain, node))
    for value, factor in _operands(node, operator.mul, torch.mul):
        inner = _scale(plain, factor, seeds)
        if isinstance(inner, Tensor) and _scale_parameter(inner, scale):
            return True
        if _absorb(plain, value, scale, seeds):
            return True
    return False


def _space(plain: fx.GraphModule, node: fx.Node) -> int | None:
    """Return the number of axes after the channels in the result of a module; None: unknown."""
    module, given = plain.get_submodule(str(node.target)), node.args[0]
    before = isinstance(given, fx.Node) and _is_unary_call(given) and given.target
    if before and isinstance(module, nn.GroupNorm):
        first = plain.get_submodule(str(before))
        return 1 if isinstance(first, nn.Conv1d) else 2
    return _SPACE.get(type(module))


def _scale_affine(module: nn.Module, scale: float | Tensor, space: int | None) -> bool:
    """Scale the output channels of a module with a weight and optional bias."""
    weight, bias = module._parameters.get("weight"), module._parameters.get("bias")
    if space is None or weight is None:
        return False
    if not isinstance(module, _Linear) and weight.ndim != 1:
        return False
    if isinstance(scale, Tensor):
        if tuple(scale.shape) != (weight.shape[0], *[1] * space):
            return False
        if any(p is not None and p.requires_grad != scale.requires_grad for p in (weight, bias)):
            return False
    with torch.no_grad():
        for parameter in (weight, bias):
            if parameter is not None:
                shaped = (
                    scale.view(-1, *[1] * (parameter.ndim - 1))
                    if isinstance(scale, Tensor)
                    else scale
                )
                parameter.mul_(shaped)
    return True


def _scale_parameter(parameter: Tensor, scale: float | Tensor) -> bool:
    if isinstance(scale, Tensor) and (
        scale.shape != parameter.shape or scale.requires_grad != parameter.requires_grad
    ):
        return False
    with torch.no_grad():
        parameter.mul_(scale)
    return True


# ---- linear seeds -------------------------------------------------------------------------


def _merge_linear_seeds(plain: fx.GraphModule, seeds: Sequence[str]) -> None:
    """Replace `h + W h` by `(I + W) h` if neither parameters nor MACs increase."""
    for node in list(plain.graph.nodes):
        for h, delta in _operands(node, operator.add, torch.add):
            chain = _linear_chain(plain, delta, h, seeds)
            merged = _merged([module for _, module in chain])
            if merged is None:
                continue
            last = chain[-1][0]
            path, name = str(last.target).rpartition(".")[::2]
            setattr(plain.get_submodule(path), name, merged)
            last.args = (h,)
            node.replace_all_uses_with(last)
            plain.graph.erase_node(node)
            break
    plain.graph.eliminate_dead_code(has_effect)


def _linear_chain(
    plain: fx.GraphModule, end: object, start: object, seeds: Sequence[str]
) -> list[tuple[fx.Node, _Linear]]:
    """Return the linear layers from `start` to `end`; empty if there is anything else."""
    chain: list[tuple[fx.Node, _Linear]] = []
    while isinstance(end, fx.Node) and end is not start:
        module = _exclusive_module(plain, end, seeds)
        if len(end.users) != 1 or not isinstance(module, _Linear):
            return []
        chain.insert(0, (end, module))
        end = end.args[0]
    return chain


def _merged(modules: Sequence[_Linear]) -> _Linear | None:
    """Return one module for input plus chain; None if that is not equal or costs more.

    All see one position at a time: between others, padding would change the result. Their weights
    have as many axes: `nn.Linear` maps the last one, a convolution the channels.
    """
    trained = {p.requires_grad for module in modules for p in module.parameters()}
    kinds = {module.weight.ndim for module in modules}
    if len(trained) != 1 or len(kinds) != 1 or not all(map(_is_pointwise, modules)):
        return None
    first = modules[0].weight
    identity = torch.eye(first.shape[1], dtype=torch.float64, device=first.device)
    weight, bias = identity, None
    for module in modules:
        matrix = module.weight.detach().double().flatten(1)
        weight, bias = matrix @ weight, None if bias is None else matrix @ bias
        if module.bias is not None:
            bias = module.bias.detach().double() + (0 if bias is None else bias)
    if len(weight) != len(identity):
        return None
    merged = _like(modules[-1], weight + identity, bias)
    # MACs are weights times positions.
    dearer = merged.weight.numel() > sum(module.weight.numel() for module in modules)
    larger = _count(merged) > sum(map(_count, modules))
    return None if dearer or larger else merged


def _is_pointwise(module: _Linear) -> bool:
    if isinstance(module, nn.Linear):
        return True
    sizes = {*module.kernel_size, *module.stride, module.groups}
    return sizes == {1} and not any(module.padding)


def _like(module: _Linear, weight: Tensor, bias: Tensor | None) -> _Linear:
    """Return a layer like a module, with other values."""
    kind: Any = next(k for k in (nn.Linear, nn.Conv1d, nn.Conv2d) if isinstance(module, k))
    sides = () if kind is nn.Linear else (1,)
    made: _Linear = kind(*weight.shape, *sides, bias=bias is not None, device="meta")
    values = {"weight": weight.view(*weight.shape, *module.weight.shape[2:]), "bias": bias}
    for name, value in values.items():
        if value is not None:
            typed = value.to(module.weight.dtype)
            setattr(made, name, nn.Parameter(typed, module.weight.requires_grad))
    return made.train(module.training)


def _count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


# ---- reading the graph --------------------------------------------------------------------------


def _operands(node: fx.Node, *functions: object) -> Iterator[tuple[fx.Node, object]]:
    """Yield the operands of a plain `a * b` or `a + b` in both orders (not of `a * a`)."""
    if node.op != "call_function" or node.target not in functions:
        return
    if len(node.args) == 2 and not node.kwargs and node.args[0] is not node.args[1]:
        for one, other in (node.args, node.args[::-1]):
            if isinstance(one, fx.Node):
                yield one, other


def _is_unary_call(node: fx.Node) -> bool:
    """Whether a node calls a module with a single input."""
    return node.op == "call_module" and len(node.args) == 1 and not node.kwargs


def _is_in_seed(node: fx.Node, seeds: Sequence[str]) -> bool:
    return str(node.target).startswith(tuple(seeds))


def _exclusive_module(
    plain: fx.GraphModule, node: fx.Node, seeds: Sequence[str]
) -> nn.Module | None:
    """Return the seed module a node calls, if nothing else uses it or its parameters."""
    if not _is_unary_call(node) or not _is_in_seed(node, seeds):
        return None
    path = str(node.target)
    module = plain.get_submodule(path)
    uses = [n for n in plain.graph.nodes if n.op in ("call_module", "get_attr")]
    others = [n for n in uses if n is not node and f"{n.target}.".startswith(f"{path}.")]
    hooked = module._forward_hooks or module._forward_pre_hooks
    if others or hooked or not _unshared(plain, list(module.parameters())):
        return None
    return module


def _unshared(plain: nn.Module, parameters: Sequence[Tensor]) -> bool:
    """Whether no parameter is used elsewhere: tied ones must keep their value."""
    wanted = {id(p) for p in parameters}
    found = [p for _, p in plain.named_parameters(remove_duplicate=False) if id(p) in wanted]
    return len(found) == len(wanted)


def has_effect(node: fx.Node) -> bool:
    """Whether a node matters without being read: writes in place reach others by views, buffers."""
    method = str(node.target) if node.op == "call_method" else ""
    return node.is_impure() or (method.endswith("_") and not method.endswith("__"))
