"""Targets of events: what a subscription makes of a record, and the request that carries it."""

import asyncio
import time
from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from schemas.envelope import LogRecord
from services.gateway.edge import outgoing_http
from services.gateway.edge.followed_log import LineMaker
from services.gateway.edge.outgoing_http import TargetAnswer
from services.gateway.nomad.source import ShapeSource
from services.gateway.outgoing import grafana
from services.gateway.outgoing.cloud_events import EventSelector, OutgoingEvent, cloud_event
from services.gateway.outgoing.settings import GRAFANA, TargetAddress, TraceExport, Webhook
from services.gateway.outgoing.signature import key_of, signed_headers
from shared.core.state.state import State
from shared.errors import ConfigInvalid
from shared.query.otlp_json import export_requests
from shared.query.spans import JobSample, RecordSpans, SpanSource

log = structlog.get_logger()
_EVENTS = msgspec.json.Decoder(list[OutgoingEvent])
_ENCODER = msgspec.json.Encoder()
_SECRET_BYTES_MAX = 64 << 10
#: Answers after which OTLP forbids to send the same again.
_NOT_AGAIN = (400, 413, 422)
#: A part of a line: its place in the record, and what is sent.
Part = tuple[int, bytes]


class OutgoingTarget(Protocol):
    """Where the events of a subscription go. A line is what a record became, a part is one request."""

    name: str
    kind: str
    endpoint: TargetAddress
    from_seq: int

    def check(self) -> None:
        """Read its secrets. Raises ConfigInvalid."""

    def maker(self, cluster_id: str) -> LineMaker:
        """What makes lines of records."""

    def parts(self, line: bytes) -> list[Part]:
        """What a line is sent as, in order."""

    async def send(self, part: bytes, *, is_first: bool) -> TargetAnswer:
        """Send one part. `is_first`: certainly not sent before."""


class _SubscribedEvents:
    """As a LineMaker: the events of a record."""

    def __init__(self, selector: EventSelector) -> None:
        self._selector = selector
        self._events: list[OutgoingEvent] = []

    def before(self, state: State, record: LogRecord, seq: int) -> None:
        self._events = self._selector.events(state, record, seq)

    def after(self, source: ShapeSource, record: LogRecord, seq: int) -> bytes:
        del source, record, seq
        return _ENCODER.encode(self._events) if self._events else b""


class _EventTarget:
    """A webhook of the operator's file."""

    def __init__(self, hook: Webhook) -> None:
        self._hook = hook
        self.name, self.kind, self.from_seq = hook.name, hook.target, hook.from_seq
        self.endpoint: TargetAddress = hook

    def maker(self, cluster_id: str) -> LineMaker:
        """The events that it subscribes to."""
        return _SubscribedEvents(EventSelector(self._hook, cluster_id))

    def parts(self, line: bytes) -> list[Part]:
        """One request for an event."""
        return [(one.n, _ENCODER.encode(one)) for one in _EVENTS.decode(line)]


class CloudEventsTarget(_EventTarget):
    """POSTs each event as a CloudEvent with a signature."""

    def check(self) -> None:
        """Read its key. Raises ConfigInvalid."""
        key_of(read_secret(self._hook.secret_file), self._hook.secret_file)

    async def send(self, part: bytes, *, is_first: bool) -> TargetAnswer:
        """Send an event; the receiver knows one that it has by its id."""
        del is_first
        one = msgspec.json.decode(part, type=OutgoingEvent)
        body = cloud_event(one)
        try:
            name = self._hook.secret_file
            # Read each time: a key may be replaced while the gateway runs.
            key = key_of(await asyncio.to_thread(read_secret, name), name)
        except ConfigInvalid as err:
            return TargetAnswer(error=str(err))
        headers = {
            "Content-Type": "application/cloudevents+json; charset=utf-8",
            **signed_headers(key, one.id, body, int(time.time())),
        }
        path = request_path(self.endpoint)
        return await outgoing_http.send(
            self.endpoint, method="POST", path=path, headers=headers, body=body
        )


class GrafanaTarget(_EventTarget):
    """Makes an annotation of each event, none twice."""

    def check(self) -> None:
        """Read its token. Raises ConfigInvalid."""
        _token(read_secret(self._hook.token_file), self._hook.token_file)

    async def send(self, part: bytes, *, is_first: bool) -> TargetAnswer:
        """Make an annotation, unless one that may have been made is there."""
        one = msgspec.json.decode(part, type=OutgoingEvent)
        base = self.endpoint.parts.path
        try:
            name = self._hook.token_file
            token = _token(await asyncio.to_thread(read_secret, name), name)
        except ConfigInvalid as err:
            return TargetAnswer(error=str(err))
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        if not is_first:
            found = await outgoing_http.send(
                self.endpoint, method="GET", path=grafana.search_path(base, one), headers=headers
            )
            if not found.is_accepted or grafana.has_annotation(found.body):
                return found
        return await outgoing_http.send(
            self.endpoint,
            method="POST",
            path=grafana.annotations_path(base),
            headers=headers,
            body=grafana.annotation(one, self._hook.tags),
        )


class _SpanLines:
    """As a LineMaker: the spans of a record, as requests."""

    def __init__(self, cluster_id: str, sample: JobSample) -> None:
        self._cluster_id = cluster_id
        self._spans = RecordSpans(cluster_id, sample)

    def before(self, state: State, record: LogRecord, seq: int) -> None:
        del seq
        self._spans.before(state, record)

    def after(self, source: ShapeSource, record: LogRecord, seq: int) -> bytes:
        made = self._spans.after(
            SpanSource(source.state, source.histories, source.time_of), record, seq
        )
        return b"\n".join(export_requests(made, self._cluster_id))


class TraceTarget:
    """Sends spans to an OTLP/HTTP endpoint."""

    def __init__(self, export: TraceExport, name: str) -> None:
        self._export = export
        self.name, self.kind, self.from_seq = name, "otlp", 0
        self.endpoint: TargetAddress = export

    def check(self) -> None:
        """Read its headers. Raises ConfigInvalid."""
        self._headers()

    def maker(self, cluster_id: str) -> LineMaker:
        """The spans of its sample."""
        return _SpanLines(cluster_id, JobSample(self._export.sample))

    def parts(self, line: bytes) -> list[Part]:
        """One request for so many spans of a record."""
        return list(enumerate(line.split(b"\n")))

    async def send(self, part: bytes, *, is_first: bool) -> TargetAnswer:
        """Send spans; their ids make a repetition overwrite."""
        del is_first
        try:
            own = await asyncio.to_thread(self._headers)
        except ConfigInvalid as err:
            return TargetAnswer(error=str(err))
        headers = {"Content-Type": "application/json", **own}
        path = request_path(self.endpoint)
        found = await outgoing_http.send(
            self.endpoint, method="POST", path=path, headers=headers, body=part
        )
        if found.status in _NOT_AGAIN:
            reason = found.body[:200].decode("utf-8", "replace")
            log.warning("outgoing.refused", target=self.name, status=found.status, reason=reason)
            return TargetAnswer(status=200)
        return found

    def _headers(self) -> dict[str, str]:
        name = self._export.headers_file
        if not name:
            return {}
        found = {}
        for line in read_secret(name).decode("latin-1").splitlines():
            key, colon, value = line.partition(":")
            if line.strip() and not (colon and key.strip() and value.strip()):
                raise ConfigInvalid(f"{name}: a line must be NAME: VALUE")
            if line.strip():
                found[key.strip()] = value.strip()
        return found


def make_target(hook: Webhook) -> OutgoingTarget:
    """The target of a webhook."""
    return GrafanaTarget(hook) if hook.target == GRAFANA else CloudEventsTarget(hook)


def request_path(endpoint: TargetAddress) -> str:
    """Path and query of the URL."""
    parts = endpoint.parts
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def read_secret(name: str) -> bytes:
    """The content of a small file. Raises ConfigInvalid with its name."""
    try:
        with Path(name).open("rb") as file:
            data = file.read(_SECRET_BYTES_MAX + 1)
    except OSError as err:
        raise ConfigInvalid(f"{name}: {err.strerror}") from err
    if len(data) > _SECRET_BYTES_MAX:
        raise ConfigInvalid(f"{name}: more than {_SECRET_BYTES_MAX} bytes")
    return data


def _token(data: bytes, name: str) -> str:
    """A token for a header. Raises ConfigInvalid."""
    text = data.strip().decode("latin-1")
    if not text or any(not "!" <= char <= "~" for char in text):
        raise ConfigInvalid(f"{name}: a token is one line of printable ASCII")
    return text
