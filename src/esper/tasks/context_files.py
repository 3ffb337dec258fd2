"""Contexts by name, from JSON text or from a JSON file."""

from __future__ import annotations

import json
from pathlib import Path

from esper.leyline.codec import read_record, to_json
from esper.leyline.context import NAMED_CONTEXTS, ContextSpec
from esper.leyline.errors import EsperError, shown, unknown_name
from esper.storage.sealed_json import parse_json


def read_context(text: str) -> ContextSpec:
    """Return a named spec, or read one from JSON text or a file; missing fields keep defaults.

    >>> read_context('{"price": {"low": 0.5, "high": 2}}').price.high
    2.0
    """
    if text in NAMED_CONTEXTS:
        return NAMED_CONTEXTS[text]
    if text.lstrip().startswith("{"):
        return _parse(text.encode(), "contexts")
    path = Path(text)
    if not text.endswith(".json") and not path.exists():
        raise unknown_name("contexts", text, NAMED_CONTEXTS, "or a JSON file")
    try:
        return _parse(path.read_bytes(), f"contexts {shown(text)}")
    except OSError as error:
        raise EsperError(f"contexts {shown(text)}: cannot read it ({error.strerror})") from None


def _parse(content: bytes, where: str) -> ContextSpec:
    try:
        document = parse_json(content)
    except ValueError as error:
        raise EsperError(f"{where}: not valid JSON ({error})") from None
    if isinstance(document, dict):
        defaults = to_json(ContextSpec())
        assert isinstance(defaults, dict)  # records encode to objects
        document = defaults | document
    return read_record(ContextSpec, document, where)


def context_text(spec: ContextSpec) -> str:
    """Return the name of a spec, or its JSON text."""
    for name, known in NAMED_CONTEXTS.items():
        if spec == known:
            return name
    return json.dumps(to_json(spec))
