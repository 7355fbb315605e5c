"""A plan applier whose shell ignores the leadership lease: it always leads, and leads again soon after it resigned.

Only what is for liveness is switched off; the log's fence is the product's own. Run as `caravan run plan_applier` is.
"""

import asyncio
import sys
from collections.abc import Callable

from services.plan_applier.__main__ import build
from shared.bus.jetstream.pull_consumer import CurrentConnection
from shared.bus.process.runner import run_services
from shared.bus.shell import shell
from shared.core.runtime.messages import LeadershipWon
from shared.core.runtime.role import Input

_AGAIN_S = 0.15


class Lawless:
    """Leadership that is always granted."""

    def __init__(
        self, link: CurrentConnection, put: Callable[[Input], None], *, key: str, instance: str
    ) -> None:
        del link, key, instance
        self._put = put
        self._started = False

    def start(self) -> None:
        """Lead at once."""
        if not self._started:
            self._started = True
            self._put(LeadershipWon())

    def resign(self) -> None:
        """Lead again, even if another instance leads."""
        asyncio.get_running_loop().call_later(_AGAIN_S, self._put, LeadershipWon())

    def stop(self) -> None:
        """Nothing was held."""


if __name__ == "__main__":
    shell.LeaderElection = Lawless  # type: ignore[assignment,misc]
    sys.exit(run_services([build]))
