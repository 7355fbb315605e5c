"""`caravan log verify`: read the log by direct get and verify it.

Verified are the hash chain of every accepted record, and the hashes of every checkpoint against a state rebuilt from
the events alone; with --decisions also every scheduling decision.
"""

import asyncio

import msgspec

from schemas.envelope import CORE_VERSION, LogRecord
from schemas.plans import PlanCommitted
from services.cli import global_options
from services.cli.runtime.bus_client import selected_bus_url, with_bus
from services.cli.runtime.local_clusters import login_for
from services.cli.runtime.log_source import log_end_seq
from services.cli.runtime.output import CliError, CommandOutput, result_from
from services.cli.runtime.progress import ProgressBar
from shared.bus.connection.nats_client import connect
from shared.bus.connection.public_client import Client
from shared.bus.jetstream.streams import BusRefused
from shared.bus.log import generations, snapshots
from shared.core.runtime.messages import Record
from shared.core.runtime.replica import Replica
from shared.core.scheduling.explain.verify_decisions import (
    DecisionCheck,
    PlanDifference,
    verify_decisions,
)
from shared.display.formats import count_noun
from shared.errors import BusUnavailable, LogDamaged, LogDropped, LogError, StateDiverged

#: Differing decisions in --json, and printed for people.
_DIFFERENCES_MAX = 20
_SHOWN = 5


class RedecisionSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Plans decided again from their snapshots, with --decisions."""

    checked: int = 0
    equal: int = 0
    #: made by another release, not compared.
    other_version: int = 0
    #: refused before they were recorded completely, not compared.
    untold: int = 0
    #: the first differences, with both records.
    differences: tuple[PlanDifference, ...] = ()


class LogProof(msgspec.Struct, kw_only=True):
    """`log verify --json`; filled while reading."""

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
    decisions: RedecisionSummary = RedecisionSummary()
    problem: str = ""

    def count(self, record: LogRecord) -> None:
        """Count one accepted record."""
        self.transactions += bool(record.events)
        self.events += len(record.events)
        for event in record.events:
            if isinstance(event, PlanCommitted):
                self.placements += sum(sum(one.counts) for one in event.placements)


def verify(out: CommandOutput, *, decisions: bool) -> int:
    """Verify the whole log. Exit 0: sound, 1: a state or decision differs, or none was compared, 2: damaged."""
    proof, replica = LogProof(), Replica()
    kept: list[Record] = []

    async def work(client: Client) -> int:
        view_seq = 0
        try:
            view_seq = await asyncio.wait_for(log_end_seq(client), 2.0)
        except (TimeoutError, CliError):
            out.progress("no view answers: the end of the log is not compared with it")
        server = await _server_report(out, view_seq)
        damage, expected = server.damage, max(server.last_seq, view_seq)
        try:
            with ProgressBar("verifying", expected) as bar:
                async for record in client.read_log():
                    _apply_record(proof, replica, record)
                    if decisions:
                        kept.append(record)
                    bar.update(record.seq)
        except StateDiverged as err:
            proof.problem = str(err)
            return 1
        except LogDropped as err:
            if not damage:
                raise
            proof.problem = f"{damage}; {err}"
            return 2
        except LogError as err:
            proof.problem = str(err)
            return 2
        except BusUnavailable as err:
            if not proof.last_seq and not damage:
                raise
            proof.problem = damage or f"record {proof.last_seq + 1} cannot be read: {err}"
            return 2
        try:
            replica.refuse_lost_end(proof.last_seq, server.once_reached)
        except LogError as err:
            damage = damage or str(err)
        if proof.last_seq < expected or damage:
            ends = f"the log can be read up to seq {proof.last_seq}, but {expected} records were written"
            proof.problem = damage or ends
            return 2
        proof.ok = True
        return 0

    code = with_bus(work)
    proof.head, proof.foreign = replica.chain.head, replica.chain.foreign
    proof.checkpoints, proof.tables = replica.checked, replica.state.hashes()
    if decisions and kept:
        # Decisions before the damage are verified too.
        code = _redecide(proof, kept) or code
    _show(out, proof, was_decided=decisions)
    return code


def _show(out: CommandOutput, proof: LogProof, *, was_decided: bool) -> None:
    out.result(proof)
    counts = (count_noun(proof.events, "event"), count_noun(proof.placements, "placement"))
    out.fields(
        [
            ("Records", f"{_read(proof)}, {proof.foreign} foreign"),
            ("Transactions", f"{proof.transactions}, {', '.join(counts)}"),
            (
                "Checkpoints",
                f"{proof.checkpoints}, all equal" if proof.ok else str(proof.checkpoints),
            ),
            ("Head", proof.head),
        ]
    )
    if was_decided:
        again = proof.decisions
        text = f"{count_noun(again.checked, 'plan')} decided again, {again.equal} equal"
        text += f", {again.other_version} of other releases" if again.other_version else ""
        text += f", {again.untold} recorded incompletely" if again.untold else ""
        out.fields([("Decisions", text)])
        _print_differences(out, again)
    out.table("TABLE|HASH", sorted(proof.tables.items()), "State")
    out.line(
        "\nthe log is sound" if proof.ok else f"\n{proof.problem}", "green" if proof.ok else "red"
    )


def _read(proof: LogProof) -> str:
    """Which records were read."""
    return f"{proof.first_seq} to {proof.last_seq}" if proof.last_seq else "none"


def _print_differences(out: CommandOutput, again: RedecisionSummary) -> None:
    """Print the first differences, with both records."""
    for nth, one in enumerate(again.differences[:_SHOWN]):
        head = "Difference" if nth else "First difference"
        made = f"plan {one.number} of {one.worker}, decided on seq {one.snapshot_seq}"
        out.line(f"\n{head}: seq {one.seq}, job {one.job_id}, {made}", "bold")
        out.line(f"  recorded  {one.recorded}", "red")
        out.line(f"  decided   {one.decided}", "red")
    rest = again.checked - again.equal - _SHOWN
    if rest > 0:
        out.line(f"and {rest} more", "dim")


def _redecide(proof: LogProof, kept: list[Record]) -> int:
    """Decide every plan again from its own snapshot, policy, seed and lane."""
    with ProgressBar("verifying decisions", 2 * len(kept)) as bar:
        found = verify_decisions(lambda: bar.counted(kept))
    if not found.checked:
        return _compared_nothing(proof, found)
    first_ones = tuple(found.differences[:_DIFFERENCES_MAX])
    proof.decisions = result_from(RedecisionSummary, found, differences=first_ones)
    if not found.differences:
        return 0
    first = found.differences[0]
    text = (
        f"{len(found.differences)} of {found.checked} plans are decided differently, "
        f"the first at seq {first.seq}"
    )
    proof.problem = f"{proof.problem}; {text}" if proof.problem else text
    proof.ok = False
    return 1


def _compared_nothing(proof: LogProof, found: DecisionCheck) -> int:
    """Refuse to call that a proof."""
    proof.decisions = result_from(RedecisionSummary, found, differences=())
    why = []
    if found.other_version:
        why.append(f"{found.other_version} are of other releases than {CORE_VERSION}")
    if found.untold:
        why.append(f"{found.untold} were recorded incompletely")
    text = f"no decision was compared: {', '.join(why) or 'the log holds no plan'}"
    proof.problem = f"{proof.problem}; {text}" if proof.problem else text
    proof.ok = False
    return 1


class _ServerReport(msgspec.Struct, frozen=True):
    """What else than the records themselves tells of the log: its extent, its damage, and snapshots of it."""

    last_seq: int = 0
    damage: str = ""
    #: how far the log of a cluster once reached, by the cluster's id.
    once_reached: dict[str, int] = {}


async def _server_report(out: CommandOutput, view_seq: int) -> _ServerReport:
    """Query the server, if there are credentials. `view_seq`: what a view has read, which saw the end before a loss."""
    if global_options.export_dir():
        return _ServerReport()
    login = login_for(selected_bus_url(), "view")
    if login is None:
        out.progress("CARAVAN_CREDENTIALS is not set: a lost end of the log is not detected")
        return _ServerReport()
    bus = await connect(login)
    once_reached: dict[str, int] = {}
    try:
        # Before the end of the log: a later end is never behind them.
        once_reached = await snapshots.newest_seqs(bus)
        found = await generations.list_generations(bus)
    except BusRefused as err:
        if not once_reached:
            raise
        seq = max(once_reached.values())
        return _ServerReport(seq, f"{err}, and a snapshot at {seq} was made of it", once_reached)
    finally:
        await bus.end()
    newest = found[-1]
    damage = next((one.state.damage for one in found if one.state.damage), "")
    damage = damage or generations.describe_damage(found, read=view_seq)
    return _ServerReport(newest.state.last_seq, damage, once_reached)


def _apply_record(proof: LogProof, replica: Replica, record: Record) -> None:
    """Apply one record. Raises LogError."""
    if not proof.first_seq:
        proof.first_seq = record.seq
        if record.seq != 1:
            raise LogDamaged(1, f"missing: the log begins at {record.seq}")
    decoded = replica.apply(record)
    proof.last_seq = record.seq
    if decoded is not None:
        proof.count(decoded)
