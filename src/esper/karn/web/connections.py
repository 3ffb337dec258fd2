"""`BoundedConnection`: a connection has some seconds for a request, and makes room for newer ones.

uvicorn waits without end for the rest of a request, and refuses everybody once its limit of
connections is reached: a few hundred half-open ones would lock the server.
"""

from __future__ import annotations

import asyncio
from typing import Final

from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS: Final = 256
REQUEST_SECONDS: Final = 10.0
"""For the head of a request, from the connection or the last answer on."""
ANSWER_SECONDS: Final = 60.0
"""For an answer to be made and read."""


class BoundedConnection(H11Protocol):
    """An HTTP connection."""

    _waits: bool | None = None
    """For a request; else for an answer to be read."""
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._since = self.loop.time()
        self._watch()
        self._make_room()

    def data_received(self, data: bytes) -> None:
        """Bytes that complete no request win no time."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._watch()

    def handle_websocket_upgrade(self, event: object) -> None:
        """From now on it is a socket, which has rules of its own."""
        self._stop_watching()
        super().handle_websocket_upgrade(event)  # type: ignore[arg-type]

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing to wait for."""
        self._stop_watching()
        super().connection_lost(exc)

    @property
    def waits(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _watch(self) -> None:
        if self.transport.is_closing() or self._waits is self.waits or self not in self.connections:
            return
        self._stop_watching()
        self._waits = self.waits
        seconds = REQUEST_SECONDS if self._waits else ANSWER_SECONDS
        self._deadline = self.loop.call_later(seconds, self.transport.abort)

    def _stop_watching(self) -> None:
        self._waits = None
        if self._deadline is not None:
            self._deadline.cancel()

    def _make_room(self) -> None:
        """Close the oldest connection that waits for a request if there are too many."""
        if len(self.connections) <= MAX_CONNECTIONS:
            return
        idle = [it for it in self.connections if isinstance(it, BoundedConnection) and it.waits]
        oldest = min(idle, key=lambda one: one._since)
        self.connections.discard(oldest)
        oldest.transport.abort()
