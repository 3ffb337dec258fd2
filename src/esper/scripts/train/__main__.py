"""`python -m esper.scripts.train` is `esper train`."""

from __future__ import annotations

import sys

from esper.scripts.train import main

if __name__ == "__main__":
    sys.exit(main())
