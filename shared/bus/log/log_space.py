"""Polls the server for the fill level of the log and whether it is writable, for roles that request it.

Independent of what a role does with it. A missing answer is ignored.
"""

import asyncio
from collections.abc import Callable

from shared.bus.jetstream import streams
from shared.bus.jetstream.pull_consumer import CurrentConnection
from shared.bus.log.generations import ActiveGeneration
from shared.core.runtime.log_capacity import WRITE_FAILED
from shared.core.runtime.messages import LogSpace
from shared.errors import BusUnavailable

EVERY_S = 2.0
_DROP_BOX_FAILED = "the bus cannot write the drop box (JOBS), its disk is full or faulty"


async def watch_log_space(
    link: CurrentConnection,
    head: ActiveGeneration,
    put: Callable[[LogSpace], None],
    note: Callable[[str], None],
) -> None:
    """Put bytes and bound of the newest generation, and note what cannot be written (empty: nothing), for ever."""
    while True:
        try:
            found = await streams.info(link.bus, head.stream, lost=True)
            box = await streams.info(link.bus, streams.JOBS.name, lost=True)
        except BusUnavailable:
            found = box = None
        if found is not None and found.config is not None:
            space = LogSpace(
                bytes=found.state.bytes,
                bytes_max=max(found.config.max_bytes, 0),
                last_seq=found.state.last_seq,
                is_write_failed=found.state.is_write_failed,
            )
            put(space)
            is_box_failed = box is not None and box.state.is_end_lost
            box_fault = _DROP_BOX_FAILED if is_box_failed else ""
            note(WRITE_FAILED if space.is_write_failed else box_fault)
        await asyncio.sleep(EVERY_S)
