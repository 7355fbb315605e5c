"""The first seconds of the rare edge: questions are heard at once, and FastStream takes over when it is loaded.

Loading it takes as long as everything else that a view does before it answers, and whoever asks may have waited since
the view before died. So the shell's own subscription hears first, and FastStream is loaded in a thread, once the start
is over. Both are members of one queue group and hand over the same bytes: what is asked in between reaches exactly
one of them. Must not know a noun.
"""

import asyncio
from functools import partial

from shared.bus.connect import BusClient
from shared.bus.frames import Handler
from shared.bus.sources import Carrier
from shared.core.role import Listen

#: By then a view has replayed and answered, and a processor has time for FastStream.
LOADED_AFTER_S = 2.0
#: Nobody else holds them.
_takeovers: set[asyncio.Task[None]] = set()


async def carry(bus: BusClient, source: Listen, deliver: Handler) -> None:
    """Subscribe for a Listen source of core NATS now, and have FastStream carry it soon."""
    number = await bus.listen(source.subject, deliver, source.queue)
    takeover = asyncio.ensure_future(_take_over(bus, source, deliver, number))
    _takeovers.add(takeover)
    takeover.add_done_callback(partial(_ended, bus))


async def _take_over(bus: BusClient, source: Listen, deliver: Handler, number: int) -> None:
    await asyncio.sleep(LOADED_AFTER_S)
    through_faststream = await asyncio.to_thread(_load)
    await through_faststream(bus, source, deliver)
    await bus.leave(number)


def _ended(bus: BusClient, takeover: asyncio.Task[None]) -> None:
    _takeovers.discard(takeover)
    err = None if takeover.cancelled() else takeover.exception()
    # A client that was closed meanwhile is followed by another, which is carried anew.
    if err is not None and not bus.is_closed and bus.on_failure is not None:
        bus.on_failure(err)


def _load() -> Carrier:
    from services.view import edge  # noqa: PLC0415 - half a second that nobody shall wait for.

    return edge.carry
