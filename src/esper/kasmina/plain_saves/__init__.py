"""Plain networks in a folder: safetensors and a description that runs nothing when it is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper.leyline.lazy import attach

if TYPE_CHECKING:
    from esper.kasmina.plain_saves.folder import load_plain as load_plain
    from esper.kasmina.plain_saves.folder import plain_example as plain_example
    from esper.kasmina.plain_saves.folder import save_plain as save_plain
else:
    __getattr__, __dir__, __all__ = attach(__name__)
