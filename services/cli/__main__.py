"""`python -m services.cli`: the same as `caravan`, for children that must run under this very Python."""

import sys

from services.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
