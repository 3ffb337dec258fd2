"""What came from what in a search, and what is said about each run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn

from esper.karn import views
from esper.karn.views.network_layers import MAX_LAYERS, LayerBox, read_layers
from esper.kasmina.plain_saves import save_plain
from search_folder import ROWS, row, search_folder, write


def lineage(run: Path) -> dict[str, views.LineageRun]:
    return {one.label: one for one in views.read_lineage(run)}


STORY = (
    row(0, 100, 0.5, purpose="first"),
    row(1, 300, 0.7, variant=1, origin="width", purpose="opening"),
    row(2, 100, 0.6, rung=1, parent=0, batches=90, trained=90, purpose="survivor"),
    row(3, 100, 0.55, rung=1, parent=0, lr=0.03, batches=30, purpose="neighbour"),
    row(4, 300, 0.7, rung=2, variant=1, parent=1, seed=7, purpose="finale", diverged=True)
    | {"score": "NaN"},
    row(5, 300, 0.65, rung=2, variant=1, topology=["", "norm"], origin="grown", parent=1, start=1,
        trained=10, status="cut", purpose="neighbour"),
    row(6, 900, 0.9, rung=2, variant=1, topology=["mlp", ""], parent=1, purpose="neighbour"),
    row(7, 100, 0.0, rung=3, parent=2, batches=180, status="planned", trained=0,
        purpose="longer") | {"score": "NaN"},
)  # fmt: skip


def story(path: Path, **changes: Any) -> dict[str, views.LineageRun]:
    run = search_folder(path, STORY, has_result=False)
    if changes:
        document = json.loads((run / "search.json").read_text()) | changes
        document.pop("checksum")
        write(run / "search.json", document)
    return lineage(run)


def test_every_run_says_why_it_was_made(tmp_path):
    assert [one.made for one in story(tmp_path / "run").values()] == [
        "The first run: your model at rate 0.01.",
        "A first look at width x2, depth x0.5 at rate 0.01.",
        "Among the best of its rung for its size: #0 again, 3 times as long.",
        "A neighbour of #0, rate 0.03.",
        "The finale, for the rest of the time: #1, other initial weights and order of samples.",
        "A neighbour of #1, as width x2, depth x0.5, norm, from its weights.",
        "A neighbour of #1, as width x2, depth x0.5, mlp.",
        "Longer training has paid: #2, 2 times as long.",
    ]


def test_every_run_says_why_it_ended_and_what_became_of_it(tmp_path):
    assert [one.ended for one in story(tmp_path / "run", ended="the time is over").values()] == [
        "Finished. Not better than #2, the same network. It went on as #2 in rung 1. "
        "1 other came from it.",
        "Finished. No smaller network is better. 3 runs came from it.",
        "Finished. No smaller network is better. It went on as #7 in rung 3.",
        "Finished. Not better than #2, the same network.",
        "Diverged within 30 batches.",
        "Cut by the time after 10 of 30 batches. Not better than #1, width x2, depth x0.5.",
        "Finished. It is beyond the limits of the budget.",
        "Not started: the search ended before.",
    ]


def test_a_run_of_a_search_that_goes_on_is_not_said_to_have_ended(tmp_path):
    found = story(tmp_path / "run")
    assert found["7"].ended == "Not trained yet."
    assert found["5"].ended.startswith("Interrupted after 10 of 30 batches.")
    assert [one.state for one in found.values()] == [
        "finished", "finished", "finished", "finished", "diverged", "cut", "finished", "planned",
    ]  # fmt: skip


def test_rungs_and_lanes_give_every_run_a_place_of_its_own(tmp_path):
    found = story(tmp_path / "run").values()
    places = [(one.rung, one.lane, one.place) for one in found]
    assert len(set(places)) == len(places)
    assert places[2:4] == [(1, 0, 0), (1, 0, 1)], "one network, beside each other"
    sizes = {one.lane: one.params for one in found}
    assert [sizes[lane] for lane in sorted(sizes)] == sorted(sizes.values()), "smaller ones above"


def test_only_the_same_network_by_the_same_recipe_is_trained_again(tmp_path):
    found = story(tmp_path / "run")
    assert [label for label, one in found.items() if one.is_again] == ["2", "7"]
    assert [found[label].shade for label in ("0", "3", "6", "4")] == [0, 1, 4, -1]


def test_tables_without_purposes_tell_what_changed(tmp_path):
    found = lineage(search_folder(tmp_path / "run"))
    assert found["0"].made == "The first run: your model at rate 0.01."
    assert found["1"].made == "From #0, rate 0.02."
    assert found["2"].ended == "Finished. It is the pick."
    assert (found["2"].is_pick, found["1"].is_host) == (True, True)


def test_a_refit_is_part_of_the_story(tmp_path):
    run = search_folder(tmp_path / "run")
    (run / "networks" / "0002.refit.safetensors").write_bytes(b"weights")
    found = lineage(run)
    assert [label for label, one in found.items() if one.is_refit] == ["2"]
    assert "once more, on training and validation samples" in found["2"].ended


@pytest.mark.parametrize("parent", [2, 1, 77, -1, "x", 1e300])
def test_a_damaged_parent_makes_no_circle(tmp_path, parent):
    rows = (*ROWS[:1], ROWS[1] | {"parent": parent}, ROWS[2] | {"parent": 1})
    found = lineage(search_folder(tmp_path / "run", rows, has_result=False))
    assert found["1"].parent == ""
    assert found["2"].parent == "1"
    assert "came from it" not in found["2"].ended


# ---- layers --------------------------------------------------------------------------------------


def test_layers_are_those_of_the_saved_network_in_the_order_of_their_calls(tmp_path):
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8),
        nn.Flatten(), nn.Dropout(0.25), nn.Linear(8, 10),
    ).eval()  # fmt: skip
    folder = tmp_path / "networks" / "0003-plain"
    assert save_plain(folder, fx.symbolic_trace(model), torch.zeros(2, 1, 8, 8)) == ""
    assert read_layers(tmp_path, 3) == (
        LayerBox("Conv2d", "0", 1, 8, "3x3, stride 2x2"),
        LayerBox("BatchNorm2d", "1", 8, 8, ""),
        LayerBox("ReLU", "2", 0, 0, ""),
        LayerBox("Conv2d", "3", 8, 8, "3x3, depthwise"),
        LayerBox("Flatten", "4", 0, 0, ""),
        LayerBox("Dropout", "5", 0, 0, "0.25 dropped"),
        LayerBox("Linear", "6", 8, 10, ""),
    )


@pytest.mark.parametrize("graph", ["{", 3, {"layers": 3, "nodes": [[], {"op": "call_module"}]}])
def test_a_description_that_cannot_be_read_has_no_layers(tmp_path, graph):
    folder = tmp_path / "networks" / "0003-plain"
    folder.mkdir(parents=True)
    write(folder / "manifest.json", {"content": {"graph": graph}})
    assert read_layers(tmp_path, 3) == ()
    (folder / "manifest.json").write_text("{")
    assert read_layers(tmp_path, 3) == ()


def test_of_a_very_deep_network_the_first_layers_are_drawn(tmp_path):
    folder = tmp_path / "networks" / "0003-plain"
    folder.mkdir(parents=True)
    nodes = [{"op": "call_function", "target": "operator.add"}] * 2 * MAX_LAYERS
    write(folder / "manifest.json", {"content": {"graph": {"layers": [], "nodes": nodes}}})
    assert read_layers(tmp_path, 3) == (LayerBox("add", "", 0, 0, ""),) * MAX_LAYERS
