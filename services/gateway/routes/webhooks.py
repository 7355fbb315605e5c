"""`/v1/caravan/webhooks`: where the events that this gateway sends out have got to."""

from typing import Any

from services.gateway.edge.call import Call
from services.gateway.edge.outgoing import Subscription
from services.gateway.edge.route import Endpoint


async def read_webhooks(call: Call) -> object:
    """State of each target, in the order of the operator's file."""
    role, outgoing = call.role, call.server.outgoing
    rows = [] if outgoing is None else [_row(role.seq, one) for one in outgoing.subscriptions]
    return {"seq": role.seq, "is_sending": bool(rows) and role.is_acting, "targets": rows}


def _row(seq: int, one: Subscription) -> dict[str, Any]:
    state, target = one.state, one.target
    # The path of a URL may hold a secret.
    parts = target.endpoint.parts
    found: dict[str, Any] = {
        "name": target.name,
        "kind": target.kind,
        "host": f"{parts.scheme}://{parts.netloc}",
    }
    if state is None:
        return {**found, "status": "starting"}
    status = "disabled" if state.disabled else "failing" if state.failures else "ok"
    return {
        **found,
        "status": status,
        "seq": state.seq,
        "behind": max(seq - state.seq, 0),
        "delivered": state.delivered,
        "failed": state.failed,
        "failures": state.failures,
        "next_try_ms": state.next_try_ns // 1_000_000,
        "error": state.disabled or state.error,
    }


ENDPOINTS = (
    Endpoint(
        pattern="/v1/caravan/webhooks",
        summary="State of the targets of events.",
        read=read_webhooks,
    ),
)
