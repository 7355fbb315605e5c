"""Wiring of the heartbeat monitor: settings, role, shell. Run by `caravan run heartbeat`."""

import sys

from services.heartbeat.role import Heartbeat
from shared.bus.instances import log_settings, new_instance
from shared.bus.runner import run_role, run_settings


def main() -> int:
    """Run until a signal; returns the exit code. Raises ConfigInvalid for settings that cannot be used."""
    settings = run_settings()
    log_settings("heartbeat", settings, level=settings.log_level)
    return run_role(Heartbeat(instance=new_instance("heartbeat")), settings)


if __name__ == "__main__":
    sys.exit(main())
