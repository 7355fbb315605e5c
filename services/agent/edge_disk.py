"""What the directories of live allocations take, looked at every now and then.

Decides when to look; what follows from it is the role's matter. Next: `edge_dirs.py`.
"""

import asyncio
from collections.abc import Callable

from services.agent.edge_dirs import Directories
from shared.core.tasks import DiskUsed

#: How often the directories of what runs are measured.
DISK_S = 30.0


class DiskWatch:
    """`live` says whose directories to look at: key -> shown id; nobody's: it ends."""

    def __init__(
        self,
        directories: Directories,
        live: Callable[[], dict[int, str]],
        tell: Callable[[DiskUsed], None],
    ) -> None:
        self._directories = directories
        self._live = live
        self._tell = tell
        self.is_running = False
        #: MiB of each live allocation when it was last measured.
        self.used_mib: dict[int, int] = {}

    async def run(self) -> None:
        """Look as long as anything runs; say what changed by a whole MiB."""
        try:
            while self._live():
                await asyncio.sleep(DISK_S)
                found, before = self._live(), self.used_mib
                self.used_mib = {key: before.get(key, 0) for key in found}
                for key, alloc_id in found.items():
                    one = await asyncio.to_thread(self._directories.measure, alloc_id)
                    if one.used_mib != self.used_mib[key]:
                        self.used_mib[key] = one.used_mib
                        is_partial = one.is_partial
                        said = DiskUsed(key=key, used_mib=one.used_mib, is_partial=is_partial)
                        self._tell(said)
        finally:
            self.is_running = False
