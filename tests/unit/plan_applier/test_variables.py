"""Commands of the keeper at the applier: how many make a transaction, and what becomes of them in a full log."""

from schemas.envelope import ENCODER, RECORD_DECODER
from schemas.variables import DeleteVariable, PutVariable, VariablePut, VariableRefused
from services.plan_applier.command_queue import QUOTA
from services.plan_applier.role import RECORD_BYTES_MAX
from shared.core.runtime.messages import Ack, LogSpace, Stop, Timer
from shared.core.state.state import State
from shared.protocol.variable_paths import CIPHER_BYTES_MAX, SIZE_BYTES_MAX
from tests.unit.core.decide.test_variables import delete, put
from tests.unit.plan_applier.test_plan_applier import Bench


def facts(bench: Bench) -> list[tuple[int, VariablePut | VariableRefused]]:
    """Puts and refusals of the log, with their seq."""
    return [
        (seq, event)
        for seq, (_, data) in enumerate(bench.log, 1)
        for event in RECORD_DECODER.decode(data).events
        if isinstance(event, VariablePut | VariableRefused)
    ]


def largest(number: int) -> PutVariable:
    """A put as large as one may be."""
    path = f"app/{number}"
    return put(path, path, size=SIZE_BYTES_MAX, cipher=b"\xff" * CIPHER_BYTES_MAX)


def test_the_largest_puts_fill_several_transactions() -> None:
    """As many as a round takes come at once: all are written, and no record is too long."""
    bench = Bench().lead()
    count = QUOTA["variable"]
    sent = [bench.send(largest(number), kind="variable") for number in range(count)]
    effects = bench.settle(*sent)
    for _ in range(count):
        effects += bench.settle(Timer("linger", bench.now_ns))
    assert not [one for one in effects if isinstance(one, Stop)]
    found = facts(bench)
    assert len(found) == count
    assert len({seq for seq, _ in found}) > 1
    assert max(len(data) for _, data in bench.log) < RECORD_BYTES_MAX


def test_puts_of_one_transaction_see_each_other() -> None:
    """Of two that expect that a path does not exist, one is refused, with the revision of the other."""
    bench = Bench().lead()
    bench.settle(bench.send(put("r1", cas=0), put("r2", cas=0), kind="variable"))
    ((seq, first), (same, second)) = facts(bench)
    assert seq == same
    assert isinstance(first, VariablePut)
    assert isinstance(second, VariableRefused)
    assert (second.code, second.revision) == ("conflict", seq)


def test_a_nearly_full_log_takes_no_puts() -> None:
    """They are left with their sender; a delete is written, since it is how values are given up."""
    bench = Bench().lead()
    bench.settle(bench.send(put(), kind="variable"))
    bench.settle(LogSpace(bytes=95, bytes_max=100, last_seq=10**6))
    seq = len(bench.log)
    assert Ack(7) in bench.settle(bench.send(put("r2"), kind="variable"))
    assert len(bench.log) == seq
    bench.settle(bench.send(delete(), kind="variable"), Timer("linger", bench.now_ns))
    assert bench.role.replica.state.variables.find("app/db") is None


def test_what_the_applier_wrote_makes_the_same_table_again() -> None:
    """A replay of its log, with refusals and second copies in it, has the same hash."""
    bench = Bench().lead()
    again = DeleteVariable(request_id="d1", path="app/db", cas=0)
    for command in (put(), put(), delete("d0"), again, put("r2", incarnation=2), put("r3")):
        bench.settle(bench.send(command, kind="variable"), Timer("linger", bench.now_ns))
    state = State(frozenset({"variables"}))
    for seq, (_, data) in enumerate(bench.log, 1):
        record = RECORD_DECODER.decode(data)
        if record.events:
            state.apply(record, seq)
    assert len(facts(bench)) == 3
    assert state.variables.digest() == bench.role.replica.state.variables.digest()
    assert ENCODER.encode(state.variables.by_path["app/db"]).count(b"noise") == 0
