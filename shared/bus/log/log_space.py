"""Polls the server for the fill level of the log and whether it is writable, for roles that request it.

The answer holds the server's time, with which the clock of this process is compared. Independent of what a role does
with it. A missing answer is ignored.
"""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from shared.bus.jetstream import streams
from shared.bus.jetstream.pull_consumer import CurrentConnection
from shared.bus.log.generations import ActiveGeneration
from shared.core.runtime.log_capacity import WRITE_FAILED
from shared.core.runtime.messages import LogSpace
from shared.errors import BusUnavailable

EVERY_S = 2.0
_EPOCH = datetime.fromtimestamp(0, UTC)
_DROP_BOX_FAILED = "the bus cannot write the drop box (JOBS), its disk is full or faulty"


async def watch_log_space(
    link: CurrentConnection,
    head: ActiveGeneration,
    put: Callable[[LogSpace], None],
    note: Callable[[str], None],
    *,
    clocks: Callable[[], tuple[int, ...]],
) -> None:
    """Put bytes and bound of the newest generation, and note what cannot be written (empty: nothing), forever.

    `clocks`: the times that this process goes by, each compared with the server's.
    """
    while True:
        sent: tuple[int, ...] = ()
        received: tuple[int, ...] = ()
        try:
            sent = clocks()
            found = await streams.info(link.bus, head.stream, lost=True)
            received = clocks()
            box = await streams.info(link.bus, streams.JOBS.name, lost=True)
        except BusUnavailable:
            found = box = None
        if found is not None and found.config is not None:
            space = LogSpace(
                bytes=found.state.bytes,
                bytes_max=max(found.config.max_bytes, 0),
                last_seq=found.state.last_seq,
                is_write_failed=found.state.is_write_failed,
                clock_off_ns=clock_off_ns(sent, received, found.ts),
            )
            put(space)
            is_box_failed = box is not None and box.state.is_end_lost
            box_fault = _DROP_BOX_FAILED if is_box_failed else ""
            note(WRITE_FAILED if space.is_write_failed else box_fault)
        await asyncio.sleep(EVERY_S)


def clock_off_ns(sent: tuple[int, ...], received: tuple[int, ...], there: datetime | None) -> int:
    """How far the worst of our clocks is ahead of the server's, beyond what the time of the request explains."""
    if there is None:
        return 0
    there_ns = (there - _EPOCH) // timedelta(microseconds=1) * 1000
    offs = [0]
    for before_ns, after_ns in zip(sent, received, strict=True):
        off = (before_ns + after_ns) // 2 - there_ns
        beyond = max(0, abs(off) - abs(after_ns - before_ns) // 2)
        offs.append(beyond if off > 0 else -beyond)
    return max(offs, key=abs)
