"""`caravan log verify`: read the log by direct get and verify it.

Verified are the hash chain of every accepted record, and the hashes of every checkpoint against a state rebuilt from
the events alone; with --decisions also every scheduling decision. Where the beginning was dropped by order, the chain
is verified from the first record that is left, and states from the oldest snapshot that the log proves. An archive of
which a part cannot be read is damaged.
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
from shared.bus.server import accounts
from shared.core.runtime.chain import Chain
from shared.core.runtime.messages import Record
from shared.core.runtime.replica import Replica, copy_replica
from shared.core.scheduling.explain.verify_decisions import (
    DecisionCheck,
    PlanDifference,
    verify_decisions,
)
from shared.core.state.state import TABLES
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
    #: states are rebuilt from the events since this seq; above 1: from a snapshot, since records before were dropped.
    states_from_seq: int = 1

    def count(self, record: LogRecord) -> None:
        """Count one accepted record."""
        self.transactions += bool(record.events)
        self.events += len(record.events)
        for event in record.events:
            if isinstance(event, PlanCommitted):
                self.placements += sum(sum(one.counts) for one in event.placements)


class _Verification:
    """One reading of the log: fills the proof, record by record."""

    def __init__(self, proof: LogProof, *, keeps: bool) -> None:
        self.proof = proof
        self.replica = Replica()
        #: records behind the start of the replica, for the decisions.
        self.kept: list[Record] = []
        #: where the replica started, if not at the first record.
        self.start: Replica | None = None
        self._keeps = keeps
        self._first = 1
        #: links the records before the snapshot.
        self._links = Chain()
        self._foreign_before = 0

    def begin_behind_drop(self, first: int, restored: Replica) -> None:
        """Verify links from `first` on, and states from a restored replica on."""
        self.replica, self._first = restored, first
        self._links.next_seq, self._links.cluster_id = first, restored.chain.cluster_id
        self._foreign_before = restored.chain.foreign
        self.proof.states_from_seq = restored.seq
        if self._keeps:
            self.start = copy_replica(restored)

    def apply(self, record: Record) -> None:
        """Verify one record. Raises LogError."""
        proof = self.proof
        if not proof.first_seq:
            proof.first_seq = record.seq
            if record.seq != self._first:
                raise LogDamaged(self._first, f"missing: the log begins at {record.seq}")
        if record.seq < self.replica.next_seq:
            decoded = self._link(record)
        else:
            decoded = self.replica.apply(record)
            if self._keeps:
                self.kept.append(record)
        proof.last_seq = record.seq
        if decoded is not None:
            proof.count(decoded)

    def _link(self, record: Record) -> LogRecord | None:
        """Verify a record before the snapshot, and that the snapshot is based on this chain. Raises LogError."""
        links, chain = self._links, self.replica.chain
        if not links.accepted:
            decoded = links.decode(record.seq, record.subject, record.data)
            if decoded is not None:
                links.begin_with(decoded)
        accepted = links.accept(record.seq, record.subject, record.data)
        if record.seq == self.replica.seq and links.head != chain.head:
            text = f"the snapshot is based on {chain.head}, but the records link to {links.head}"
            raise LogDamaged(record.seq, text)
        return accepted

    def finish(self) -> None:
        """Fill in what is known at the end of the reading."""
        proof, chain = self.proof, self.replica.chain
        proof.head, proof.checkpoints = chain.head, self.replica.checked
        proof.foreign = self._links.foreign + chain.foreign - self._foreign_before
        proof.tables = self.replica.state.hashes()


def verify(out: CommandOutput, *, decisions: bool) -> int:
    """Verify the whole log. Exit 0: sound, 1: a state or decision differs, or none was compared, 2: damaged."""
    proof = LogProof()
    work = _Verification(proof, keeps=decisions)
    try:
        code = with_bus(lambda client: _read_all(out, client, work))
    except CliError as err:
        if err.code != "damaged":
            raise
        proof.problem = f"{err.file}: {err.message}" if err.file else err.message
        code = 2
    work.finish()
    if decisions and work.kept:
        # Decisions before the damage are verified too.
        code = _redecide(proof, work) or code
    _show(out, proof, was_decided=decisions)
    return code


async def _read_all(out: CommandOutput, client: Client, work: _Verification) -> int:
    """Read the log to its end; returns the exit code, and with another than 0 sets the problem."""
    proof = work.proof
    view_seq = 0
    try:
        view_seq = await asyncio.wait_for(log_end_seq(client), 2.0)
    except (TimeoutError, CliError):
        out.progress("no view answers: the end of the log is not compared with it")
    server = await _server_report(out, view_seq)
    damage, expected = server.damage or _archive_problem(client), max(server.last_seq, view_seq)
    try:
        try:
            await _read_from(client, work, 1, expected)
        except LogDropped as err:
            if proof.last_seq or damage or not server.last_seq:
                raise
            # The streams account for what is not there.
            await _begin_behind_drop(client, work, err.first_seq)
            await _read_from(client, work, err.first_seq, expected)
    except StateDiverged as err:
        proof.problem = str(err)
        return 1
    except LogDropped as err:
        proof.problem = "; ".join(part for part in (damage, str(err)) if part)
        return 2
    except LogError as err:
        proof.problem = str(err)
        return 2
    except (BusUnavailable, OSError) as err:
        if isinstance(err, BusUnavailable) and not proof.last_seq and not damage:
            raise
        proof.problem = damage or f"record {proof.last_seq + 1} cannot be read: {err}"
        return 2
    try:
        work.replica.refuse_lost_end(proof.last_seq, server.once_reached)
    except LogError as err:
        damage = damage or str(err)
    proof.problem = damage
    if not proof.problem and proof.last_seq < expected:
        proof.problem = (
            f"the log can be read up to seq {proof.last_seq}, but {expected} records were written"
        )
    if not proof.problem and not proof.last_seq:
        proof.problem = "no record was read: an empty log proves nothing"
    proof.ok = not proof.problem
    return 0 if proof.ok else 2


async def _read_from(client: Client, work: _Verification, first: int, expected: int) -> None:
    with ProgressBar("verifying", expected) as bar:
        async for record in client.read_log(first):
            work.apply(record)
            bar.update(record.seq)


async def _begin_behind_drop(client: Client, work: _Verification, first: int) -> None:
    """Begin behind what was dropped by order. Raises LogDamaged."""
    restored = await snapshots.restore_newest(client.bus, TABLES, oldest=True, quiet=True)
    if restored is None:
        text = f"records before {first} were dropped, and no snapshot after them can be restored"
        raise LogDamaged(first, text)
    work.begin_behind_drop(first, restored.replica)


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
    if proof.ok:
        out.line("\nthe log is sound", "green")
        if proof.first_seq > 1:
            out.line(_holds(proof))
    else:
        out.line(f"\n{proof.problem}", "red")
        out.line(_holds(proof))


def _read(proof: LogProof) -> str:
    """Which records were read."""
    return f"{proof.first_seq} to {proof.last_seq}" if proof.last_seq else "none"


def _holds(proof: LogProof) -> str:
    """Which records the proof is about."""
    if not proof.last_seq:
        return "no record is proven"
    text = f"the proof holds for records {proof.first_seq} to {proof.last_seq}"
    if proof.states_from_seq > 1:
        text += (
            f", for states from seq {proof.states_from_seq}, a snapshot: older records were dropped"
        )
    return text


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


def _redecide(proof: LogProof, work: _Verification) -> int:
    """Decide every plan again from its own snapshot, policy, seed and lane."""
    with ProgressBar("verifying decisions", 2 * len(work.kept)) as bar:
        found = verify_decisions(lambda: bar.counted(work.kept), start=work.start)
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
    login = login_for(selected_bus_url(), "view", accounts.ADMIN)
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


def _archive_problem(client: Client) -> str:
    """The first damage of an archive; empty: none, or the log is on a bus."""
    if not global_options.export_dir():
        return ""
    # Imported here: it brings a database along.
    from services.cli.runtime.export_client import ExportClient

    assert isinstance(client, ExportClient)
    return next(iter(client.problems), "")
