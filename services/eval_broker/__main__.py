"""Wiring of the eval broker. Run by `caravan run eval_broker`."""

import sys

from services.eval_broker.role import EvalBroker
from shared.bus.process.runner import RoleSpec, run_services
from shared.bus.process.settings import RunSettings, new_instance


def build(_settings: RunSettings) -> RoleSpec:
    """Create the role from the environment."""
    return RoleSpec(role=EvalBroker(instance=new_instance("eval_broker")))


if __name__ == "__main__":
    sys.exit(run_services([build]))
