"""`caravan operator webhook`: delivery state of webhooks, annotations and traces."""

import msgspec

from services.cli.gateway.http import request
from services.cli.runtime.output import CliError, CommandOutput


class WebhookLine(msgspec.Struct, frozen=True, kw_only=True):
    """One target. `status`: ok, failing, disabled or starting."""

    name: str
    kind: str
    host: str
    status: str
    #: all events of records up to it are delivered.
    seq: int = 0
    behind: int = 0
    delivered: int = 0
    failed: int = 0
    #: attempts that failed since the last success.
    failures: int = 0
    next_try_ms: int = 0
    error: str = ""


class WebhookResult(msgspec.Struct, frozen=True, kw_only=True):
    """`operator webhook --json`. `is_sending`: it is this gateway that sends."""

    seq: int
    is_sending: bool
    targets: list[WebhookLine]


def status(out: CommandOutput) -> int:
    """List the targets; fails where one is disabled."""
    answer = request("GET", "/v1/caravan/webhooks")
    if answer.status != 200:
        text = answer.body.decode("utf-8", "replace").strip()
        raise CliError("refused", f"the gateway answered {answer.status}: {text}")
    found = msgspec.json.decode(answer.body, type=WebhookResult)
    out.result(found)
    rows = [
        (
            one.name,
            one.kind,
            one.host,
            one.status,
            str(one.seq),
            str(one.behind),
            str(one.delivered),
            str(one.failed),
            one.error,
        )
        for one in found.targets
    ]
    out.table("NAME|KIND|HOST|STATUS|SEQ>|BEHIND>|DELIVERED>|FAILED>|ERROR", rows)
    if not rows:
        out.line("this gateway has no targets for events (CARAVAN_GATEWAY_EVENTS_OUT)")
    elif not found.is_sending:
        out.line("standby: another gateway instance is the sender")
    return 1 if any(one.status == "disabled" for one in found.targets) else 0
