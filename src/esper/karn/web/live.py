"""`LiveSockets`: sends a page what is new in its run, for as long as it is open."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Final

from anyio.to_thread import run_sync
from fastapi import WebSocket, WebSocketDisconnect

from esper.karn.web.feed import RunFeed
from esper.leyline.codec import Json
from esper.leyline.errors import EsperError

MAX_SOCKETS: Final = 64
"""Pages that can follow runs at the same time."""
POLL_SECONDS: Final = 1.0
ENDED_POLL_SECONDS: Final = 4.0
"""Of a run without a process; it may be resumed."""
SEND_SECONDS: Final = 10.0
"""For a page to take a message."""
TRY_LATER: Final = 1013
POLICY_VIOLATION: Final = 1008
MAX_REASON_CHARS: Final = 100
"""Characters; a close frame takes 123 bytes."""


class LiveSockets:
    """The open sockets of a server."""

    def __init__(self) -> None:
        self._open = 0

    async def follow(self, socket: WebSocket, make_feed: Callable[[], RunFeed]) -> None:
        """Serve one socket until its page goes away."""
        await socket.accept()
        if self._open >= MAX_SOCKETS:
            await socket.close(TRY_LATER, f"{MAX_SOCKETS} pages follow runs already")
            return
        self._open += 1
        try:
            await _send_updates(socket, make_feed)
        except (WebSocketDisconnect, TimeoutError):
            pass
        except (EsperError, OSError) as error:
            reason = str(error).encode("ascii", "replace").decode()[:MAX_REASON_CHARS]
            await socket.close(POLICY_VIOLATION, reason)
        finally:
            self._open -= 1


async def _send_updates(socket: WebSocket, make_feed: Callable[[], RunFeed]) -> None:
    feed = await run_sync(make_feed)
    message: dict[str, Json] | None = await run_sync(feed.first)
    running = True
    while True:
        if message is not None:
            async with asyncio.timeout(SEND_SECONDS):  # a page that reads nothing holds a place
                await socket.send_text(json.dumps(message, allow_nan=False))
            run = message["run"]
            running = isinstance(run, dict) and run["state"] == "running"
        if await _left(socket, POLL_SECONDS if running else ENDED_POLL_SECONDS):
            return
        message = await run_sync(feed.next)


async def _left(socket: WebSocket, seconds: float) -> bool:
    """Wait; whether the page went away meanwhile. What it says is ignored."""
    try:
        async with asyncio.timeout(seconds):
            while True:
                if (await socket.receive())["type"] == "websocket.disconnect":
                    return True
    except TimeoutError:
        return False
