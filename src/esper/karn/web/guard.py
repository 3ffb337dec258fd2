"""`Guard`: checks every request before any route sees it, and adds the security headers.

In this order: Host (a foreign one means DNS rebinding), method (reading only), Origin of sockets,
token. The token comes once in the address; a cookie takes its place, and the address is cleaned.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode

from esper.karn.web.access import Access

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

CONTENT_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
REPORT_POLICY: Final = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Of pages in run folders: no script, no connection, an origin of their own."""
_HEADERS: Final = (
    (b"content-security-policy", CONTENT_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
    (b"cache-control", b"no-store"),
)
"""Added unless a response has its own."""
_TOKEN: Final = "token"


class Guard:
    """ASGI middleware around the whole application."""

    def __init__(self, app: Application, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        problem = self._problem(scope)
        if scope["type"] == "websocket":
            if problem is not None:
                await send({"type": "websocket.close", "code": 1008, "reason": problem[1][:100]})
                return
            await self._app(scope, receive, send)
            return
        guarded = _with_headers(send)
        cleaned = None if problem and problem[0] != 401 else self._token_address(scope)
        if cleaned is not None:
            await self._accept_token(cleaned, guarded)
        elif problem is not None:
            await _say(guarded, *problem)
        else:
            await self._app(scope, receive, guarded)

    def _problem(self, scope: Scope) -> tuple[int, str] | None:
        """Status and sentence of a refusal; None: serve it."""
        hosts = _values(scope, b"host")
        if len(hosts) != 1 or not self._access.allows_host(hosts[0]):
            return 400, "This Host is not served here: use the address that esper serve printed."
        if scope["type"] == "http" and scope["method"] not in ("GET", "HEAD"):
            return 405, "esper serve only shows runs: GET is the only method."
        origins = _values(scope, b"origin") if scope["type"] == "websocket" else []
        if not all(self._access.allows_origin(origin, hosts[0]) for origin in origins):
            return 403, "A page of another site asked."
        if self._access.token is not None and not self._knows(scope):
            return 401, "A token is needed: open the address that esper serve printed."
        return None

    def _knows(self, scope: Scope) -> bool:
        for header in _values(scope, b"authorization"):
            scheme, _, given = header.partition(" ")
            if scheme.lower() == "bearer" and self._access.is_token(given.strip()):
                return True
        for header in _values(scope, b"cookie"):
            if self._access.is_cookie(_cookie(header, self._access.cookie_name)):
                return True
        return False

    def _token_address(self, scope: Scope) -> str | None:
        """The address without the right token that it carries; None if it carries none."""
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if not any(name == _TOKEN and self._access.is_token(value) for name, value in pairs):
            return None
        rest = urlencode([pair for pair in pairs if pair[0] != _TOKEN])
        # One slash: `//name` would be the address of another server.
        path = "/" + quote(scope["path"].lstrip("/"))
        return f"{path}?{rest}" if rest else path

    async def _accept_token(self, address: str, send: Send) -> None:
        cookie = (
            f"{self._access.cookie_name}={self._access.cookie_value}; "
            f"Path=/; HttpOnly; SameSite=Strict"
        )
        more = ((b"location", address.encode()), (b"set-cookie", cookie.encode()))
        await _say(send, 303, "Token accepted.", more)


def _values(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


def _cookie(header: str, name: str) -> str:
    try:
        found = SimpleCookie(header).get(name)
    except CookieError:
        return ""
    return found.value if found else ""


def _with_headers(send: Send) -> Send:
    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            present = {name.lower() for name, _ in headers}
            headers += [pair for pair in _HEADERS if pair[0] not in present]
            message = {**message, "headers": headers}
        await send(message)

    return guarded


async def _say(
    send: Send, status: int, sentence: str, more: tuple[tuple[bytes, bytes], ...] = ()
) -> None:
    """Answer with one line of plain text."""
    headers = [(b"content-type", b"text/plain; charset=utf-8"), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": f"{sentence}\n".encode()})
