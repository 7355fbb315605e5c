"""Wiring of the intake: settings, role, shell. Run by `caravan run intake`."""

import sys

from services.intake.role import Intake
from shared.bus.instances import log_settings, new_instance
from shared.bus.runner import run_role, run_settings


def main() -> int:
    """Run until a signal; returns the exit code. Raises ConfigInvalid for settings that cannot be used."""
    settings = run_settings()
    log_settings("intake", settings, level=settings.log_level)
    return run_role(Intake(instance=new_instance("intake")), settings)


if __name__ == "__main__":
    sys.exit(main())
