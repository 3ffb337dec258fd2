"""A trained network as the user gets it: in eval mode, scales folded, linear seeds merged."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, fx, nn

from esper.kasmina.plain.plain_graph import GraphCall, LeafTracer, fold
from esper.kasmina.tracing.hooks import pick_hook
from esper.kasmina.tracing.planting import PickOutput, copy_inputs, seed_folder


def finished_model(network: nn.Module) -> nn.Module:
    """Return a copy of a planted network in eval mode, with no more parameters than it needs.

    It computes what `network.eval()` does. A model that runs by hooks stays of the user's class.
    """
    whole = copy.deepcopy(network).eval()
    folder = seed_folder(whole)
    if not isinstance(whole, fx.GraphModule):
        _finish_hooks(whole, folder)
        return whole
    seeds = () if folder is None else (f"{folder}.",)
    plain = fold(whole, seeds, type(network).__name__, _GraphTracer())
    unread = [n for n in whole.graph.nodes if n.op == "get_attr" and not n.users]
    named = {str(node.target): operator.attrgetter(str(node.target))(whole) for node in unread}
    _keep_unused(plain.graph, plain, named)
    plain.recompile()
    return plain.eval()


def _keep_unused(graph: fx.Graph, root: nn.Module, unused: Mapping[str, Tensor]) -> None:
    """Keep tensors that the graph does not use, as in the user's model."""
    first = next(node for node in graph.nodes if node.op != "placeholder")
    for name, value in unused.items():
        if _install(root, name, value):
            with graph.inserting_before(first):
                graph.create_node(
                    "get_attr", name
                )  # without users: only so does a copy or a pickle keep it


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
    if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
        root.register_buffer(name, value)
    else:
        setattr(root, name, value)
    return True


class _GraphTracer(LeafTracer):
    """Traces a graph once more; functions that cannot be traced are recorded as they are."""

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        """As in torch, with a second try node by node."""
        function, args = super().create_args_for_root(root_fn, is_module, concrete_args)

        def forward(root: fx.GraphModule, *values: Any) -> Any:
            nodes = len(self.graph.nodes)
            try:
                return function(root, *values)
            except Exception:  # user code may fail on a proxy in any way
                self._undo(nodes, 0)
                return GraphCall(root, self).run(*values)

        return forward, args


def _finish_hooks(model: nn.Module, folder: str | None) -> None:
    """Fold the seeds of a model that runs by hooks, in place."""
    held = {} if folder is None else dict(model.get_submodule(folder).named_children())
    done: dict[nn.Module, nn.Module] = {}
    for slot, seed in held.items():
        done[seed] = fold(seed, ("",), "Seed", _GraphTracer())
        model.get_submodule(str(folder)).add_module(slot, done[seed])
    for part in model.modules():
        for number, hook in list(part._forward_hooks.items()):
            if isinstance(hook, nn.Module) and hook in done:
                part._forward_hooks[number] = done[hook]
    for number, hook in list(model._forward_hooks.items()):
        if isinstance(hook, PickOutput):
            del model._forward_hooks[number]
            if hook.key.key is not None:
                model.register_forward_hook(pick_hook(hook.key))
    for number, before in list(model._forward_pre_hooks.items()):
        if before is copy_inputs:
            del model._forward_pre_hooks[number]
            model._forward_pre_hooks_with_kwargs.pop(number, None)
