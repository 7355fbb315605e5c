"""Wiring of the view: settings, role, shell. Run by `caravan run view`."""

import asyncio
import sys

from services.view.node_streams import keep_node_streams
from services.view.role import GATHER_NS, View
from services.view.snapshot_writer import SnapshotSchedule
from services.view.subscriptions import subscribe_without_headers
from shared.bus.log.scrub import scrub_log
from shared.bus.process.runner import RoleSpec, run_services
from shared.bus.process.settings import RunSettings, new_instance
from shared.bus.shell.shell import Shell
from shared.core.runtime.messages import Listen, LogScrubbed

#: A third of the weight of a role that decides: decisions go before publishing.
NICENESS = 5


def build(settings: RunSettings) -> RoleSpec:
    """Make the role from the environment."""
    when = SnapshotSchedule(
        records=settings.snapshot_records,
        minutes=settings.snapshot_minutes,
        spread=settings.snapshot_spread,
    )
    view = View(
        instance=new_instance("view"), reads_dead_letters=True, snapshots=when, gather_ns=GATHER_NS
    )
    listens = [source.name for source in view.sources() if isinstance(source, Listen)]
    carriers = dict.fromkeys(listens, subscribe_without_headers)
    given = {
        "follow_dead": True,
        "gather_ns": GATHER_NS,
        "snapshots": {
            "records": when.records,
            "minutes": when.minutes,
            "spread": when.spread,
        },
    }

    async def beside(shell: Shell) -> None:
        kept = keep_node_streams(lambda: shell.bus if shell.is_ready else None, settings.replicas)
        await asyncio.gather(kept, *([scrub(shell)] if settings.scrub_pause_s > 0 else []))

    async def scrub(shell: Shell) -> None:
        def found(one: LogScrubbed) -> None:
            shell.inject([one])
            if one.problem or one.is_pass_done:
                shell.problems.note(
                    "log", one.problem and f"the log is damaged on disk: {one.problem}"
                )

        await scrub_log(
            lambda: shell.bus if shell.is_ready else None,
            lambda: view.next_seq - 1,
            found,
            pause_s=settings.scrub_pause_s,
        )

    return RoleSpec(
        role=view,
        carriers=carriers,
        niceness=NICENESS,
        given=given,
        side_task=beside,
    )


if __name__ == "__main__":
    sys.exit(run_services([build]))
