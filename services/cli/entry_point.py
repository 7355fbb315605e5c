"""The `caravan` script."""

import gc
import os

from services.cli import sigint

#: numpy's BLAS starts a thread for each core when it is loaded, a third of the work of starting a role. No role
#: multiplies matrices that would gain from them.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def main() -> int:
    """Run the command line; returns the exit code."""
    # Modules are not garbage: the command is loaded without looking for some.
    gc.disable()
    from services.cli.main import main as run

    sigint.restore_keyboard_interrupt()
    return run()
