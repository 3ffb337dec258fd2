"""`python -m esper.scripts.compare` is `esper compare`."""

from __future__ import annotations

import sys

from esper.scripts.compare.command import main

if __name__ == "__main__":
    sys.exit(main())
