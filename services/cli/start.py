"""Where the `caravan` script begins: until the command line is there, Ctrl-C just ends the process.

Python would print a traceback out of the middle of an import.
"""

import signal

signal.signal(signal.SIGINT, signal.SIG_DFL)


def main() -> int:
    """Run the command line; returns the exit code."""
    from services.cli.main import main as run

    signal.signal(signal.SIGINT, signal.default_int_handler)
    return run()
