"""The `caravan` script."""

from services.cli import sigint


def main() -> int:
    """Run the command line; returns the exit code."""
    from services.cli.main import main as run

    sigint.restore_keyboard_interrupt()
    return run()
