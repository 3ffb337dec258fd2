"""Who is refused: foreign hosts and sites, missing tokens, writers, paths out of the folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from esper.karn.web.access import access_for
from esper.karn.web.app import make_app
from esper.karn.web.places import NotServedError, RunsFolder, id_of, name_of
from esper.leyline.errors import EsperError
from web_support import SOCKETS, comparison

TOKEN = "0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """A comparison with a report page; what is refused does not depend on the kind of run."""
    root = tmp_path_factory.mktemp("served") / "runs"
    run = comparison(root / "cmp")
    (run / "events" / "X").mkdir(parents=True)
    return root


@pytest.fixture
def guarded(runs, tmp_path) -> TestClient:
    """A browser on another machine."""
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    (tmp_path / "token").chmod(0o600)
    app = make_app(RunsFolder(runs), access_for("0.0.0.0", tmp_path / "token"))
    return TestClient(app, base_url="http://10.0.0.7:8642", follow_redirects=False)


# ---- headers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/api/runs", "/static/js/run.js", "/nothing", "/api/runs/x"])
def test_every_answer_has_a_strict_policy(client, path):
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["x-frame-options"] == "DENY"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "access-control-allow-origin" not in headers


def test_a_report_page_is_sandboxed(client):
    answer = client.get("/runs/cmp/report")
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("sandbox; default-src 'none';")
    assert "allow-scripts" not in policy
    assert "script-src" not in policy


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_but_reading_is_possible(client, method):
    assert client.request(method, "/api/runs").status_code == 405


def test_there_is_no_schema_to_browse(client):
    for path in ("/docs", "/redoc", "/openapi.json"):
        assert client.get(path).status_code == 404


# ---- hosts and sites ---------------------------------------------------------------------------

OWN = ["127.0.0.1", "127.0.0.1:9999", "localhost:8642", "LOCALHOST", "[::1]:8642", "localhost."]
FOREIGN = ["evil.example", "127.0.0.1.evil.example", "10.0.0.7:8642", "localhost@evil.example",
           "evil.example:8642", "localhost/x", "[::1", "a:b:c", "", " "]  # fmt: skip


@pytest.mark.parametrize("host", OWN)
def test_names_of_this_machine_are_served(client, host):
    assert client.get("/api/stages", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", FOREIGN)
def test_foreign_hosts_are_refused(client, host):
    answer = client.get("/api/stages", headers={"host": host})
    assert answer.status_code == 400
    assert "Host" in answer.text


def test_a_name_for_a_proxy_can_be_allowed(runs):
    app = make_app(RunsFolder(runs), access_for("127.0.0.1", None, ("Runs.Example",)))
    assert TestClient(app, base_url="http://runs.example").get("/api/stages").status_code == 200
    assert TestClient(app, base_url="http://run.example").get("/api/stages").status_code == 400


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "x"])
def test_sockets_of_other_sites_are_refused(client, origin):
    address = f"{SOCKETS}/api/runs/cmp/live"
    with (
        pytest.raises(WebSocketDisconnect) as closed,
        client.websocket_connect(address, headers={"origin": origin}),
    ):
        pass
    assert (closed.value.code, closed.value.reason) == (1008, "A page of another site asked.")


def test_a_socket_of_the_page_itself_opens(client):
    headers = {"origin": "http://127.0.0.1:8642"}
    with client.websocket_connect(f"{SOCKETS}/api/runs/cmp/live", headers=headers) as one:
        assert one.receive_json()["run"]["name"] == "cmp"


# ---- token -------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/api/runs", "/static/style.css", "/runs/cmp/report"])
@pytest.mark.parametrize(
    "query", ["", "?token=", "?token=wrong", f"?token={TOKEN}x", f"?Token={TOKEN}"]
)
def test_without_the_token_nothing_is_shown(guarded, path, query):
    answer = guarded.get(path + query)
    assert answer.status_code == 401
    assert "token is needed" in answer.text
    assert "set-cookie" not in answer.headers


def test_the_token_becomes_a_cookie_and_leaves_the_address(guarded):
    answer = guarded.get(f"/compare?run=cmp&token={TOKEN}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/compare?run=cmp")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly; SameSite=Strict" in cookie
    assert TOKEN not in cookie
    assert guarded.get("/api/runs").status_code == 200
    with guarded.websocket_connect("ws://10.0.0.7:8642/api/runs/cmp/live") as socket:
        assert socket.receive_json()["run"]["name"] == "cmp"


@pytest.mark.parametrize("path", ["//evil.example/", "/%5Cevil.example", "///evil.example"])
def test_the_address_after_the_token_stays_on_this_server(guarded, path):
    target = guarded.get(f"http://10.0.0.7:8642{path}?token={TOKEN}").headers["location"]
    assert target.startswith("/")
    assert not target.startswith(("//", "/\\"))


def test_a_bearer_header_serves_scripts(guarded):
    assert guarded.get("/api/runs", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert guarded.get("/api/runs", headers={"authorization": "Bearer x"}).status_code == 401


@pytest.mark.parametrize("cookie", ["x", "\x00", 'a="', "=;=", "ü"])
def test_a_wrong_cookie_is_refused(guarded, cookie):
    name = access_for("0.0.0.0", None).cookie_name
    for value in (cookie, f"{name}={cookie}"):
        headers = {"cookie": value.encode("latin-1")}
        assert guarded.get("/api/runs", headers=headers).status_code == 401


def test_a_socket_without_the_token_is_refused(guarded):
    with (
        pytest.raises(WebSocketDisconnect) as closed,
        guarded.websocket_connect("ws://10.0.0.7:8642/api/runs/cmp/live"),
    ):
        pass
    assert "token is needed" in closed.value.reason


def test_any_address_but_this_machine_gets_a_token_of_its_own():
    assert access_for("127.0.0.1", None).token is None
    assert access_for("::1", None).token is None
    one, other = (access_for(host, None).token for host in ("0.0.0.0", "192.168.1.5"))
    assert one != other
    assert len(one) >= 43
    assert one not in repr(access_for("0.0.0.0", None))


def test_token_files_are_private_and_long_enough(tmp_path):
    path = tmp_path / "token"
    with pytest.raises(EsperError, match="No such file"):
        access_for("127.0.0.1", path)
    path.write_text(TOKEN)
    path.chmod(0o644)
    with pytest.raises(EsperError, match="chmod 600"):
        access_for("127.0.0.1", path)
    path.chmod(0o600)
    assert access_for("127.0.0.1", path).token == TOKEN
    for text in ("", "short", "two words are not one", "é" * 20):
        path.write_text(text)
        with pytest.raises(EsperError, match="16 or more"):
            access_for("127.0.0.1", path)


# ---- paths -------------------------------------------------------------------------------------

OUTSIDE = ["..", ".", "../secret", "/etc", "cmp/..", "cmp/../../secret", ".hidden", "", "a\0b"]


@pytest.mark.parametrize("name", OUTSIDE)
def test_no_id_leads_out_of_the_folder(runs, client, name):
    folder = RunsFolder(runs)
    with pytest.raises(NotServedError):
        folder.path_of(id_of(name))
    answer = client.get(f"/api/runs/{id_of(name)}")
    assert answer.status_code == 404
    assert client.get(f"/runs/{id_of(name)}/report").status_code == 404


@pytest.mark.parametrize("path", [
    "/api/runs/../../etc/passwd", "/api/runs/%2e%2e", "/api/runs/%2e%2e%2fsecret",
    "/static/../app.py", "/static/%2e%2e/app.py", "/static//etc/passwd", "/static/js/",
    "/runs/cmp/run.json", "/runs/cmp/%2e%2e/report",
])  # fmt: skip
def test_paths_that_are_no_address_are_not_found(client, path):
    assert client.get(f"http://127.0.0.1:8642{path}").status_code == 404


@pytest.mark.parametrize(
    "text", ["", "~", "~!", "~é", "~YQ", "~Li4", "a b", "x/y", "~Y21w=", "~Y21w "]
)
def test_an_id_has_one_spelling(runs, text):
    with pytest.raises(NotServedError):
        RunsFolder(runs).path_of(text)


def test_ids_and_names_belong_together():
    for name in ("cmp", "a b", "ü", "x\udcff", "-x", "~x", "a" * 250):
        assert name_of(id_of(name)) == name


def test_links_out_of_the_folder_are_neither_listed_nor_opened(runs, tmp_path):
    root = tmp_path / "runs"
    root.mkdir()
    shutil.copytree(runs / "cmp", tmp_path / "secret")
    (root / "link").symlink_to(tmp_path / "secret")
    folder = RunsFolder(root)
    assert folder.names() == []
    with pytest.raises(NotServedError):
        folder.path_of("link")


@pytest.mark.parametrize("place", ["events.jsonl", "report.html", "events/X/x.parquet"])
def test_a_run_with_a_link_out_of_the_folder_is_not_shown(runs, tmp_path, place):
    run = shutil.copytree(runs / "cmp", tmp_path / "runs" / "cmp")
    (tmp_path / "secret").write_text("secret")
    (run / place).unlink(missing_ok=True)
    (run / place).symlink_to(tmp_path / "secret")
    with pytest.raises(NotServedError, match="link out of the runs folder"):
        RunsFolder(run.parent).path_of("cmp")


def test_events_outside_the_folder_are_not_read(runs, tmp_path):
    run = shutil.copytree(runs / "cmp", tmp_path / "runs" / "cmp")
    (run / "session.json").write_text('{"telemetry_dir": "/etc"}')
    with pytest.raises(NotServedError, match="its events are in /etc"):
        RunsFolder(run.parent).path_of("cmp")


def test_a_report_page_that_is_no_file_is_not_opened(runs, tmp_path):
    run = shutil.copytree(runs / "cmp", tmp_path / "runs" / "cmp")
    (run / "report.html").unlink()
    os.mkfifo(run / "report.html")
    with pytest.raises(NotServedError, match="no report page"):
        RunsFolder(run.parent).report_of("cmp")


def test_the_folder_must_hold_runs_and_not_be_one(runs, tmp_path):
    with pytest.raises(EsperError, match="is a run: give the folder that it is in"):
        RunsFolder(runs / "cmp")
    with pytest.raises(EsperError, match="does not exist"):
        RunsFolder(tmp_path / "none")
