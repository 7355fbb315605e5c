"""Wiring of the scheduler worker. Run by `caravan run scheduler`."""

import sys

from services.scheduler.role import Scheduler
from shared.bus.process.runner import RoleSpec, run_services
from shared.bus.process.settings import RunSettings, new_instance


def build(_settings: RunSettings) -> RoleSpec:
    """Create the role from the environment."""
    return RoleSpec(role=Scheduler(instance=new_instance("scheduler")))


if __name__ == "__main__":
    sys.exit(run_services([build]))
