"""Wiring of the plan applier: settings, role, shell. Run by `caravan run plan_applier`."""

import sys

import msgspec

from services.plan_applier.role import PlanApplier
from shared.bus.instances import log_settings, new_instance, settings_from
from shared.bus.runner import run_role, run_settings
from shared.errors import ConfigInvalid


class ApplierSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What only the plan applier is told."""

    #: names the cluster in its first lease; a log of another cluster is not continued.
    cluster_id: str = ""
    #: allow a bus that does not fsync: what was acknowledged may be lost with the machine.
    dev: bool = False


def main() -> int:
    """Run until a signal; returns the exit code. Raises ConfigInvalid for settings that cannot be used."""
    settings, own = run_settings(), settings_from(ApplierSettings)
    if not own.cluster_id:
        raise ConfigInvalid("CARAVAN_CLUSTER_ID is not set")
    log_settings("plan_applier", settings, own, level=settings.log_level)
    role = PlanApplier(
        instance=new_instance("plan_applier"),
        cluster_id=own.cluster_id,
        require_fsync=not own.dev,
    )
    return run_role(role, settings)


if __name__ == "__main__":
    sys.exit(main())
