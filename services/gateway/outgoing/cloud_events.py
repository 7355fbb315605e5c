"""Which events of a record a subscription gets, as CloudEvents 1.0, structured JSON, with the id `<cluster>/<seq>/<n>`.

Texts of jobs (they may hold secrets), ciphertext, decision records and reports of tasks are left out; a reader with
the right to them finds them in the log by seq.
"""

import msgspec

from schemas.base import Event
from schemas.envelope import AnyEvent, LogRecord
from services.gateway.nomad.times import rfc3339
from services.gateway.outgoing.settings import Webhook
from shared.core.state.state import State
from shared.display.event_text import describe_event
from shared.query.event_scope import event_scope

#: Fields of events that are not sent, and bytes of an event above which only its text is.
_LEFT_OUT = frozenset(("spec", "decision", "details", "payload", "cipher"))
#: The same by type: which variables hold equal items is not told.
_LEFT_OUT_OF = {"variable.put": frozenset(("digest",))}
EVENT_BYTES_MAX = 256 << 10
#: Names of jobs or nodes in one event.
_NAMES_MAX = 100


class OutgoingEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event for one target. `n`: its place in the record."""

    id: str
    seq: int
    n: int
    t_ns: int
    type: str
    text: str
    jobs: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    event: msgspec.Raw = msgspec.Raw(b"null")


class EventSelector:
    """Chooses the events of records for one subscription, by the state before each."""

    def __init__(self, hook: Webhook, cluster_id: str) -> None:
        self._kinds = hook.kinds or ("",)
        self._jobs = frozenset(hook.jobs)
        self._cluster_id = cluster_id

    def events(self, before: State, record: LogRecord, seq: int) -> list[OutgoingEvent]:
        """What of a record is sent, in its order."""
        found = []
        for n, event in enumerate(record.events):
            kind = str(event.__struct_config__.tag)
            if not kind.startswith(self._kinds):
                continue
            about = event_scope(before, event)
            if self._jobs and self._jobs.isdisjoint(about.jobs):
                continue
            found.append(
                OutgoingEvent(
                    id=f"{self._cluster_id}/{seq}/{n}",
                    seq=seq,
                    n=n,
                    t_ns=record.t_ns,
                    type=kind,
                    text=describe_event(event, before),
                    jobs=tuple(sorted(about.jobs)[:_NAMES_MAX]),
                    nodes=tuple(sorted(about.nodes)[:_NAMES_MAX]),
                    event=event_json(event),
                )
            )
        return found


def event_json(event: AnyEvent | Event) -> msgspec.Raw:
    """An event without the fields that are not sent; null where it is too large."""
    fields = msgspec.to_builtins(event, builtin_types=(msgspec.Raw,))
    left_out = _LEFT_OUT | _LEFT_OUT_OF.get(str(event.__struct_config__.tag), frozenset())
    shown = {name: value for name, value in fields.items() if name not in left_out}
    raw = msgspec.json.encode(shown)
    return msgspec.Raw(raw if len(raw) <= EVENT_BYTES_MAX else b"null")


def cloud_event(one: OutgoingEvent) -> bytes:
    """The body of a request."""
    subject = one.jobs[0] if one.jobs else one.nodes[0] if one.nodes else ""
    cluster_id = one.id.partition("/")[0]
    found = {
        "specversion": "1.0",
        "id": one.id,
        "source": f"/caravan/{cluster_id}",
        "type": f"caravan.{one.type}",
        "time": rfc3339(one.t_ns),
        "datacontenttype": "application/json",
        # An extension of the specification: ordered as texts, too.
        "sequence": f"{one.seq:020d}",
        "data": {
            "seq": one.seq,
            "text": one.text,
            "jobs": one.jobs,
            "nodes": one.nodes,
            "event": one.event,
        },
    }
    if subject:
        found["subject"] = subject
    return msgspec.json.encode(found)
