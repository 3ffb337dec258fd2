"""`esper serve`: show the runs of a folder in the browser, also while they are written.

esper serve                         the runs in ./runs, at http://127.0.0.1:8642/
esper serve DIR --port 0            of another folder, on a free port
esper serve --host 0.0.0.0          for other machines, with a token
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final

import tyro

from esper.leyline.errors import EsperError, install_hint
from esper.scripts.cli.command import run_command
from esper.scripts.cli.run_paths import RUNS

_NEEDED: Final = ("fastapi", "uvicorn", "websockets")


@dataclass(frozen=True)
class _Serve:
    """Show the runs of a folder in the browser, also while they are written. Reads only."""

    runs: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="[RUNS]")] = RUNS
    """Folder that contains the run folders."""
    host: str = "127.0.0.1"
    """Address to listen on. Any that other machines reach needs a token, which is printed once."""
    port: int = 8642
    """Port to listen on; 0: any free one."""
    token_file: Path | None = None
    """File with a token to use instead of a new one; with it, this machine needs the token, too."""
    names: tuple[str, ...] = ()
    """Host names that browsers may use besides this machine's, as behind a proxy."""

    def __post_init__(self) -> None:
        if not 0 <= self.port < 1 << 16:
            raise EsperError(f"--port {self.port}: 0 to 65535")


def _serve_runs(config: _Serve) -> None:
    """Serve until stopped. Imports are local, so that --help is fast."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise EsperError(f"esper serve needs {', '.join(missing)}: {install_hint('serve')}")
    from esper.karn.web.server import ServeSettings, serve

    settings = ServeSettings(config.runs, config.host, config.port, config.token_file, config.names)
    try:
        serve(settings, lambda line: print(line, flush=True))
    except KeyboardInterrupt:  # the usual end of a server
        print("stopped", file=sys.stderr)


main = partial(run_command, _Serve, _serve_runs)
"""Entry point of the command."""
