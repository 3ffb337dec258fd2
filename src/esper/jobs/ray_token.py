"""The token that a Ray cluster may ask for. Does not import Ray.

`ray start` asks clients for a token if it finds one on its machine. Ray's commands then send the
token of their machine, but connections to ray://HOST:PORT do so only with RAY_AUTH_MODE=token.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

MODE: Final = "RAY_AUTH_MODE"
TOKEN: Final = "RAY_AUTH_TOKEN"
TOKEN_PATH: Final = "RAY_AUTH_TOKEN_PATH"
ADVICE: Final = (
    f"if the cluster wants a token, set {TOKEN_PATH} to a file with that of its head, or {TOKEN} "
    f"to the token; it must have the same version of Ray"
)


def send_token() -> None:
    """Make Ray send the token of this machine, if there is one; an explicit mode is kept.

    Has an effect only before Ray is imported: later, the servers that Ray starts would ask for a
    token that it does not send. Clusters that ask for no token ignore it.
    """
    if MODE not in os.environ and "ray" not in sys.modules and _has_token():
        os.environ[MODE] = "token"


def _has_token() -> bool:
    """Whether there is a token in one of the places where Ray looks for it."""
    if os.environ.get(TOKEN) or os.environ.get(TOKEN_PATH):
        return True
    return (Path.home() / ".ray" / "auth_token").is_file()
