"""Makes the streams USAGE and LOGS, and again after their loss: agents publish there, no role needs them."""

import asyncio
from collections.abc import Callable

import msgspec
import structlog

from shared.bus.connection.nats_client import BusClient
from shared.bus.jetstream import streams
from shared.errors import BusUnavailable

#: A stream in memory ends with its server.
LOOK_S = 10.0
log = structlog.get_logger()


async def keep_node_streams(
    bus_of: Callable[[], BusClient | None], replicas: int, *, look_s: float = LOOK_S
) -> None:
    """Look for them until cancelled. `bus_of`: the present connection; None: it is away.

    A bus with an older configuration does not let a view make one, and one of other settings is left as it is: both are
    logged once.
    """
    problems: dict[str, str] = {}
    while True:
        bus = bus_of()
        if bus is not None and bus.is_connected:
            for one in streams.OF_NODES:
                wanted = msgspec.structs.replace(one, num_replicas=replicas)
                try:
                    if not await streams.is_there(bus, wanted):
                        await streams.create(bus, wanted)
                    problems.pop(one.name, None)
                except BusUnavailable as err:
                    if one.name not in problems:
                        log.warning("node_stream.missing", stream=one.name, reason=str(err))
                    problems[one.name] = str(err)
        await asyncio.sleep(look_s)
