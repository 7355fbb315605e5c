"""`python -m services.cli`: the same as the `caravan` script."""

import sys

from services.cli.entry_point import main

if __name__ == "__main__":
    sys.exit(main())
