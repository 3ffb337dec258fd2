"""`python -m esper` is the `esper` command."""

from __future__ import annotations

import sys

from esper.scripts.main import main

if __name__ == "__main__":
    sys.exit(main())
