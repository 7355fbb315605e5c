"""Wiring of the heartbeat monitor. Run by `caravan run heartbeat`."""

import sys

from services.heartbeat.role import HeartbeatMonitor
from shared.bus.process.runner import RoleSpec, run_services
from shared.bus.process.settings import RunSettings, new_instance


def build(_settings: RunSettings) -> RoleSpec:
    """Create the role from the environment."""
    return RoleSpec(role=HeartbeatMonitor(instance=new_instance("heartbeat")))


if __name__ == "__main__":
    sys.exit(run_services([build]))
