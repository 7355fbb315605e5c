"""What the log says of an allocation and of the one that it replaces, asked of the view over the agent's connection.

The node that fetches the data of a disk asks, and so does the node that is asked for it: neither believes the other.
"""

import msgspec

from schemas.bounds import bounded_decoder
from schemas.disks import DiskSourceAnswer, DiskSourceAsk
from shared.bus.connection.nats_client import BusClient
from shared.errors import BusUnavailable, CommandInvalid
from shared.protocol import subjects

#: A question waits so long for its answer.
ANSWER_S = 5.0
_DECODER = bounded_decoder(DiskSourceAnswer)
#: Client statuses of an allocation whose data is at rest.
ENDED = ("complete", "failed")


async def ask_disk_source(bus: BusClient | None, node_id: str, alloc_id: str) -> DiskSourceAnswer:
    """Ask as node `node_id`. Raises CommandInvalid: `unavailable` for now, or the view's refusal."""
    if bus is None or not bus.is_connected:
        raise CommandInvalid("unavailable", "the bus is away")
    ask = msgspec.json.encode(DiskSourceAsk(alloc_id=alloc_id))
    subject = subjects.node_disk_sources(node_id)
    try:
        _, body = await bus.request_raw(subject, ask, timeout_s=ANSWER_S)
        found = _DECODER.decode(body)
    except BusUnavailable as err:
        raise CommandInvalid("unavailable", "no view answers") from err
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as err:
        raise CommandInvalid("unavailable", "the view's answer cannot be read") from err
    if found.error is not None:
        raise CommandInvalid(found.error.code, found.error.message)
    return found
