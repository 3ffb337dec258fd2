"""A grown member as a plain module that takes the raw inputs of the user's model."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, fx, nn

from esper.kasmina.tracing.hook_plain import grown_model
from esper.kasmina.tracing.hooks import HookedHost
from esper.kasmina.tracing.host import HostTrace, TracedHost
from esper.kasmina.tracing.inputs import Inputs
from esper.leyline.errors import EsperError

if TYPE_CHECKING:
    from esper.kasmina.export.member import MorphogeneticModel

_PREFIX = "segment"
"""`to_plain` puts the modules of the host's segments below `segment0`, `segment1`, ..."""


def plain_model(host_trace: HostTrace, member: MorphogeneticModel) -> nn.Module:
    """Return a member as a graph of torch modules, in eval mode, with parameters of its own.

    It is called as the user's model is, and names parameters as that does; seeds are under `seeds`.
    A model that runs by hooks stays of the user's class, with seeds as forward hooks.
    """
    host = member.host
    if isinstance(host, HookedHost):
        return grown_model(host, member.seeds, member.slots)
    if not isinstance(host, TracedHost):
        raise EsperError(f"member of {type(host).__name__}: give one of the traced host's members")
    plain = member.to_plain()
    untraced = plain.meta["untraced"]
    root, names = _with_user_names(plain)
    take_raw_inputs(plain.graph, host_trace.inputs)
    keep_unused(plain.graph, root, _unused(host, host_trace))
    out = fx.GraphModule(root, plain.graph, f"Plain{host_trace.name}")
    out.meta["untraced"] = tuple(names.get(path, path) for path in untraced)
    out.graph.lint()
    return out.eval()


def _with_user_names(plain: fx.GraphModule) -> tuple[nn.Module, dict[str, str]]:
    """Return a module tree with the user's paths, and the new path of each old one."""
    root = nn.Module()
    new: dict[str, str] = {}
    for node in plain.graph.nodes:
        if node.op not in ("call_module", "get_attr"):
            continue
        old = str(node.target)
        if old not in new:
            value = operator.attrgetter(old)(plain)
            head, _, rest = old.partition(".")
            is_host = head.startswith(_PREFIX) and head.removeprefix(_PREFIX).isdigit()
            path = rest if is_host and rest else old
            new[old] = path if _install(root, path, value) else old
            if new[old] is old and not _install(root, old, value):
                raise EsperError(f"two parts of the plain model are called {old!r}")
        node.target = new[old]
    return root, new


def _install(root: nn.Module, path: str, value: object) -> bool:
    """Put a module or tensor at a path; False if another one is there."""
    *above, name = path.split(".")
    for part in above:
        if part not in root._modules:
            if hasattr(root, part):
                return False
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    found = getattr(root, name, None)
    if found is not None:
        return found is value
    if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
        root.register_buffer(name, value)
    else:
        setattr(root, name, value)
    return True


def take_raw_inputs(graph: fx.Graph, inputs: Inputs) -> None:
    """Replace the packed input by the raw ones."""
    packed = next(node for node in graph.nodes if node.op == "placeholder")
    if not inputs.packed and inputs.form in ("tensor", "positional"):
        return
    with graph.inserting_before(packed):
        if inputs.form == "dict":
            batch = graph.placeholder("batch")
            raw = [graph.call_function(operator.getitem, (batch, s.name)) for s in inputs.specs]
        else:
            raw = [graph.placeholder(spec.name) for spec in inputs.specs]
    if not inputs.packed:
        packed.replace_all_uses_with(raw[0])
    else:
        for node in list(packed.users):
            if not _replace_unpacked(graph, node, inputs, raw):
                raise EsperError("the packed input is read in a way that is not known")
    graph.erase_node(packed)


def _replace_unpacked(graph: fx.Graph, part: fx.Node, inputs: Inputs, raw: list[fx.Node]) -> bool:
    """Replace slice, shape and dtype of one input (`inputs.unpack_one`) by the raw one."""
    for columns, value in zip(inputs.columns(), raw, strict=True):
        if part.target is operator.getitem and part.args[1] == (slice(None), slice(*columns)):
            shaped = next(iter(part.users))
            typed = next(iter(shaped.users))
            typed.replace_all_uses_with(value)
            for node in (typed, shaped, part):
                graph.erase_node(node)
            return True
    return False


def _unused(host: TracedHost, host_trace: HostTrace) -> dict[str, Tensor]:
    """Return copies of what the user's model has and the graph does not use."""
    state = dict((*host.named_parameters(), *host.named_buffers()))
    found: dict[str, Tensor] = {}
    for name in host.unused:
        value: Tensor = state[name].detach().clone()
        parameter = isinstance(state[name], nn.Parameter)
        found[name] = nn.Parameter(value, name in host_trace.trainable) if parameter else value
    return found


def keep_unused(graph: fx.Graph, root: nn.Module, unused: Mapping[str, Tensor]) -> None:
    """Keep tensors that the graph does not use, as in the user's model."""
    first = next(node for node in graph.nodes if node.op != "placeholder")
    for name, value in unused.items():
        if _install(root, name, value):
            with graph.inserting_before(first):
                graph.create_node(
                    "get_attr", name
                )  # without users: only so does a copy or a pickle keep it
