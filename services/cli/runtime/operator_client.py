"""Sends operator requests to the view until the log shows their effect, and prints the result with `--json`."""

from typing import Any

import msgspec

from schemas.answers import PolicyAnswer
from schemas.base import Wire
from schemas.operator import OperatorVerdict
from schemas.projections import Query
from services.cli.runtime.bus_client import query_view, request_until_decided, with_bus
from services.cli.runtime.output import CommandOutput, result_from
from shared.bus.connection.public_client import Client
from shared.protocol import subjects
from shared.protocol.operator_verbs import BY_REQUEST

_WAIT_S = 30.0
_VERDICT_S = 8.0


class OperatorResult(msgspec.Struct, frozen=True, kw_only=True):
    """What every operator command prints with `--json`. Fields of a subclass come in front of these."""

    request_id: str
    status: str
    changed: bool
    seq: int
    cluster_id: str


def request_verdict(body: Wire) -> OperatorVerdict:
    """Request until the log shows the effect. Raises CliError with the refusal."""
    row = BY_REQUEST[type(body)]

    async def work(client: Client) -> list[OperatorVerdict]:
        return await request_until_decided(
            client,
            subjects.api(row.noun, row.verb),
            msgspec.json.encode(await _with_seen_seq(client, body)),
            OperatorVerdict,
            service="view",
            wait_s=_WAIT_S,
            verdict_s=_VERDICT_S,
        )

    verdicts = with_bus(work)
    collected: dict[str, int] = {}
    for one in verdicts:
        for name, count in one.collected.items():
            collected[name] = collected.get(name, 0) + count
    last = verdicts[-1]
    return msgspec.structs.replace(
        last, collected=collected, changed=last.changed or bool(collected)
    )


async def _with_seen_seq(client: Client, body: Wire) -> Wire:
    """Name the seq at which a request is made: a copy that a silent view reads later undoes nothing newer."""
    if "seen_seq" not in body.__struct_fields__:
        return body
    seen = await query_view(client, "policy", PolicyAnswer, Query())
    return msgspec.structs.replace(body, seen_seq=seen.seq)


def request_operator(
    out: CommandOutput, body: Wire, result: type[OperatorResult], **own: Any
) -> OperatorVerdict:
    """Request until the log shows the effect; print the result, of the verdict's fields and `own` ones.

    Raises CliError with the refusal.
    """
    verdict = request_verdict(body)
    own = {
        "node": verdict.node_id,
        "allocation": verdict.alloc_id,
        "child": verdict.child_id,
        **own,
    }
    fields = {name: value for name, value in own.items() if name in result.__struct_fields__}
    out.result(result_from(result, verdict, **fields))
    return verdict
