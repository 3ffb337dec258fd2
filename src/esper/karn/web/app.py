"""`make_app`: the routes of the dashboard. All read, none writes."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from html import escape
from typing import Annotated, Final

from fastapi import FastAPI, Query, Request, Response, WebSocket
from fastapi.responses import FileResponse, HTMLResponse

from esper.karn import views
from esper.karn.views.plain import to_plain
from esper.karn.web.access import Access
from esper.karn.web.assets import STATIC, PageFiles, page
from esper.karn.web.comparing import compare_runs
from esper.karn.web.feed import RunFeed
from esper.karn.web.guard import REPORT_POLICY, Guard
from esper.karn.web.life_lines import growth_entry, read_life_lines, stage_look
from esper.karn.web.listing import RunList
from esper.karn.web.live import LiveSockets
from esper.karn.web.places import NotServedError, RunsFolder
from esper.leyline.errors import EsperError, shown

_HUGE: Final = 1 << 40
"""Rounds and members in addresses are cut to this."""
MAX_COLUMNS: Final = 40
"""Settings that a list of runs carries."""
Names = Annotated[Sequence[str], Query()]


def make_app(folder: RunsFolder, access: Access) -> Guard:
    """The application for the runs of a folder, behind its guard."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    _add_pages(app, folder)
    _add_records(app, folder)
    app.add_exception_handler(EsperError, _refuse)
    app.add_exception_handler(404, _refuse)
    return Guard(app, access)


def _page(name: str) -> Response:
    """A page; browsers may keep it for the way back, and ask whether it has changed."""
    return HTMLResponse(page(name), headers={"cache-control": "no-cache"})


def _add_pages(app: FastAPI, folder: RunsFolder) -> None:
    app.mount("/static", PageFiles(directory=STATIC, follow_symlink=True))

    @app.get("/")
    def list_page() -> Response:
        return _page("list")

    @app.get("/compare")
    def compare_page() -> Response:
        return _page("compare")

    @app.get("/runs/{run_id}")
    def run_page(run_id: str) -> Response:
        if not folder.has(run_id):
            raise NotServedError(f"there is no run {shown(run_id)} in {folder.root}")
        return _page("run")

    @app.get("/runs/{run_id}/report")
    def report_page(run_id: str) -> Response:
        return FileResponse(
            folder.report_of(run_id),
            media_type="text/html; charset=utf-8",
            headers={"content-security-policy": REPORT_POLICY},
        )

    @app.get("/runs/{run_id}/networks/{name:path}")
    def network_file(run_id: str, name: str) -> Response:
        return FileResponse(
            folder.network_file(run_id, name),
            media_type="application/octet-stream",
            filename=name.replace("/", "-"),
        )


def _add_records(app: FastAPI, folder: RunsFolder) -> None:
    runs, sockets = RunList(folder), LiveSockets()
    threading.Thread(target=runs.read, name="first list of runs", daemon=True).start()

    @app.get("/api/runs")
    def run_list(setting: Names = ()) -> Response:
        found = runs.read_with(setting[:MAX_COLUMNS])
        return _as_json({"folder": str(folder.root), "runs": found})

    @app.get("/api/settings")
    def setting_names() -> Response:
        return _as_json({"settings": runs.setting_names()})

    @app.get("/api/compare")
    def comparison(run: Names = (), baseline: str = "") -> Response:
        return _as_json(compare_runs(folder, run, baseline))

    @app.get("/api/stages")
    def stages() -> Response:
        return _as_json(stage_look())

    @app.get("/api/runs/{run_id}")
    def run_record(run_id: str) -> Response:
        return _as_json(RunFeed(folder.path_of(run_id)).first())

    @app.get("/api/runs/{run_id}/networks/{number}")
    def network(run_id: str, number: str) -> Response:
        found = views.network_detail(folder.path_of(run_id), _count("network", number))
        return _as_json(to_plain(found))

    @app.get("/api/runs/{run_id}/seeds")
    def life_lines(run_id: str, round: str = "", member: str = "") -> Response:
        at = None if round == "" else _count("round", round)
        return _as_json(
            read_life_lines(folder.path_of(run_id), at, _count("member", member or "0"))
        )

    @app.get("/api/runs/{run_id}/growth")
    def growth(run_id: str, round: str = "", member: str = "") -> Response:
        at = None if round == "" else _count("round", round)
        chosen = None if member == "" else _count("member", member)
        found = views.read_growth(folder.path_of(run_id), at, chosen)
        return _as_json(growth_entry(found))

    @app.websocket("/api/runs/{run_id}/live")
    async def live(socket: WebSocket, run_id: str) -> None:
        await sockets.follow(socket, lambda: RunFeed(folder.path_of(run_id)))


def _as_json(value: object) -> Response:
    """Strict JSON in ASCII: names of folders need not be Unicode."""
    return Response(json.dumps(value, allow_nan=False), media_type="application/json")


def _count(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise EsperError(f"{name}: a whole number from 0")
    return int(text[:13]) if len(text) <= 13 else _HUGE


def _refuse(request: Request, error: Exception) -> Response:
    """What was asked for cannot be shown: one line for scripts, a page for people."""
    is_missing = not isinstance(error, EsperError) or isinstance(error, NotServedError)
    reason = str(error) if isinstance(error, EsperError) else "there is nothing at this address"
    if is_missing and not request.url.path.startswith("/api/"):
        return HTMLResponse(page("missing").replace("<!--reason-->", escape(reason)), 404)
    answer = _as_json({"error": reason})
    answer.status_code = 404 if is_missing else 400
    return answer
