"""Makes the stream USAGE, and again after the bus has lost it: agents publish there, and no role needs it."""

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


async def keep_usage_stream(
    bus_of: Callable[[], BusClient | None], replicas: int, *, look_s: float = LOOK_S
) -> None:
    """Look for it for ever. `bus_of`: the present connection; None: there is none.

    A bus with an older configuration does not let a view make it, and one of other settings is left as it is: both are
    logged once.
    """
    wanted = msgspec.structs.replace(streams.USAGE, num_replicas=replicas)
    problem = ""
    while True:
        bus = bus_of()
        if bus is not None and bus.is_connected:
            try:
                if not await streams.is_there(bus, wanted):
                    await streams.create(bus, wanted)
                problem = ""
            except BusUnavailable as err:
                if not problem:
                    log.warning("usage_stream.missing", reason=str(err))
                problem = str(err)
        await asyncio.sleep(look_s)
