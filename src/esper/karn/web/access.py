"""Who may ask: the token, and the Host names that requests may carry."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import re
import secrets
import socket
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from esper.leyline.errors import EsperError

SHORTEST_TOKEN: Final = 16
"""Characters; a shorter one could be guessed."""


@dataclass(frozen=True, slots=True)
class Access:
    """Rules for one server."""

    token: str | None = field(repr=False)
    """None: everybody who reaches the address may read."""
    names: frozenset[str]
    """Host names that requests may carry, in lower case."""
    any_address: bool
    """Whether a Host may be any IP address; else it must be a loopback one (127.0.0.1).

    Attacks that rebind a name need a name, so an address is safe."""

    def allows_host(self, header: str) -> bool:
        """Whether a Host header names this server, whatever its port."""
        name = _host_of(header)
        if not name:
            return False
        if name in self.names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return self.any_address or address.is_loopback

    def allows_origin(self, origin: str, host: str) -> bool:
        """Whether a page of `origin` may open a socket to `host`: only one of this server."""
        return urlsplit(origin).netloc.lower() == host.lower()

    def is_token(self, given: str) -> bool:
        """Whether a token is right, in constant time."""
        return self.token is not None and _same(given, self.token)

    @property
    def cookie_name(self) -> str:
        """Differs between servers of one machine, whose cookies browsers do not keep apart."""
        return f"esper-{self._derived('name')[:12]}"

    @property
    def cookie_value(self) -> str:
        """Proof of the token; the token itself is not stored in the browser."""
        return self._derived("value")

    def is_cookie(self, given: str) -> bool:
        """Whether a cookie is right, in constant time."""
        return self.token is not None and _same(given, self.cookie_value)

    def _derived(self, purpose: str) -> str:
        key = (self.token or "").encode(errors="surrogateescape")
        return hmac.new(key, f"esper serve {purpose}".encode(), hashlib.sha256).hexdigest()


def access_for(host: str, token_file: Path | None, names: tuple[str, ...] = ()) -> Access:
    """Rules for a server at an address: open on this machine, else with a token."""
    is_local = _is_loopback(host)
    made = None if is_local else secrets.token_urlsafe(32)
    token = _read_token(token_file) if token_file else made
    known = {"localhost", host, *names}
    if not is_local:
        known |= {socket.gethostname(), socket.getfqdn()}
    return Access(token, frozenset(name.lower().rstrip(".") for name in known), not is_local)


def _is_loopback(host: str) -> bool:
    """Whether only processes of this machine reach an address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _read_token(path: Path) -> str:
    """The token in a file that nobody else can read."""
    try:
        token = path.read_text(encoding="utf-8").strip()
        mode = path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise EsperError(f"--token-file {path}: {reason}; give a file with one token") from None
    if mode & (stat.S_IRGRP | stat.S_IROTH) and os.name == "posix":
        raise EsperError(f"--token-file {path}: others can read it; chmod 600 {path}")
    if not re.fullmatch(rf"[!-~]{{{SHORTEST_TOKEN},}}", token):
        raise EsperError(
            f"--token-file {path}: a token is {SHORTEST_TOKEN} or more ASCII characters without "
            f"spaces; `openssl rand -hex 32` makes one"
        )
    return token


def _host_of(header: str) -> str:
    """The name or address of a Host header, without port; empty if it is not one."""
    try:
        parts = urlsplit(f"//{header}")
        _ = parts.port
    except ValueError:
        return ""
    if parts.path or parts.query or parts.fragment or "@" in header:
        return ""
    return (parts.hostname or "").rstrip(".")


def _same(given: str, right: str) -> bool:
    one, other = (text.encode(errors="surrogateescape") for text in (given, right))
    return hmac.compare_digest(one, other)
