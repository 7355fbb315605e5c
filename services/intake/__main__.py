"""Wiring of the intake. Run by `caravan run intake`."""

import sys

from schemas.base import SECOND_NS
from services.intake.role import Intake
from shared.bus.process.runner import RoleSpec, run_services
from shared.bus.process.settings import RunSettings, new_instance


def build(settings: RunSettings) -> RoleSpec:
    """Make the role from the environment."""
    longest_ns = settings.max_kill_timeout_s * SECOND_NS
    role = Intake(instance=new_instance("intake"), max_kill_timeout_ns=longest_ns)
    return RoleSpec(role=role, given={"max_kill_timeout_ns": longest_ns})


if __name__ == "__main__":
    sys.exit(run_services([build]))
