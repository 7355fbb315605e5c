"""Spans as OTLP/JSON: requests of the trace service, as HTTP receivers and the collector's file receiver take them."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from shared.query.spans import Span, Value
from shared.release import RELEASE

#: Spans of one request.
SPANS_MAX = 512
_INTERNAL, _ERROR = 1, 2


def export_requests(spans: Sequence[Span], cluster_id: str) -> Iterator[bytes]:
    """Encode spans as requests, each one line without its end."""
    resource = _attributes({"service.name": "caravan", "caravan.cluster": cluster_id})
    scope = {"name": "caravan", "version": RELEASE}
    for at in range(0, len(spans), SPANS_MAX):
        part = [_span(one) for one in spans[at : at + SPANS_MAX]]
        body = {
            "resource": {"attributes": resource},
            "scopeSpans": [{"scope": scope, "spans": part}],
        }
        yield msgspec.json.encode({"resourceSpans": [body]})


def _span(one: Span) -> dict[str, Any]:
    """Ids are hex, times are nanoseconds as text: the JSON of the protocol differs there from protobuf's own."""
    found: dict[str, Any] = {
        "traceId": one.trace_id,
        "spanId": one.span_id,
        "name": one.name,
        "kind": _INTERNAL,
        "startTimeUnixNano": str(one.start_ns),
        "endTimeUnixNano": str(one.end_ns),
        "attributes": _attributes(one.attributes),
    }
    if one.parent_id:
        found["parentSpanId"] = one.parent_id
    if one.events:
        found["events"] = [
            {"timeUnixNano": str(e.t_ns), "name": e.name, "attributes": _attributes(e.attributes)}
            for e in one.events
        ]
    if one.links:
        found["links"] = [{"traceId": trace, "spanId": span} for trace, span in one.links]
    if one.error:
        found["status"] = {"code": _ERROR, "message": one.error}
    return found


def _attributes(of: dict[str, Value]) -> list[dict[str, Any]]:
    return [
        {
            "key": name,
            "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value},
        }
        for name, value in of.items()
    ]
