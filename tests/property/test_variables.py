"""Any commands about variables, with copies, leave the table that an independent model has, from any snapshot on."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.base import Command, Event
from schemas.envelope import LogRecord
from schemas.variables import (
    CreateKey,
    DeleteVariable,
    PutVariable,
    ShredVariables,
    VariableLife,
    VariablePut,
    VariableRefused,
)
from shared.core.state.snapshots.codecs import ByteReader
from shared.core.state.snapshots.table_codecs import TABLE_CODECS
from shared.core.state.state import State
from shared.protocol import variable_paths
from shared.sim.oracle.invariants import InvariantBroken, InvariantChecks
from shared.sim.oracle.reference_variables import ReferenceVariables
from tests.builders import Cluster

PATHS = ("a", "b/c", "nomad/x")
REQUESTS = st.integers(1, 9)
INCARNATIONS = st.integers(0, 4)
#: None: the present revision.
EXPECTED = st.one_of(st.just(-1), st.none(), st.integers(0, 30))

PUTS = st.fixed_dictionaries(
    {
        "kind": st.just(PutVariable),
        "path": st.sampled_from(PATHS),
        "incarnation": st.one_of(st.none(), INCARNATIONS),
        "items": st.integers(0, 3),
        "size": st.integers(0, 40),
        "cas": EXPECTED,
        "shred_old": st.booleans(),
    }
)
DELETES = st.fixed_dictionaries(
    {"kind": st.just(DeleteVariable), "path": st.sampled_from(PATHS), "cas": EXPECTED}
)
SHREDS = st.fixed_dictionaries(
    {
        "kind": st.just(ShredVariables),
        "lives": st.lists(st.tuples(st.sampled_from(PATHS), INCARNATIONS), max_size=4),
    }
)
KEYS = st.fixed_dictionaries({"kind": st.just(CreateKey), "number": st.integers(0, 3)})
#: What is sent, after how many seconds, and which earlier command comes once more behind it.
STEPS = st.lists(
    st.tuples(
        st.one_of(PUTS, PUTS, DELETES, SHREDS, KEYS),
        st.sampled_from([0, 1, 5, 40]),
        st.one_of(st.none(), st.integers(0, 40)),
    ),
    min_size=1,
    max_size=40,
)


class Told:
    """A cluster, and the reference model that follows its log."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.model = ReferenceVariables(InvariantChecks())
        self.sent: list[Command] = []
        self.events: list[tuple[int, Event]] = []

    def command(self, number: int, said: dict[str, Any]) -> Command:
        """The command that a step says; without a revision or a life the present ones."""
        fields = dict(said)
        kind = fields.pop("kind")
        if kind is CreateKey:
            number = fields["number"]
            return CreateKey(key_id=f"{number:016x}", public=bytes([number]) * 32)
        if kind is ShredVariables:
            lives = tuple(VariableLife(path=p, incarnation=n) for p, n in fields["lives"])
            return ShredVariables(lives=lives)
        present = self.model.live.get(fields["path"])
        if fields["cas"] is None:
            fields["cas"] = 0 if present is None else present.revision
        if kind is PutVariable:
            if fields["incarnation"] is None:
                fields["incarnation"] = self.cluster.state.variables.incarnation_of_put(
                    fields["path"], shred_old=fields["shred_old"]
                )
            fields |= {"cipher": bytes([number]), "digest": f"{number:032x}"}
        return kind(request_id=f"r{number}", **fields)  # type: ignore[no-any-return]

    def do(self, command: Command) -> None:
        """Decide a command; the model judges what the log says of it."""
        if isinstance(command, PutVariable | DeleteVariable):
            self.model.show(command)
        for event in self.cluster.do(command):  # type: ignore[arg-type]
            self.model.apply(event, self.cluster.state.seq, self.cluster.state.t_ns)
            self.events.append((self.cluster.state.seq, event))
        assert self.model.differences(self.cluster.state) == []

    def run(self, steps: list[tuple[dict[str, Any], int, int | None]]) -> None:
        """Send all commands, and the copies."""
        for number, (said, seconds, copy) in enumerate(steps):
            self.cluster.later(seconds)
            self.sent.append(self.command(number, said))
            self.do(self.sent[-1])
            if copy is not None:
                self.do(self.sent[copy % len(self.sent)])


@given(STEPS)
@settings(max_examples=150, deadline=None)
def test_any_commands_make_the_table_of_the_model(
    steps: list[tuple[dict[str, Any], int, int | None]],
) -> None:
    """Which command is carried out, refused or done before, and every row, life and key: as the model has it."""
    told = Told()
    told.run(steps)
    assert told.model.differences(told.cluster.state) == []


@given(STEPS, st.integers(0, 60))
@settings(max_examples=60, deadline=None)
def test_a_replay_and_a_snapshot_make_the_same_table(
    steps: list[tuple[dict[str, Any], int, int | None]], at: int
) -> None:
    """Facts alone make the state, and from a snapshot at any of them on the rest makes the same."""
    told = Told()
    told.run(steps)
    state, codec = State(frozenset({"variables"})), TABLE_CODECS["variables"]
    for nth, (seq, event) in enumerate(told.events):
        state.apply(LogRecord(**ENVELOPE, events=(event,)), seq)
        if nth == at % len(told.events):
            data = b"".join(codec.pieces(state.variables))
            state.put("variables", codec.read(ByteReader(data)))
    assert state.variables.digest() == told.cluster.state.variables.digest()
    ours, theirs = vars(state.variables), vars(told.cluster.state.variables)
    for name in ("by_path", "ended", "keys", "live", "total_size"):
        assert ours[name] == theirs[name], name


ENVELOPE: dict[str, Any] = {
    "kind": "tx",
    "schema": 1,
    "core": "",
    "epoch": 1,
    "prev": "",
    "t_ns": 1,
}


def test_the_commands_reach_every_outcome() -> None:
    """The model is asked about puts, ends of lives, and each refusal but that of the quota."""
    told = Told()
    for number in range(variable_paths.PUTS_MAX + 1):
        told.do(told.command(number, said(shred_old=number % 2 == 1)))
    told.do(told.command(20, said(incarnation=9)))
    told.do(told.command(21, said(cas=99)))
    told.do(told.command(22, said(path="nomad/x")))
    kinds = {type(event).__name__ for _, event in told.events}
    assert kinds == {"VariablePut", "VariableDeleted", "VariableRefused"}
    codes = {event.code for _, event in told.events if isinstance(event, VariableRefused)}
    assert codes == {"rate", "stale", "conflict", "invalid"}


def said(**fields: Any) -> dict[str, Any]:
    """A step with a put that is carried out; `fields` override."""
    base = {"kind": PutVariable, "path": "a", "incarnation": None, "items": 1, "size": 1}
    return {**base, "cas": -1, "shred_old": False, **fields}


def test_the_model_refuses_what_breaks_its_rules() -> None:
    """A put of a life that is over, of a request that was carried out, and of what was never sent."""
    told = Told()
    told.do(told.command(1, said()))
    ((_, event),) = told.events
    assert isinstance(event, VariablePut)
    with pytest.raises(InvariantBroken):
        told.model.apply(event, 9, told.cluster.state.t_ns)
