"""`/v1/event/stream`: Nomad's events from any index of the log, in order, none left out, one line an index."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec

from schemas.envelope import LogRecord
from services.gateway.edge.agents import streamed
from services.gateway.edge.call import Call
from services.gateway.edge.faults import HttpFault
from services.gateway.edge.followed_log import FollowedLog
from services.gateway.edge.route import Endpoint
from services.gateway.nomad.events import Touched, nomad_events, touched
from services.gateway.nomad.source import Object, ShapeSource
from shared.core.state.state import State
from shared.errors import BusUnavailable, LogDropped, LogError

TOPICS = ("Job", "Evaluation", "Allocation", "Node", "Deployment", "*")
#: Of Nomad, without anything of ours: a subscription to them hears nothing.
_SILENT_TOPICS = ("NodePool", "Service", "Operator", "Variable", "HostVolume", "CSIVolume")
_ENCODER = msgspec.json.Encoder()


class EventTopics:
    """What a reader wants: topics with keys, any of them."""

    def __init__(self, texts: list[str]) -> None:
        self._keys: dict[str, set[str]] = {}
        for text in texts or ["*:*"]:
            topic, _, key = text.partition(":")
            if topic not in TOPICS and topic not in _SILENT_TOPICS:
                raise HttpFault(400, f"invalid topic {topic[:100]!r}")
            self._keys.setdefault(topic, set()).add(key or "*")

    def wants(self, event: Mapping[str, Any]) -> bool:
        """Whether an event is one of them."""
        for topic in (event["Topic"], "*"):
            keys = self._keys.get(topic)
            if keys is None:
                continue
            if "*" in keys or event["Key"] in keys or not keys.isdisjoint(event["FilterKeys"]):
                return True
        return False


class TopicEvents:
    """Makes the lines of one reader."""

    def __init__(self, topics: EventTopics) -> None:
        self._topics = topics
        self._about = Touched((), ())

    def before(self, state: State, record: LogRecord, seq: int) -> None:
        """Note what the record is about."""
        del seq
        self._about = touched(state, record)

    def after(self, source: ShapeSource, record: LogRecord, seq: int) -> bytes:
        """The line of a record; empty: nothing of it is wanted."""
        return event_line(source, record, seq, about=self._about, topics=self._topics)


def event_line(
    source: ShapeSource, record: LogRecord, seq: int, *, about: Touched, topics: EventTopics
) -> bytes:
    """The line of one record; empty: nothing of it is wanted."""
    events: list[Object] = [
        one for one in nomad_events(source, record, seq, about) if topics.wants(one)
    ]
    return _ENCODER.encode({"Index": seq, "Events": events}) + b"\n" if events else b""


async def stream_events(call: Call) -> object:
    """Events from an index on; 0: from now. Raises HttpFault 400, 410: the log does not begin so early."""
    topics = EventTopics(call.texts("topic"))
    index = call.number("index")
    if index < 0:
        raise HttpFault(400, f"index must not be negative, was {index}")
    followed = FollowedLog(call.role, call.server.bus, TopicEvents(topics), first=index)
    await followed.begin()

    async def parts() -> AsyncIterator[bytes]:
        yield b"{}\n"
        try:
            async for _, line in followed.lines():
                yield line or b"{}\n"
        except (HttpFault, BusUnavailable, LogDropped, LogError):
            # The answer has begun: it ends here, and the reader resumes by its index.
            return

    return streamed(call, parts(), "application/json")


ENDPOINTS = (
    Endpoint(pattern="/v1/event/stream", summary="Events from any index.", read=stream_events),
)
