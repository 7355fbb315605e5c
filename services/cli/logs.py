"""`caravan log verify`: read the log itself, by direct get, and prove what it says.

Decides what counts as proof: the chain of every accepted record, and every checkpoint's hashes against a state rebuilt
from nothing but the events. Must not know what an event does.
"""

import asyncio
import os
from pathlib import Path

import msgspec

from schemas.answers import ClusterAnswer
from schemas.envelope import Record as LogRecord
from schemas.plans import PlanCommitted
from schemas.projections import Query
from services.cli import chosen, running_ups
from services.cli.asking import ask, bus_url, with_bus
from services.cli.output import CliError, Column, Output
from shared.bus import accounts, generations, streams
from shared.bus.client import Client
from shared.bus.connect import Login, connect
from shared.core.redecide import Difference, redecide
from shared.core.replica import Replica
from shared.core.role import Record
from shared.errors import BusUnavailable, LogDamaged, LogError, StateDiverged

#: Decisions that differ, told and shown at the most.
_DIFFERENCES_MAX = 20
_SHOWN = 5


class Decisions(msgspec.Struct, frozen=True, kw_only=True):
    """Plans decided again from their snapshot, with --decisions."""

    checked: int = 0
    equal: int = 0
    #: made by another release: not compared.
    other_version: int = 0
    #: refused before all of it was told: nothing to compare.
    untold: int = 0
    #: the first ones that differ, both records.
    differences: tuple[Difference, ...] = ()


class Proof(msgspec.Struct, kw_only=True):
    """What `log verify` prints; filled while reading."""

    ok: bool = False
    first_seq: int = 0
    last_seq: int = 0
    transactions: int = 0
    events: int = 0
    placements: int = 0
    foreign: int = 0
    checkpoints: int = 0
    tables: dict[str, str] = {}
    head: str = ""
    decisions: Decisions = Decisions()
    problem: str = ""

    def count(self, record: LogRecord) -> None:
        """Count one accepted record."""
        self.transactions += bool(record.events)
        self.events += len(record.events)
        for event in record.events:
            if isinstance(event, PlanCommitted):
                self.placements += sum(sum(one.counts) for one in event.placements)


def verify(out: Output, *, decisions: bool) -> int:
    """Read the whole log and prove it. Exit 0: proven, 1: another state or decision, 2: damaged."""
    proof, replica = Proof(), Replica()
    kept: list[Record] = []

    async def work(client: Client) -> int:
        state = await _log_state(out)
        expected = state.last_seq
        try:
            expected = max(expected, await asyncio.wait_for(last_seq(client), 2.0))
        except (TimeoutError, CliError):
            out.progress("no view answers: what it has seen before is not compared")
        try:
            async for record in client.read_log():
                _prove(proof, replica, record)
                if decisions:
                    kept.append(record)
                if record.seq % 100_000 == 0:
                    out.progress(f"{record.seq} records")
        except StateDiverged as err:
            proof.problem = str(err)
            return 1
        except LogError as err:
            proof.problem = str(err)
            return 2
        except BusUnavailable as err:
            if not proof.last_seq:
                raise
            proof.problem = f"record {proof.last_seq + 1} cannot be read: {err}"
            return 2
        if proof.last_seq < expected or state.damage:
            ends = f"the log can be read up to {proof.last_seq}, {expected} were written"
            proof.problem = state.damage or ends
            return 2
        proof.ok = True
        return 0

    code = with_bus(work)
    proof.head, proof.foreign = replica.chain.head, replica.chain.foreign
    proof.checkpoints, proof.tables = replica.checked, replica.state.hashes()
    if decisions and kept:
        # What was read before the damage is decided again all the same.
        out.progress(f"deciding again what {len(kept)} records decided")
        code = _decide_again(proof, kept) or code
    _show(out, proof, was_decided=decisions)
    return code


def _show(out: Output, proof: Proof, *, was_decided: bool) -> None:
    out.result(proof)
    out.fields(
        [
            ("Records", f"{_read(proof)}, {proof.foreign} foreign"),
            (
                "Transactions",
                f"{proof.transactions}, {proof.events} events, {proof.placements} placements",
            ),
            (
                "Checkpoints",
                f"{proof.checkpoints}, all equal" if proof.ok else str(proof.checkpoints),
            ),
            ("Head", proof.head),
        ]
    )
    if was_decided:
        again = proof.decisions
        told = f"{again.checked} plans decided again, {again.equal} equal"
        told += f", {again.other_version} of other releases" if again.other_version else ""
        told += f", {again.untold} not told whole" if again.untold else ""
        out.fields([("Decisions", told)])
        _differ(out, again)
    out.table([Column("TABLE"), Column("HASH")], sorted(proof.tables.items()), "State")
    out.line(
        "\nthe log is sound" if proof.ok else f"\n{proof.problem}", "green" if proof.ok else "red"
    )


def _read(proof: Proof) -> str:
    """Say which records were read and followed."""
    return f"{proof.first_seq} to {proof.last_seq}" if proof.last_seq else "none could be followed"


def _differ(out: Output, again: Decisions) -> None:
    """Show the first decisions that differ, both records of each."""
    for nth, one in enumerate(again.differences[:_SHOWN]):
        head = "First difference" if not nth else "Another"
        made = f"plan {one.number} of {one.worker}, decided on seq {one.snapshot_seq}"
        out.line(f"\n{head}: seq {one.seq}, job {one.job_id}, {made}", "bold")
        out.line(f"  recorded  {one.recorded}", "red")
        out.line(f"  decided   {one.decided}", "red")
    rest = again.checked - again.equal - _SHOWN
    if rest > 0:
        out.line(f"and {rest} more", "dim")


def _decide_again(proof: Proof, kept: list[Record]) -> int:
    """Decide every plan again from its own snapshot, policy, seed and lane."""
    found = redecide(lambda: iter(kept))
    proof.decisions = Decisions(
        checked=found.checked,
        equal=found.equal,
        other_version=found.other_version,
        untold=found.untold,
        differences=tuple(found.differences[:_DIFFERENCES_MAX]),
    )
    if not found.differences:
        return 0
    first = found.differences[0]
    text = (
        f"{len(found.differences)} of {found.checked} plans would be decided otherwise, "
        f"the first at seq {first.seq}"
    )
    proof.problem = f"{proof.problem}; {text}" if proof.problem else text
    proof.ok = False
    return 1


async def _log_state(out: Output) -> streams.StreamState:
    """Ask the server what the log holds and what of it was lost, where we have credentials for that."""
    if chosen.from_file():
        return streams.StreamState()
    url = bus_url()
    known = [Path(one.data_dir) for one in running_ups.all_running() if one.url == url]
    path = os.environ.get("CARAVAN_CREDENTIALS") or (
        str(known[-1] / "credentials.json") if known else ""
    )
    if not path:
        out.progress("without CARAVAN_CREDENTIALS the server does not tell whether the end is lost")
        return streams.StreamState()
    user, password = accounts.read_credentials(Path(path)).login("view")
    bus = await connect(Login(url=url, user=user, password=password))
    try:
        found = await generations.chain(bus)
    finally:
        await bus.end()
    fault = next((one for one in found if one.state.damage), found[-1])
    return fault.state


def _prove(proof: Proof, replica: Replica, record: Record) -> None:
    """Apply one record. Raises LogError."""
    if not proof.first_seq:
        proof.first_seq = record.seq
        if record.seq != 1:
            raise LogDamaged(1, f"missing: the log begins at {record.seq}")
    decoded = replica.apply(record)
    proof.last_seq = record.seq
    if decoded is not None:
        proof.count(decoded)


async def last_seq(client: Client) -> int:
    """Where the log ends, as far as the view knows; of an export: where that ends."""
    if chosen.from_file():
        from services.cli.archived import Archived

        assert isinstance(client, Archived)
        return client.last_seq
    return (await ask(client, "cluster", ClusterAnswer, Query())).seq
