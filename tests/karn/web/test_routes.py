"""What the dashboard answers: pages, the list, a run, its life lines, its report, live updates."""

from __future__ import annotations

import json
import re
import shutil
from itertools import pairwise

import pytest
from fastapi.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from esper.karn.views import RunCursor
from esper.karn.views.plain import thinned
from esper.karn.web import listing
from esper.karn.web.access import access_for
from esper.karn.web.app import make_app
from esper.karn.web.assets import STATIC
from esper.karn.web.comparing import MAX_RUNS
from esper.karn.web.feed import MAX_POINTS, RunFeed
from esper.karn.web.places import RunsFolder, id_of
from esper.leyline.stages import SeedStage
from esper.leyline.text import visible
from esper.storage.folder_lock import FolderLock
from esper.storage.tags import change_tags
from search_folder import search_folder
from web_support import ADDRESS, HOSTILE, SOCKETS


@pytest.mark.parametrize("path", ["/", "/compare", "/runs/ppo"])
def test_pages_are_static_and_hold_no_names(client, path):
    answer = client.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache", "kept for the way back"
    assert answer.text.count("<script") == answer.text.count('<script type="module" src="/static/')
    assert "style=" not in answer.text
    assert "<!--" not in answer.text
    assert client.get("/static/page.html").status_code == 404, "the frame is no page"


@pytest.mark.parametrize("path", ["/runs/no-such-run", "/nowhere", "/runs/cmp/networks/0001.py"])
def test_an_unknown_address_is_a_page_with_a_way_back(client, path):
    answer = client.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert '<a class="button" href="/">' in answer.text
    assert "content-security-policy" in answer.headers
    assert client.get(f"/api{path}").json()["error"]


def test_a_reason_in_a_page_is_text(client):
    text = client.get("/runs/<img src=x onerror=alert(1)>").text
    assert "&lt;img" in text
    assert "<img src=x" not in text


def test_a_grow_run_offers_its_networks(tmp_path):
    run = search_folder(tmp_path / "runs" / "grown")
    app = make_app(RunsFolder(tmp_path / "runs"), access_for("127.0.0.1", None))
    client = TestClient(app, base_url=ADDRESS)
    message = client.get("/api/runs/grown").json()
    assert message["run"]["headline"].startswith("test accuracy 0.8500")
    assert [point["val_score"] for point in message["best"]] == [0.7, 0.8, 0.9]
    assert {point["label"] for point in message["frontier"]} == {"0", "1", "2", "3", "4"}
    detail = client.get("/api/runs/grown/networks/2").json()
    assert detail["script"] == "import torch\n"
    for file in detail["files"]:
        answer = client.get(f"/runs/grown/networks/{file['name']}")
        assert answer.content == (run / "networks" / file["name"]).read_bytes()
        assert answer.headers["content-disposition"].startswith("attachment")
        assert answer.headers["content-type"] == "application/octet-stream"
    for name in ("../grow.json", "%2e%2e/grow.json", "0009.py", "0002-plain/..", "0002-plain", ""):
        assert client.get(f"/runs/grown/networks/{name}").status_code == 404, name
    assert client.get("/api/runs/grown/networks/77").status_code == 400


def test_a_damaged_table_leaves_the_rest_of_a_grow_run_and_is_named(tmp_path):
    run = search_folder(tmp_path / "runs" / "grown")
    (run / "search.json").write_text("{")
    message = RunFeed(run).first()
    assert message["run"]["verdict"] == "width x2 is better"
    assert len(message["frontier"]) == 5
    assert "search.json" in message["problems"]["curves"]


def test_every_file_that_pages_and_modules_name_is_there(client):
    named = set()
    for page in ("/", "/compare", "/runs/ppo", "/nowhere"):
        named |= set(re.findall(r'(?:src|href)="(/static/[^"]+)"', client.get(page).text))
    for path in (STATIC / "js").glob("*.js"):
        for part in re.findall(r'from "(\.[^"]+)"', path.read_text()):
            named.add(f"/static/{(path.parent / part).resolve().relative_to(STATIC)}")
    assert len(named) > 15
    for path in sorted(named):
        assert client.get(path).status_code == 200, path


def test_an_unchanged_file_is_not_sent_again(client):
    etag = client.get("/static/style.css").headers["etag"]
    again = client.get("/static/style.css", headers={"if-none-match": etag})
    assert (again.status_code, again.content) == (304, b"")


def test_the_list_has_every_run_with_its_state(client, runs):
    found = {run["name"]: run for run in client.get("/api/runs").json()["runs"]}
    assert len(found) == 4
    ppo = found["ppo"]
    assert (ppo["kind"], ppo["state"], ppo["done"], ppo["progress"]) == (
        "train", "finished", 2, 1.0,
    )  # fmt: skip
    assert ppo["report"] is True
    assert found["broken"]["state"] == "broken"
    assert "run.json" in found["broken"]["problem"]
    assert (found["cmp"]["kind"], found["cmp"]["total"]) == ("compare", None)


def test_a_run_has_its_series_and_events(client):
    found = client.get("/api/runs/ppo").json()
    assert [point["round"] for point in found["rounds"]] == [0, 1]
    assert [point["round"] for point in found["learner"]] == [0, 1]
    assert [point["round"] for point in found["speed"]] == [0, 1]
    assert found["setup"][0]["members"] == 2
    assert found["events"][-1]["text"].startswith("the run ended: ")
    assert found["problems"] == {}


def test_a_comparison_has_its_contenders(client):
    found = client.get("/api/runs/cmp").json()
    assert [one["label"] for one in found["contenders"]] == ["random", "wait"]
    assert "rounds" not in found


def test_a_part_that_cannot_be_read_does_not_hide_the_others(runs, tmp_path):
    run = shutil.copytree(runs / "ppo", tmp_path / "ppo")
    (part,) = (run / "events" / "PPO_UPDATED").glob("*.parquet")
    part.write_bytes(b"damaged")
    found = RunFeed(run).first()
    assert list(found["problems"]) == ["learner"]
    assert str(part) in found["problems"]["learner"]
    assert len(found["rounds"]) == 2


def test_life_lines_are_of_the_newest_round_or_the_one_asked_for(client):
    newest = client.get("/api/runs/ppo/seeds").json()
    assert (newest["round"], newest["members"], newest["window"]) == (1, 2, 2)
    first = client.get("/api/runs/ppo/seeds?round=0&member=1").json()
    assert first["round"] == 0
    assert {seed["round"] for seed in first["seeds"]} <= {0}
    beyond = client.get("/api/runs/ppo/seeds?round=99999999999999999999&member=7").json()
    assert (beyond["round"], beyond["first"]) == (1, 0)


def test_a_member_is_the_one_asked_for_by_default_the_best_of_the_newest_round(client):
    found = client.get("/api/runs/ppo/growth").json()
    scores = [one["score"] for one in found["members"]]
    assert (found["round"], found["member"]) == (1, scores.index(max(scores)))
    for member in range(2):
        one = client.get(f"/api/runs/ppo/growth?round=0&member={member}").json()
        assert (one["round"], one["member"], one["newest"]) == (0, member, 1)
        assert {seed["member"] for seed in one["seeds"]} <= {member}
        assert [point["at"] for point in one["points"]] == list(range(1, one["steps"] + 1))
        assert one["happened"] == sorted(one["happened"], key=lambda said: said["at"])
    beyond = client.get("/api/runs/ppo/growth?round=99999999999999999999&member=7").json()
    assert (beyond["round"], beyond["member"]) == (1, 1)


@pytest.mark.parametrize("part", ["seeds", "growth"])
@pytest.mark.parametrize("query", ["round=-1", "round=x", "member=1.5", "round=٣"])
def test_a_round_that_is_none_is_refused(client, part, query):
    answer = client.get(f"/api/runs/ppo/{part}?{query}")
    assert answer.status_code == 400
    assert "whole number" in answer.json()["error"]


def test_stages_have_the_words_and_colours_of_karn(client):
    found = client.get("/api/stages").json()
    assert [one["stage"] for one in found] == [stage.name for stage in SeedStage]


def test_a_long_run_is_thinned_evenly_and_keeps_its_last_round():
    kept = thinned(range(10 * MAX_POINTS), MAX_POINTS)
    assert len(kept) == MAX_POINTS
    assert (kept[0], kept[-1]) == (0, 10 * MAX_POINTS - 1)
    assert {b - a for a, b in pairwise(kept)} == {10, 11}


def test_a_socket_sends_everything_then_what_is_new_and_says_when_the_writer_is_gone(
    runs, tmp_path, monkeypatch
):
    monkeypatch.setattr("esper.karn.web.live.POLL_SECONDS", 0.02)
    run = shutil.copytree(runs / "ppo", tmp_path / "runs" / "ppo")
    info = json.loads((run / "run.json").read_text())
    lock = FolderLock(run)
    app = make_app(RunsFolder(run.parent), access_for("127.0.0.1", None))
    client = TestClient(app, base_url="http://127.0.0.1:8642")
    with client.websocket_connect(f"{SOCKETS}/api/runs/ppo/live") as socket:
        first = socket.receive_json()
        assert first["run"]["state"] == "running"
        assert len(first["rounds"]) == 2
        line = {"type": "ANOMALY_DETECTED", "round_index": 1, "payload": {"kind": "<b>"}}
        with (run / "events.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        new = socket.receive_json()
        assert [(event["unusual"], event["text"]) for event in new["events"]] == [
            (True, "unusual: <b>")
        ]
        assert [point["round"] for point in new["rounds"]] == [0, 1]
        lock.release()
        assert socket.receive_json()["run"]["state"] in ("finished", "killed")
    assert json.loads((run / "run.json").read_text()) == info


def test_a_socket_of_no_run_is_closed_with_the_reason(client):
    with (
        client.websocket_connect(f"{SOCKETS}/api/runs/nothing/live") as socket,
        pytest.raises(WebSocketDisconnect) as closed,
    ):
        socket.receive_json()
    assert closed.value.code == 1008
    assert "no run" in closed.value.reason


def test_only_so_many_pages_follow_runs_at_once(client, monkeypatch):
    monkeypatch.setattr("esper.karn.web.live.MAX_SOCKETS", 1)
    with client.websocket_connect(f"{SOCKETS}/api/runs/cmp/live") as one:
        one.receive_json()
        with (
            client.websocket_connect(f"{SOCKETS}/api/runs/cmp/live") as other,
            pytest.raises(WebSocketDisconnect) as closed,
        ):
            other.receive_json()
    assert closed.value.code == 1013


def test_reading_changes_nothing_in_a_run(client, runs):
    before = {path: path.stat().st_mtime_ns for path in (runs / "ppo").rglob("*")}
    for path in ("", "/seeds", "/growth"):
        client.get(f"/api/runs/ppo{path}")
    client.get("/api/runs")
    assert {path: path.stat().st_mtime_ns for path in (runs / "ppo").rglob("*")} == before


def test_an_ended_run_is_read_again_only_after_it_changed(runs, tmp_path, monkeypatch):
    run = shutil.copytree(runs / "ppo", tmp_path / "runs" / "ppo")
    read = []
    monkeypatch.setattr(listing, "_FRESH_SECONDS", 0.0)
    real = listing.run_summary
    monkeypatch.setattr(listing, "run_summary", lambda path: read.append(path) or real(path))
    found = listing.RunList(RunsFolder(run.parent))
    found.read()
    found.read()
    assert read == [run]
    (run / "run.json").write_text("{")
    assert found.read()[0]["state"] == "broken"


def test_a_round_whose_parts_came_one_after_the_other_is_completed(runs, tmp_path):
    run = shutil.copytree(runs / "ppo", tmp_path / "ppo")
    (part,) = (run / "events" / "ROUND_COMPLETED").glob("*.parquet")
    whole = part.read_bytes()
    part.unlink()
    feed = RunFeed(run)
    assert feed.first()["rounds"][-1]["train_accuracy"] is None
    part.write_bytes(whole)
    with (run / "events.jsonl").open("a") as file:
        file.write('{"type": "RUN_FINISHED", "payload": {}}\n')
    assert feed.next()["rounds"][-1]["train_accuracy"] > 0


def test_rounds_recorded_anew_replace_the_lost_ones(runs, tmp_path, monkeypatch):
    run = shutil.copytree(runs / "ppo", tmp_path / "ppo")
    feed = RunFeed(run)
    feed.first()
    again = RunCursor(run).poll()
    monkeypatch.setattr(feed._cursor, "poll", lambda: again)
    new = feed.next()
    for name in ("rounds", "learner", "speed"):
        assert [point["round"] for point in new[name]] == [0, 1]


def test_hostile_names_reach_the_page_as_data_only(client, runs):
    run_id = id_of(HOSTILE)
    assert run_id.startswith("~")
    assert run_id[1:].replace("-", "").replace("_", "").isalnum()
    listed = client.get("/api/runs")
    assert listed.headers["content-type"] == "application/json"
    assert run_id in [run["id"] for run in listed.json()["runs"]]
    assert client.get(f"/api/runs/{run_id}").json()["run"]["name"] == visible(HOSTILE)


# ---- settings, tags, comparison ----------------------------------------------------------------


def test_the_list_carries_the_settings_that_are_asked_for(client, runs):
    answer = client.get("/api/runs", params={"setting": ["ppo.gamma", "task", "no.such"]}).json()
    found = {run["name"]: run["settings"] for run in answer["runs"]}
    assert found["ppo"] == {"ppo.gamma": 1.0, "task": "synthetic"}
    assert found["cmp"] == {"task": "synthetic"}
    assert found["broken"]["ppo.gamma"] == 1.0, "its run.json alone is damaged"
    assert all("settings" not in run for run in client.get("/api/runs").json()["runs"])


def test_every_setting_of_any_run_is_offered_with_how_many_runs_have_it(client):
    found = {one["name"]: one for one in client.get("/api/settings").json()["settings"]}
    assert found["task"] == {"name": "task", "runs": 3, "values": 1}
    assert found["ppo.gamma"]["runs"] == 3


def test_settings_are_read_again_only_after_their_files_changed(runs, tmp_path, monkeypatch):
    run = shutil.copytree(runs / "cmp", tmp_path / "runs" / "cmp")
    read = []
    real = listing.read_settings
    monkeypatch.setattr(listing, "read_settings", lambda path: read.append(path) or real(path))
    found = listing.RunList(RunsFolder(run.parent))
    found.setting_names()
    found.setting_names()
    assert read == [run]
    (run / "settings.json").write_text(json.dumps({"task": "digits", "more": 1}))
    assert [one["name"] for one in found.setting_names()] == ["more", "task"]


def test_a_tag_reaches_the_list_and_an_open_page(runs, tmp_path):
    run = shutil.copytree(runs / "ppo", tmp_path / "runs" / "ppo")
    found, feed = listing.RunList(RunsFolder(run.parent)), RunFeed(run)
    assert (found.read()[0]["tags"], feed.first()["run"]["tags"]) == ([], [])
    change_tags(run, add=["<b>"])
    found._read_at = -1.0
    assert found.read()[0]["tags"] == ["<b>"]
    assert feed.next()["run"]["tags"] == ["<b>"]


def test_a_comparison_has_differences_to_the_baseline_and_all_settings(client):
    ids = ["ppo", id_of(HOSTILE), "cmp"]
    found = client.get("/api/compare", params={"run": ids}).json()
    assert (found["baseline"], found["problems"]) == ("ppo", {})
    (same,) = found["differences"][id_of(HOSTILE)]
    assert (same["difference"]["value"], same["is_paired"]) == (0.0, True)
    assert found["differences"]["cmp"] == [], "nothing was measured in both"
    assert list(found["settings"]) == ids
    other = client.get("/api/compare", params={"run": ids, "baseline": "cmp"}).json()
    assert (other["baseline"], sorted(other["differences"])) == ("cmp", sorted(ids[:2]))


def test_a_comparison_names_what_it_cannot_read_and_shows_the_rest(client):
    ids = ["ppo", "broken", "no-such-run", "../etc"]
    found = client.get("/api/compare", params={"run": ids, "baseline": "elsewhere"}).json()
    assert found["baseline"] == "ppo"
    assert sorted(found["problems"]) == ["../etc", "broken", "no-such-run"]
    assert "run.json" in " ".join(found["problems"]["broken"])
    assert found["settings"]["broken"]["ppo.gamma"] == 1.0


def test_a_comparison_has_so_many_runs_and_no_more(client):
    found = client.get("/api/compare", params={"run": [f"r{n}" for n in range(20)]}).json()
    assert len(found["problems"]) == MAX_RUNS


def test_files_that_are_links_are_served(runs, tmp_path, monkeypatch):
    for path in STATIC.rglob("*.js"):
        link = tmp_path / path.relative_to(STATIC)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
    monkeypatch.setattr("esper.karn.web.app.STATIC", tmp_path)
    app = make_app(RunsFolder(runs), access_for("127.0.0.1", None))
    browser = TestClient(app, base_url="http://127.0.0.1:8642")
    assert browser.get("/static/js/run.js").status_code == 200
    assert browser.get("/static/../js/run.js").status_code == 404
