"""Operator verbs from the command line: asked of the view until the log shows them."""

import time

import msgspec

from schemas.operator import (
    CollectWish,
    DrainWish,
    EligibilityWish,
    MetaWish,
    OperatorVerdict,
    PolicyWish,
    PoolWish,
    RollWish,
    StopWish,
)
from services.cli.asking import why_silent, with_bus
from services.cli.output import CliError
from shared.bus import subjects
from shared.bus.client import Client
from shared.errors import BusUnavailable

_WAIT_S = 30.0
_VERDICT_S = 8.0


Body = (
    PolicyWish
    | EligibilityWish
    | DrainWish
    | MetaWish
    | StopWish
    | PoolWish
    | CollectWish
    | RollWish
)


def wish(noun: str, verb: str, body: Body) -> OperatorVerdict:
    """Ask until it is so. Raises CliError with the refusal."""
    return with_bus(lambda client: _ask(client, subjects.api(noun, verb), body))


async def _ask(client: Client, subject: str, body: msgspec.Struct) -> OperatorVerdict:
    deadline = time.monotonic() + _WAIT_S
    collected: dict[str, int] = {}
    while True:
        try:
            raw = await client.request_bytes(
                subject, msgspec.json.encode(body), timeout_s=_VERDICT_S
            )
        except BusUnavailable as err:
            raise CliError("unavailable", f"{await why_silent(client, 'view')}: {err}") from err
        verdict = msgspec.json.decode(raw, type=OperatorVerdict)
        for name, count in verdict.collected.items():
            collected[name] = collected.get(name, 0) + count
        if verdict.status == "accepted":
            return msgspec.structs.replace(
                verdict, collected=collected, changed=verdict.changed or bool(collected)
            )
        if verdict.status == "refused":
            error = verdict.error
            if error is None:
                raise CliError("refused", "refused without a reason")
            raise CliError(error.code, error.message, path=error.path)
        if time.monotonic() > deadline:
            text = f"the log does not show it after {_WAIT_S:.0f} s; it may still come"
            raise CliError("pending", text)
