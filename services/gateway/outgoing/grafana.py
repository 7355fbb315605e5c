"""Annotations of Grafana: one for an event, found again by a tag that holds its id, so that none is made twice."""

from urllib.parse import urlencode

import msgspec

from services.gateway.outgoing.cloud_events import OutgoingEvent

_MS = 1_000_000


class _Found(msgspec.Struct, frozen=True):
    id: int = 0


def id_tag(one: OutgoingEvent) -> str:
    """The tag that names the event."""
    return f"caravan:{one.id}"


def annotation(one: OutgoingEvent, tags: tuple[str, ...]) -> bytes:
    """The body that makes an annotation."""
    own = (*tags, one.type, *(f"job:{job}" for job in one.jobs[:3]), id_tag(one))
    tagged = list(dict.fromkeys(own))
    return msgspec.json.encode(
        {"time": one.t_ns // _MS, "tags": tagged, "text": one.text or one.type}
    )


def search_path(base: str, one: OutgoingEvent) -> str:
    """The path that lists the annotations of an event."""
    return f"{annotations_path(base)}?{urlencode({'tags': id_tag(one), 'limit': 1})}"


def annotations_path(base: str) -> str:
    """Path of the annotations, below the path of the address: Grafana may be served under one."""
    return f"{base.rstrip('/')}/api/annotations"


def has_annotation(body: bytes) -> bool:
    """Whether an answer to the search lists one."""
    try:
        return bool(msgspec.json.decode(body, type=list[_Found]))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
