"""Networks as a description and tensors: what it holds, and what a doctored one can do: nothing."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from esper.kasmina.plain_saves import load_plain, plain_example, save_plain
from esper.kasmina.plain_saves import vocabulary as words
from esper.leyline.errors import EsperError
from esper.storage.sealed_json import seal
from support import refused

IMAGES, SIGNALS, VOLUMES = torch.randn(2, 4, 8, 8), torch.randn(2, 4, 8), torch.randn(2, 4, 4, 4, 4)
VECTORS, TOKENS = torch.randn(2, 4), torch.tensor([[0, 1, 2], [3, 4, 5]])
BY_DIMENSION = {"1d": SIGNALS, "2d": IMAGES, "3d": VOLUMES}
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "Linear": (4, 3, False), "Embedding": (9, 4, 1), "GroupNorm": (2, 4), "LayerNorm": (8, 1e-3),
    "RMSNorm": (8,), "LSTM": (8, 5, 2), "GRU": (8, 5), "RNN": (8, 5), "LSTMCell": (4, 3),
    "GRUCell": (4, 3), "RNNCell": (4, 3), "Unflatten": (1, (2, 2)), "Fold": ((4, 4), 2),
    "Unfold": (2,), "PixelShuffle": (2,), "PixelUnshuffle": (2,), "ChannelShuffle": (2,),
    "Threshold": (0.1, -1.0), "LocalResponseNorm": (2,), "TransformerEncoderLayer": (8, 2, 6),
    "MultiheadAttention": (8, 2), "Bilinear": (4, 4, 3), "Softmax": (1,), "LogSoftmax": (1,),
    "Softmin": (1,), "Upsample": (None, 2.0, "nearest"), "UpsamplingBilinear2d": (None, 2),
    "UpsamplingNearest2d": (None, 2), "PReLU": (4,), "Hardtanh": (-2.0, 3.0),
    "Dropout": (0.3, True), "GELU": ("tanh",),
}  # fmt: skip
INPUTS = {
    "Embedding": TOKENS, "Linear": VECTORS, "LSTMCell": VECTORS, "GRUCell": VECTORS,
    "RNNCell": VECTORS, "Bilinear": VECTORS, "Unflatten": VECTORS, "Fold": torch.randn(2, 16, 9),
    "LayerNorm": SIGNALS, "RMSNorm": SIGNALS, "LSTM": SIGNALS, "GRU": SIGNALS, "RNN": SIGNALS,
    "TransformerEncoderLayer": SIGNALS, "MultiheadAttention": SIGNALS,
}  # fmt: skip


def layer_of(kind: str) -> nn.Module:
    build: Any = words.LAYERS[kind]
    if kind in ARGUMENTS:
        return build(*ARGUMENTS[kind])
    if "Conv" in kind:
        return build(4, 6, 3, stride=2, padding=1, groups=2)
    if "Norm" in kind:
        return build(4)
    if "Pad" in kind:
        return build(2, 0.5) if "Constant" in kind else build(2)
    if "LPPool" in kind:
        return build(2, 2)
    return build(2) if "Pool" in kind else build()


def graph_of(layer: nn.Module, kind: str = "") -> fx.GraphModule:
    """A model that calls a layer, and returns its first output."""
    root, graph = nn.Module(), fx.Graph()
    root.add_module("layer", layer)
    x = graph.placeholder("x")
    count = {"MultiheadAttention": 3, "Bilinear": 2, "CosineSimilarity": 2, "PairwiseDistance": 2}
    out = graph.call_module("layer", (x,) * count.get(kind, 1))
    several = kind in ("LSTM", "GRU", "RNN", "LSTMCell", "MultiheadAttention")
    graph.output(graph.call_function(words.FUNCTIONS["operator.getitem"], (out, 0)) if several
                 else out)  # fmt: skip
    return fx.GraphModule(root, graph).eval()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", [kind for kind in words.LAYERS if kind != "TrainingFlag"])
def test_every_layer_comes_back_as_it_was(kind, tmp_path):
    by_dimension = next((x for end, x in BY_DIMENSION.items() if kind.endswith(end)), IMAGES)
    x = INPUTS.get(kind, by_dimension)
    model = graph_of(layer_of(kind), kind)
    assert save_plain(tmp_path, model, x) == ""
    again = load_plain(tmp_path)
    with torch.no_grad():
        assert torch.equal(again(x.clone()), model(x.clone()))
    assert repr(again.layer) == repr(model.layer)


def test_the_tables_name_what_torch_has_and_nothing_that_acts():
    known = (dir(torch), dir(Tensor), dir(dict), dir(tuple))
    names = words._POINTWISE + words._REDUCTIONS + words._SHAPES + words._ALGEBRA + words._CREATION
    assert set(names.split()) <= set(known[0])
    assert set(words.METHODS) <= {name for one in known for name in one}
    assert len(words.LAYERS) == len(words._LAYERS.split()) + 1  # TrainingFlag
    for name in ("load", "save", "compile", "from_file", "set_default_dtype", "manual_seed",
                 "apply_", "map_", "register_hook", "backward", "numpy", "share_memory_",
                 "__reduce__", "__class__", "__dict__", "eval", "exec", "open", "attrgetter",
                 "methodcaller", "__import__", "vmap", "cond"):  # fmt: skip
        assert name not in words.METHODS | words.ATTRIBUTES
        assert not any(known.rpartition(".")[2] == name for known in words.FUNCTIONS)


@pytest.fixture
def unexportable(monkeypatch) -> None:
    """Let torch.export, which takes seconds, fail at once."""

    def fail(*_: object) -> None:
        raise EsperError("not now")

    monkeypatch.setattr("esper.kasmina.plain_saves.folder.export_pt2", fail)


class Own(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


def changed() -> nn.Module:
    layer = nn.GroupNorm(2, 4)
    layer.extra = [1]
    return layer


def hooked() -> nn.Module:
    layer = nn.ReLU()
    layer.register_forward_hook(lambda *_: None)
    return layer


def normed() -> nn.Module:
    return torch.nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 1))


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (Own, "layer is your class Own"),
        (changed, "layer is a GroupNorm whose extra was changed"),
        (hooked, "layer is a ReLU with hooks"),
        (normed, "layer is ParametrizedConv2d"),
        (lambda: nn.TransformerEncoderLayer(8, 2, 6, activation=torch.tanh), "activation"),
    ],
)
@pytest.mark.usefixtures("unexportable")
def test_what_has_no_description_is_named(build: Callable[[], nn.Module], says, tmp_path):
    assert says in save_plain(tmp_path, graph_of(build()), IMAGES[:, 0])
    assert says in refused(lambda: load_plain(tmp_path))


@pytest.mark.usefixtures("unexportable")
def test_functions_and_values_without_a_description_are_named(tmp_path):
    def own(x: Tensor) -> Tensor:
        return x

    for target, args, says in (
        (own, (), "<locals>.own"),
        (torch.mul, (1j,), "torch.mul is called with a value of type complex"),
    ):
        graph = fx.Graph()
        graph.output(graph.call_function(target, (graph.placeholder("x"), *args)))
        assert says in save_plain(tmp_path, fx.GraphModule(nn.Module(), graph), VECTORS)


def test_a_layer_of_the_users_comes_back_with_trust(tmp_path):
    model = graph_of(Own())
    assert "your class Own" in save_plain(tmp_path, model, VECTORS)
    assert "trust=True" in refused(lambda: load_plain(tmp_path))
    again = load_plain(tmp_path, trust=True)
    assert torch.equal(again.train()(VECTORS), model(VECTORS))
    assert torch.equal(again.eval()(VECTORS), model(VECTORS))
    file = tmp_path / "program.pt2"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert "checksum" in refused(lambda: load_plain(tmp_path, trust=True))
    assert save_plain(tmp_path, graph_of(nn.ReLU()), VECTORS) == ""
    assert not file.exists(), "of the network before"


@pytest.mark.usefixtures("unexportable")
@pytest.mark.parametrize("example", [VECTORS, (VECTORS,), {"a": VECTORS, "b": TOKENS}])
def test_the_example_has_the_form_of_the_inputs(example, tmp_path):
    save_plain(tmp_path, Own(), example)
    found = plain_example(tmp_path)
    assert type(found) is type(example)
    values = found.values() if isinstance(found, dict) else found
    assert all(len(v) == 1 for v in ([found] if isinstance(found, Tensor) else values))


# ---- doctored descriptions --------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path) -> Path:
    root, graph = nn.Module(), fx.Graph()
    root.add_module("fc", nn.Linear(4, 4))
    root.register_buffer("scale", torch.ones(4))
    x = graph.placeholder("x")
    h = graph.call_module("fc", (x,))
    h = graph.call_function(torch.mul, (h, graph.get_attr("scale")))
    h = graph.call_method("clamp", (h,), {"min": 0})
    size = graph.call_function(getattr, (h, "shape"))
    graph.output(graph.call_method("reshape", (h, size)))
    assert save_plain(tmp_path, fx.GraphModule(root, graph), VECTORS) == ""
    return tmp_path


def at(path: str, value: object) -> Callable[[Any], None]:
    """Set one entry of the graph."""

    def apply(graph: Any) -> None:
        *above, last = [int(p) if p.lstrip("-").isdecimal() else p for p in path.split(".")]
        for part in above:
            graph = graph[part]
        graph[last] = value

    return apply


DEEP: list[Any] = ["tuple"]
for _ in range(80):
    DEEP = ["tuple", DEEP]
DOCTORED = {
    "function": at("nodes.3.target", "os.system"),
    "evaluated": at("nodes.3.target", "builtins.eval"),
    "dunder method": at("nodes.4.target", "__reduce__"),
    "method with code": at("nodes.4.target", 'clamp(); __import__("os").system("x")'),
    "attribute": at("nodes.5.args.1", "__class__"),
    "attribute of a node": at("nodes.5.args.1", ["node", 0]),
    "three arguments of getattr": at("nodes.5.args", [["node", 4], "shape", 1]),
    "keyword with code": at("nodes.4.kwargs.0.0", "min=print(1), max"),
    "keyword": at("nodes.4.kwargs.0.0", "lambda"),
    "keyword twice": at("nodes.4.kwargs", [["min", 0], ["min", 1]]),
    "input with code": at("nodes.0.target", "x=print(1)"),
    "input called self": at("nodes.0.target", "self"),
    "module with code": at("nodes.1.target", 'fc"); print("'),
    "unknown module": at("nodes.1.target", "forward"),
    "internal tensor": at("nodes.2.target", "_parameters"),
    "cycle": at("nodes.1.args.0", ["node", 3]),
    "itself": at("nodes.1.args.0", ["node", 1]),
    "negative node": at("nodes.1.args.0", ["node", -1]),
    "true node": at("nodes.1.args.0", ["node", True]),
    "huge number": at("nodes.4.kwargs.0.1", 10**30),
    "device without a kernel": at("nodes.4.kwargs.0.1", ["device", "meta"]),
    "unknown value": at("nodes.4.kwargs.0.1", ["pickle", "abc"]),
    "object": at("nodes.4.kwargs.0.1", {"a": 1}),
    "unknown dtype": at("nodes.4.kwargs.0.1", ["dtype", "load"]),
    "unknown device": at("nodes.4.kwargs.0.1", ["device", "privateuse"]),
    "operation": at("nodes.1.op", "call_anything"),
    "no output": at("nodes", []),
    "two outputs": lambda g: g["nodes"].append(g["nodes"][-1]),
    "wrong type": at("nodes", 3),
    "deep": at("nodes.1.args.0", DEEP),
    "layer": at("layers.0.kind", "Module"),
    "layer outside torch.nn": at("layers.0.kind", "functional"),
    "huge layer": at("layers.0.arguments.0.1", 2**62),
    "negative layer": at("layers.0.arguments.0.1", -4),
    "other size": at("layers.0.arguments.0.1", 5),
    "layer of text": at("layers.0.arguments.0.1", "4"),
    "argument": at("layers.0.arguments.0.0", "device"),
    "layer path": at("layers.0.path", "fc.__class__"),
    "layer over a method": at("layers.0.path", "forward"),
    "layer path with code": at("layers.0.path", "fc\n"),
    "no layer": at("layers", []),
    "layer twice": lambda g: g["layers"].append(g["layers"][0]),
    "no tensors": at("tensors", []),
    "unknown tensor": at("tensors.0.key", "nowhere"),
    "tensor path": at("tensors.0.path", "__dict__"),
    "order": at("tensors.0.order", [0, 0]),
    "huge order": at("tensors.0.order", [0, 10**20]),
    "name": at("name", "A: pass\nprint(1)\nclass B"),
    "field": at("code", "print(1)"),
}  # fmt: skip


@pytest.mark.parametrize("case", DOCTORED)
def test_a_doctored_description_is_refused_in_one_line(case, saved, capsys):
    manifest = saved / "manifest.json"
    document = json.loads(manifest.read_text())
    DOCTORED[case](document["content"]["graph"])
    manifest.write_text(json.dumps(seal(document)))
    refused(lambda: load_plain(saved))
    assert capsys.readouterr() == ("", "")


ODD = (
    None, True, -1, 3, 2**62, 1e308, "", "x", "__class__", "torch.cat", [], ["node", 0], ["node"],
    ["tuple", ["node", 1]], ["slice", 1, 2, 3], ["float", "nan"], {}, {"a": 1},
)  # fmt: skip


def places_in(data: Any) -> list[tuple[Any, Any]]:
    """All (container, key) pairs of a document."""
    keys = list(data) if isinstance(data, dict) else range(len(data))
    found = [(data, key) for key in keys]
    inner = [data[key] for key in keys if isinstance(data[key], dict | list)]
    return found + [place for value in inner for place in places_in(value)]


def test_mutated_descriptions_give_one_line_or_a_network(saved):
    """Whatever values are exchanged: an `EsperError`, or a module that was built, not run."""
    manifest, draw, refusals = saved / "manifest.json", random.Random(0), 0
    whole = manifest.read_text()
    for _ in range(200):
        document = json.loads(whole)
        for _ in range(draw.choice((1, 1, 2))):
            held, key = draw.choice(places_in(document["content"]))
            held[key] = copy.deepcopy(draw.choice(ODD))
        manifest.write_text(json.dumps(seal(document)))
        try:
            assert isinstance(load_plain(saved), fx.GraphModule)
        except EsperError as error:
            assert "\n" not in str(error)  # noqa: PT017
            refusals += 1
    assert refusals > 150


def test_a_doctored_number_of_layers_is_not_built(tmp_path):
    save_plain(tmp_path, graph_of(nn.LSTM(8, 5), "LSTM"), SIGNALS)
    manifest = tmp_path / "manifest.json"
    document = json.loads(manifest.read_text())
    arguments = document["content"]["graph"]["layers"][0]["arguments"]
    next(a for a in arguments if a[0] == "num_layers")[1] = 10**9
    manifest.write_text(json.dumps(seal(document)))
    assert "num_layers=1000000000" in refused(lambda: load_plain(tmp_path))
