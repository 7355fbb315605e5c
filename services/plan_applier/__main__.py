"""Wiring of the plan applier: settings, role, shell. Run by `caravan run plan_applier`."""

import sys

import msgspec

from services.plan_applier.role import PlanApplier
from shared.bus.process.runner import RoleSpec, run_services
from shared.bus.process.settings import RunSettings, new_instance, settings_from
from shared.errors import ConfigInvalid


class ApplierSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the plan applier alone."""

    #: names the cluster in its first lease; a log of another cluster is not continued.
    cluster_id: str = ""
    #: allow a bus that does not fsync: what was acknowledged may be lost with the machine.
    dev: bool = False


def build(_settings: RunSettings) -> RoleSpec:
    """Create the role from the environment. Raises ConfigInvalid."""
    own = settings_from(ApplierSettings)
    if not own.cluster_id:
        raise ConfigInvalid("CARAVAN_CLUSTER_ID is not set")
    given = {"cluster_id": own.cluster_id, "require_fsync": not own.dev}
    role = PlanApplier(
        instance=new_instance("plan_applier"),
        cluster_id=own.cluster_id,
        require_fsync=not own.dev,
    )
    return RoleSpec(role=role, given=given, settings=own)


if __name__ == "__main__":
    sys.exit(run_services([build]))
