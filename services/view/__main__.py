"""Wiring of the view: settings, role, shell. Run by `caravan run view`."""

import sys

from services.view.early import carry
from services.view.role import GATHER_NS, View
from services.view.snapshots import When
from shared.bus.instances import log_settings, new_instance
from shared.bus.runner import run_role, run_settings
from shared.core.role import Listen

#: A third of the weight of a role that decides.
NICENESS = 5


def main() -> int:
    """Run until a signal; returns the exit code. Raises ConfigInvalid for settings that cannot be used."""
    settings = run_settings()
    log_settings("view", settings, level=settings.log_level)
    when = When(
        records=settings.snapshot_records,
        minutes=settings.snapshot_minutes,
        spread=settings.snapshot_spread,
    )
    view = View(
        instance=new_instance("view"), follow_dead=True, snapshots=when, gather_ns=GATHER_NS
    )
    listens = [source.name for source in view.sources() if isinstance(source, Listen)]
    carriers = dict.fromkeys(listens, carry)
    # What is decided goes before what is told of it.
    return run_role(view, settings, carriers=carriers, niceness=NICENESS)


if __name__ == "__main__":
    sys.exit(main())
