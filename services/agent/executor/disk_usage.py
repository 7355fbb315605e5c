"""Measures the disk usage of live allocations periodically.

The role decides what follows from it. Next: `alloc_dirs.py`.
"""

import asyncio
from collections.abc import Callable

from services.agent.executor.alloc_dirs import AllocDirs
from shared.core.runtime.agent_messages import DiskUsed

#: Interval between measurements.
DISK_INTERVAL_S = 30.0


class DiskUsageMonitor:
    """`live` returns the allocations to measure, key -> id; measuring ends when there are none."""

    def __init__(
        self,
        directories: AllocDirs,
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
        """Measure while any allocation runs; report changes of a whole MiB."""
        try:
            while self._live():
                await asyncio.sleep(DISK_INTERVAL_S)
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
