"""Connections that send half a request, or never read, lock nobody else out."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from esper.karn.web import connections, live
from esper.karn.web.access import access_for
from esper.karn.web.live import LiveSockets
from esper.karn.web.places import RunsFolder
from esper.karn.web.server import bound_socket, make_server

HALF = b"GET /api/runs HTTP/1.1\r\nHost: 127.0"
SOCKET = (
    b"GET /api/runs/cmp/live HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    b"Sec-WebSocket-Version: 13\r\n\r\n"
)
PROMPT = 5.0
"""Seconds, on a machine that does much else."""


@contextmanager
def serving(runs) -> Iterator[int]:
    """The port of a server in a thread."""
    server = make_server(RunsFolder(runs), access_for("127.0.0.1", None))
    with bound_socket("127.0.0.1", 0) as listening:
        work = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])))
        work.start()
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            work.join()


def status_of(port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/runs", timeout=PROMPT) as answer:
        return answer.status


def opened(stack: ExitStack, port: int, sent: bytes) -> socket.socket:
    found = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PROMPT))
    found.sendall(sent)
    return found


def test_half_open_connections_and_sockets_that_never_read_lock_nobody_out(runs, monkeypatch):
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 24)
    some: list[socket.socket] = []
    with serving(runs) as port, ExitStack() as stack:
        for _ in range(3):
            for sent in (HALF, b"", SOCKET, HALF) * 5:
                some.append(opened(stack, port, sent))
            assert status_of(port) == 200
        assert is_open(some[-1])
        assert not is_open(some[0]), "made room"


def is_open(found: socket.socket) -> bool:
    found.settimeout(0.05)
    try:
        return bool(found.recv(1))
    except TimeoutError:
        return True
    except ConnectionError:
        return False


def test_a_request_that_stays_incomplete_is_closed_however_slowly_it_comes(runs, monkeypatch):
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.3)
    with serving(runs) as port, ExitStack() as stack:
        half = opened(stack, port, HALF)
        began = time.monotonic()
        while is_open(half):
            assert time.monotonic() < began + PROMPT
            half.sendall(b"x")
        assert time.monotonic() - began >= 0.2


def test_an_answer_that_nobody_reads_is_given_up(monkeypatch):
    """Its place is free again."""
    monkeypatch.setattr(live, "SEND_SECONDS", 0.05)

    class Deaf:
        async def accept(self) -> None: ...

        async def send_text(self, text: str) -> None:
            await asyncio.sleep(60)

    class Feed:
        def first(self) -> dict[str, object]:
            return {"run": None}

    sockets = LiveSockets()
    asyncio.run(asyncio.wait_for(sockets.follow(Deaf(), Feed), PROMPT))  # type: ignore[arg-type]
    assert sockets._open == 0
