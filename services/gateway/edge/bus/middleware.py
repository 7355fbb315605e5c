"""The middleware of the gateway's broker: counts for /metrics, and a trace of each message in the log.

A message may name the trace that it belongs to in the header `traceparent` (W3C Trace Context).
"""

import secrets
import time
from typing import Any

import structlog
from faststream import BaseMiddleware

from shared.protocol.trace_context import parent_span

log = structlog.get_logger()


class BusCounts:
    """Messages, failures and seconds since the start."""

    def __init__(self) -> None:
        self.messages = 0
        self.failed = 0
        self.seconds = 0.0

    def metrics(self) -> dict[str, float]:
        """The counts by their names in /metrics."""
        return {
            "caravan_gateway_bus_messages_total": float(self.messages),
            "caravan_gateway_bus_failed_total": float(self.failed),
            "caravan_gateway_bus_seconds_total": self.seconds,
        }


def trace_of(headers: object) -> tuple[str, str]:
    """Ids of the trace and of the span that caused a message; a new trace and no span where it names none."""
    text = headers.get("traceparent", "") if isinstance(headers, dict) else ""
    return parent_span(str(text)) or (secrets.token_hex(16), "")


def counting(counts: BusCounts) -> type[BaseMiddleware[Any, Any]]:
    """A middleware that counts into `counts`."""

    class Counting(BaseMiddleware[Any, Any]):
        """Counts and traces one message."""

        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            """Handle one message. A failure is counted, and raised on."""
            began_s = time.perf_counter()
            trace, parent = trace_of(getattr(msg, "headers", None))
            counts.messages += 1
            try:
                return await call_next(msg)
            except Exception:
                counts.failed += 1
                raise
            finally:
                took_s = time.perf_counter() - began_s
                counts.seconds += took_s
                log.debug(
                    "bus.handled",
                    subject=getattr(msg.raw_message, "subject", ""),
                    trace_id=trace,
                    parent_id=parent,
                    span_id=secrets.token_hex(8),
                    took_us=int(took_s * 1e6),
                )

    return Counting
