"""How full the log is: the server is asked every few seconds, for the roles that want to know.

Must not know what a role does with it. An answer that does not come is no news.
"""

import asyncio
from collections.abc import Callable

from shared.bus import streams
from shared.bus.generations import Head
from shared.bus.pull import Link
from shared.core.role import LogSpace
from shared.errors import BusUnavailable

EVERY_S = 5.0


async def watch_space(link: Link, head: Head, put: Callable[[LogSpace], None]) -> None:
    """Tell the bytes and the bound of the newest generation, for ever."""
    while True:
        try:
            found = await streams.info(link.bus, head.stream)
        except BusUnavailable:
            found = None
        if found is not None and found.config is not None:
            space = LogSpace(
                bytes=found.state.bytes,
                bytes_max=max(found.config.max_bytes, 0),
                last_seq=found.state.last_seq,
            )
            put(space)
        await asyncio.sleep(EVERY_S)
