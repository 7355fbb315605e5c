"""Wiring of the eval broker: settings, role, shell. Run by `caravan run eval_broker`."""

import sys

from services.eval_broker.role import EvalBroker
from shared.bus.instances import log_settings, new_instance
from shared.bus.runner import run_role, run_settings


def main() -> int:
    """Run until a signal; returns the exit code. Raises ConfigInvalid for settings that cannot be used."""
    settings = run_settings()
    log_settings("eval_broker", settings, level=settings.log_level)
    return run_role(EvalBroker(instance=new_instance("eval_broker")), settings)


if __name__ == "__main__":
    sys.exit(main())
