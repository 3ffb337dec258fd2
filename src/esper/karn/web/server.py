"""`serve`: binds the address, prints where to look, and runs until it is stopped."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvicorn

from esper.karn.web.access import Access, access_for
from esper.karn.web.app import make_app
from esper.karn.web.connections import BoundedConnection
from esper.karn.web.places import RunsFolder
from esper.leyline.errors import EsperError

_BACKLOG: Final = 64
_CLIENT_BYTES: Final = 4096
"""Largest message that a page may send; pages send none."""
_WILDCARDS: Final = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """What is served, and where."""

    runs: Path
    host: str
    port: int
    token_file: Path | None
    names: tuple[str, ...]


def serve(settings: ServeSettings, say: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; `say` prints the address."""
    folder = RunsFolder(settings.runs)
    access = access_for(settings.host, settings.token_file, settings.names)
    with bound_socket(settings.host, settings.port) as listening:
        for line in _greeting(settings, access, listening.getsockname()[1]):
            say(line)
        asyncio.run(make_server(folder, access).serve(sockets=[listening]))


def make_server(folder: RunsFolder, access: Access) -> uvicorn.Server:
    """A server for the runs of a folder."""
    return uvicorn.Server(
        uvicorn.Config(
            make_app(folder, access),
            http=BoundedConnection,
            log_level="warning",
            access_log=False,  # it would hold the token
            server_header=False,
            proxy_headers=False,
            lifespan="off",
            ws_max_size=_CLIENT_BYTES,
            timeout_graceful_shutdown=1,
        )
    )


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that listens at an address; raises in one line if that is not possible."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, OverflowError, UnicodeError):
        raise EsperError(f"--host {host}: no such address on this machine") from None
    family, kind, protocol, _, address = found[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise EsperError(_bind_problem(host, port, error)) from None
    return listening


def _bind_problem(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use: choose another with --port, or 0 for a free one"
    if error.errno == errno.EACCES:
        return f"port {port} needs more rights: choose one above 1023 with --port"
    return f"cannot listen on {host} port {port}: {error.strerror}; set --host and --port"


def _greeting(settings: ServeSettings, access: Access, port: int) -> list[str]:
    """Lines that say where to look; the only place that shows the token."""
    host = _WILDCARDS.get(settings.host, settings.host)
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    address = f"http://{host}:{port}/"
    if access.token is None:
        return [f"runs of {settings.runs} at {address} (Ctrl-C stops)"]
    if settings.token_file is not None:
        said = f"{address}?token=TOKEN with the token of {settings.token_file}"
        return [f"runs of {settings.runs} at {said} (Ctrl-C stops)"]
    return [
        f"runs of {settings.runs} at {address}?token={access.token} (Ctrl-C stops)",
        "the token is shown once; whoever has it can read these runs, and http is not encrypted",
    ]
