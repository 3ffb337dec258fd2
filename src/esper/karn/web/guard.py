"""`Guard`: checks every request before any route sees it, and adds the security headers.

In this order: Host (a foreign one means DNS rebinding), method (reading only), Origin of sockets,
token. The token comes once in the address; a cookie takes its place, and the address is cleaned.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, urlencode

from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from esper.karn.web.access import Access

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

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        asked = HTTPConnection(scope)
        problem = self._problem(asked)
        if scope["type"] == "websocket":
            if problem is not None:
                await send({"type": "websocket.close", "code": 1008, "reason": problem[1][:100]})
                return
            await self._app(scope, receive, send)
            return
        answer = self._app
        cleaned = None if problem and problem[0] != 401 else self._token_address(asked)
        if cleaned is not None:
            answer = self._accept_token(cleaned)
        elif problem is not None:
            answer = PlainTextResponse(f"{problem[1]}\n", problem[0])
        await answer(scope, receive, _with_headers(send))

    def _problem(self, asked: HTTPConnection) -> tuple[int, str] | None:
        """Status and sentence of a refusal; None: serve it."""
        hosts, is_http = asked.headers.getlist("host"), asked.scope["type"] == "http"
        if len(hosts) != 1 or not self._access.allows_host(hosts[0]):
            return 400, "This Host is not served here: use the address that esper serve printed."
        if is_http and asked.scope["method"] not in ("GET", "HEAD"):
            return 405, "esper serve only shows runs: GET is the only method."
        origins = [] if is_http else asked.headers.getlist("origin")
        if not all(self._access.allows_origin(origin, hosts[0]) for origin in origins):
            return 403, "A page of another site asked."
        if self._access.token is not None and not self._is_authenticated(asked):
            return 401, "A token is needed: open the address that esper serve printed."
        return None

    def _is_authenticated(self, asked: HTTPConnection) -> bool:
        scheme, _, given = asked.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._access.is_token(given.strip()):
            return True
        return self._access.is_cookie(asked.cookies.get(self._access.cookie_name, ""))

    def _token_address(self, asked: HTTPConnection) -> str | None:
        """The address without the right token that it carries; None if it carries none."""
        pairs = asked.query_params.multi_items()
        if not any(name == _TOKEN and self._access.is_token(value) for name, value in pairs):
            return None
        rest = urlencode([pair for pair in pairs if pair[0] != _TOKEN])
        # One slash: `//name` would be the address of another server.
        path = "/" + quote(asked.scope["path"].lstrip("/"))
        return f"{path}?{rest}" if rest else path

    def _accept_token(self, address: str) -> PlainTextResponse:
        answer = PlainTextResponse("Token accepted.\n", 303, {"location": address})
        name, value = self._access.cookie_name, self._access.cookie_value
        answer.headers["set-cookie"] = f"{name}={value}; Path=/; HttpOnly; SameSite=Strict"
        return answer


def _with_headers(send: Send) -> Send:
    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            present = {name.lower() for name, _ in headers}
            headers += [pair for pair in _HEADERS if pair[0] not in present]
            message = {**message, "headers": headers}
        await send(message)

    return guarded
