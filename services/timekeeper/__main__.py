"""Wiring of the timekeeper. Run by `caravan run timekeeper`."""

import sys

from services.timekeeper.role import Timekeeper
from shared.bus.process.runner import RoleSpec, run_services
from shared.bus.process.settings import RunSettings, new_instance


def build(_settings: RunSettings) -> RoleSpec:
    """Make the role from the environment."""
    return RoleSpec(role=Timekeeper(instance=new_instance("timekeeper")))


if __name__ == "__main__":
    sys.exit(run_services([build]))
