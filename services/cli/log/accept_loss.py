"""`caravan log accept-loss`: an operator accepts that the beginning of the log is lost, after looking.

Notes beside the oldest stream where the log begins, so that services start from a snapshot, and then has the applier
record the loss as a fact. Accepts a lost beginning alone: what is missing in the middle or at the end has no snapshot
that leads over it, and stays damage.
"""

import asyncio
import time

import msgspec

from schemas.operator import AcceptLossRequest, OperatorVerdict
from services.cli.log.drop import admin_bus
from services.cli.runtime.bus_client import request_until_decided, with_bus
from services.cli.runtime.output import CliError, CommandOutput
from shared.bus.connection.public_client import Client
from shared.bus.jetstream import streams
from shared.bus.log import generations, snapshots
from shared.core.state.state import TABLES
from shared.protocol import subjects

#: So long the services may take to start after the note. Seconds.
_WAIT_S = 20.0
_VERDICT_S = 8.0
_POLL_S = 0.5


class AcceptedLoss(msgspec.Struct, frozen=True, kw_only=True):
    """`log accept-loss --json`."""

    #: the first record that is left.
    first_seq: int
    #: seq of the snapshot that services start from.
    snapshot_seq: int
    reason: str
    #: seq of `log.loss_accepted`; 0: not in the log yet.
    seq: int


def accept(out: CommandOutput, *, first: int, reason: str) -> int:
    """Accept the loss of every record before `first`. Raises CliError."""
    reason = reason or "no reason given"
    snapshot_seq = asyncio.run(_note(out, first, reason))
    out.progress("waiting for the services, to record it in the log")
    seq = with_bus(lambda client: _record(client, first, reason))
    out.result(AcceptedLoss(first_seq=first, snapshot_seq=snapshot_seq, reason=reason, seq=seq))
    out.line(
        f"accepted: records 1 to {first - 1} are lost; services start at snapshot {snapshot_seq}"
    )
    if seq:
        out.line(f"recorded in the log at {seq}", "green")
        return 0
    out.line(
        "not recorded in the log yet: start the services, then run the same command again", "red"
    )
    return 2


async def _record(client: Client, first: int, reason: str) -> int:
    """Have the applier write the fact; returns its seq, 0: the services have not started yet. Raises CliError."""
    deadline = time.monotonic() + _WAIT_S
    while True:
        try:
            verdicts = await request_until_decided(
                client,
                subjects.api("system", "accept_loss"),
                msgspec.json.encode(AcceptLossRequest(first_seq=first, reason=reason)),
                OperatorVerdict,
                service="view",
                wait_s=_WAIT_S,
                verdict_s=_VERDICT_S,
            )
        except CliError as err:
            if err.code not in {"unavailable", "pending"}:
                raise
            if time.monotonic() > deadline:
                return 0
            await asyncio.sleep(_POLL_S)
        else:
            return verdicts[-1].seq


async def _note(out: CommandOutput, first: int, reason: str) -> int:
    """Check what is left and note where the log begins; returns the snapshot's seq. Raises CliError."""
    bus = await admin_bus()
    try:
        oldest = (await generations.list_generations(bus))[0]
        if oldest.first_seq == 1:
            raise CliError("conflict", "nothing is lost: the log begins at its first record")
        if first != oldest.first_seq:
            begins = f"the log begins at {oldest.first_seq}, not at {first}"
            text = f"{begins}: check the log again before you accept the loss"
            raise CliError("conflict", text)
        out.progress("restoring the newest snapshot")
        found = await snapshots.restore_newest(bus, TABLES, quiet=True)
        if found is None or found.replica.seq < first:
            text = f"no snapshot after record {first} can be restored, so no service could start"
            raise CliError("conflict", f"{text}; restore a copy of the data directory")
        if oldest.noted_first_seq != first:
            await streams.note_beginning(bus, oldest.stream, first, f"accepted: {reason}")
        return found.replica.seq
    finally:
        await bus.end()
