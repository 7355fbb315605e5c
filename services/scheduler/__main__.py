"""Wiring of the scheduler worker: settings, role, shell. Run by `caravan run scheduler`."""

import sys

from services.scheduler.role import Scheduler
from shared.bus.instances import log_settings, new_instance
from shared.bus.runner import run_role, run_settings


def main() -> int:
    """Run until a signal; returns the exit code. Raises ConfigInvalid for settings that cannot be used."""
    settings = run_settings()
    log_settings("scheduler", settings, level=settings.log_level)
    return run_role(Scheduler(instance=new_instance("scheduler")), settings)


if __name__ == "__main__":
    sys.exit(main())
