"""A run folder from a stranger: nothing in it runs, and a damaged file is refused in one line."""

from __future__ import annotations

import io
import json
import pickle
import random
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch._export.serde.schema import SCHEMA_VERSION
from torch._export.serde.serialize import serialize

import esper
from esper.growing.stored import plain_path
from esper.leyline.codec import to_json
from esper.leyline.errors import EsperError
from esper.scripts import export, report, show
from esper.storage.manifest import record_of
from esper.storage.sealed_json import read_document, seal
from support import refused

INPUTS = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


class Wavering(nn.Module):
    """A layer of the user's that no graph can hold: control flow on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        h = self.layer(x)
        return h if h.sum() > 0 else 2 * h


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))


def wavering() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), Wavering(), nn.ReLU(), nn.Linear(8, 2))


def grown(model, folder: Path, widths: tuple[float, ...] = ()) -> esper.GrowResult:
    x = np.random.default_rng(0).standard_normal((60, 4)).astype(np.float32)
    return esper.grow(
        model, (x, (x[:, 0] > 0).astype(np.int64)), budget=esper.Budget(host_runs=2), epochs=1,
        folder=folder, verbose=False, device="cpu", widths=widths,
    )  # fmt: skip


@pytest.fixture(scope="module")
def result(tmp_path_factory) -> esper.GrowResult:
    return grown(mlp, tmp_path_factory.mktemp("runs"), widths=(0.5,))


@pytest.fixture
def run(result, tmp_path) -> Path:
    """A copy of the run that a test may change."""
    return Path(shutil.copytree(result.folder, tmp_path / "run"))


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


def doctored_pt2(marker: Path) -> bytes:
    """A program whose weights are a pickle that makes a file."""
    program = torch.export.export(nn.Linear(4, 2), (torch.zeros(2, 4),))
    parts = serialize(program)
    weights, content = io.BytesIO(), io.BytesIO()
    torch.save(Payload(marker), weights, pickle_module=pickle)
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("version", ".".join(map(str, SCHEMA_VERSION)))
        archive.writestr("serialized_exported_program.json", parts.exported_program)
        archive.writestr("serialized_state_dict.pt", weights.getvalue())
        archive.writestr("serialized_constants.pt", parts.constants)
        archive.writestr("serialized_example_inputs.pt", parts.example_inputs)
    return content.getvalue()


def doctor(manifest: Path, **content: object) -> None:
    """Change a save's content, with a valid checksum."""
    document = json.loads(manifest.read_text())
    document["content"] |= content
    manifest.write_text(json.dumps(seal(document)))


def test_a_doctored_network_runs_nothing_without_trust(result, run, tmp_path, capsys):
    """The file that torch reads by unpickling is put wherever a reader might look for it."""
    marker, number = tmp_path / "marker", result.record.pick
    program = doctored_pt2(marker)
    plain = plain_path(run, number)
    for file in (f"networks/{number:04d}.pt2", f"networks/{plain.name}/program.pt2"):
        (run / file).write_bytes(program)
    esper.GrowResult.load(run).model(INPUTS)
    content = to_json(record_of("program.pt2", program))
    doctor(plain / "manifest.json", graph=None, reason="2 is your class Layer", program=content)
    said = refused(lambda: esper.GrowResult.load(run).model)
    assert "2 is your class Layer" in said
    assert "trust=True" in said
    assert "model=" in said
    capsys.readouterr()
    for command in (show, report, export):
        out = [str(tmp_path / "out.onnx")] if command is export else []
        status = command.main([str(run), *out])
        assert (status == 2) is (command is export), capsys.readouterr()
    assert "--trust" in capsys.readouterr().err
    assert not marker.exists(), "code of the folder ran"
    refused(lambda: esper.GrowResult.load(run, trust=True).model)
    assert marker.exists(), "the payload does nothing: this test shows nothing"


def test_flipped_bits_are_refused_or_change_nothing(result, run):
    expected = {n.params: n.model(INPUTS) for n in (*result.frontier, result.host)}
    plain = {plain_path(run, n.record.number) for n in (*result.frontier, result.host)}
    files = [f for folder in plain for f in folder.iterdir()]
    files += [run / "result.json", run / "grow.json"]
    draw, accepted = random.Random(0), 0
    for _ in range(150):
        file = draw.choice(files)
        content = file.read_bytes()
        damaged = bytearray(content)
        damaged[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        file.write_bytes(damaged)
        try:
            loaded = esper.GrowResult.load(run)
            found = {n.params: n.model(INPUTS) for n in (*loaded.frontier, loaded.host)}
        except EsperError:
            pass
        else:
            accepted += 1
            assert all(torch.equal(found[size], out) for size, out in expected.items()), file
        file.write_bytes(content)
    assert accepted < 5, "a capital in a number, say: the same content"


def test_networks_train_and_evaluate_from_the_folder_alone(result):
    """Of every width, bit for bit as they were returned."""
    loaded = esper.GrowResult.load(result.folder)
    for live, network in zip(result.frontier, loaded.frontier, strict=True):
        model = network.model
        assert torch.equal(model(INPUTS), live.model(INPUTS))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        before = model(INPUTS)
        model.train()(INPUTS).sum().backward()
        optimizer.step()
        assert not torch.equal(model.eval()(INPUTS), before)


def test_networks_of_every_width_are_rebuilt_with_the_users_class(result):
    loaded = esper.GrowResult.load(result.folder, model=mlp)
    pairs = zip((*result.frontier, result.host), (*loaded.frontier, loaded.host), strict=True)
    for live, network in pairs:
        assert torch.equal(network.model(INPUTS), live.model(INPUTS))
    wrong = esper.GrowResult.load(result.folder, model=wavering)
    refused(lambda: wrong.host.model)
    assert "model=3" in refused(lambda: esper.GrowResult.load(result.folder, model=3).model)


def test_a_network_with_a_layer_of_the_users_names_the_ways_out(tmp_path, capsys):
    found = grown(wavering, tmp_path)
    loaded = esper.GrowResult.load(found.folder)
    said = refused(lambda: loaded.model)
    assert "2 is your class Wavering" in said
    assert "model=" in said
    again = esper.GrowResult.load(found.folder, model=wavering).model
    assert torch.equal(again(INPUTS), found.model(INPUTS))
    (tmp_path / "mine.py").write_text(
        f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        f"from {Path(__file__).stem} import wavering\n"
    )
    argv = [str(found.folder), str(tmp_path / "out.safetensors")]
    assert export.main(argv) == 2
    assert "--model FILE.py:NAME" in capsys.readouterr().err
    assert export.main([*argv, "--model", f"{tmp_path}/mine.py:wavering"]) == 0


@pytest.mark.parametrize("field", ["variants", "output"])
def test_a_doctored_record_is_refused_in_one_line(field, result, run):
    document = read_document(run / "grow.json")
    document[field] = ["x" * 9, "y"] if field == "variants" else "{"
    (run / "grow.json").write_text(json.dumps(seal(document)))
    refused(lambda: esper.GrowResult.load(run, model=mlp).host.model)
