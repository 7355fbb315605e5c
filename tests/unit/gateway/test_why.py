"""`/v1/caravan/why/<alloc>`: any allocation is explained, however many records lie before it."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from services.gateway.edge.call import Call
from services.gateway.edge.faults import HttpFault
from services.gateway.edge.past_states import PastStates
from services.gateway.role import Gateway
from services.gateway.routes import console_state
from services.gateway.routes.console_state import read_why
from shared.core.runtime.messages import CaughtUp, Record
from shared.core.state.ids import alloc_id
from shared.errors import LogDropped
from shared.query.explain import explain_placement
from shared.sim.world.world import SimulatedWorld


class StoredLog:
    """The log of a world, and no snapshot of it; `first` is the first kept record."""

    def __init__(self, records: list[Record]) -> None:
        self.records = records
        self.first = 1

    @property
    def log(self) -> "StoredLog":
        return self

    async def first_seq(self) -> int:
        return self.first

    async def read(self, seq: int, records: int = 100) -> list[Record]:
        if seq < self.first:
            raise LogDropped(self.first)
        return self.records[seq - 1 : seq - 1 + records]

    async def restore(self, last_seq: int) -> None:
        del last_seq


@pytest.fixture(scope="module")
def world() -> tuple[Gateway, StoredLog]:
    """A gateway behind the log of a simulated world."""
    simulated = SimulatedWorld(1)
    assert not simulated.run().invariant
    written = simulated.context.bus.log.records
    records = [Record(at, subject, data) for at, (subject, data) in enumerate(written, 1)]
    role = Gateway(instance="g")
    role.step([*records, CaughtUp(len(records))], 0)
    return role, StoredLog(records)


def last_placed(role: Gateway) -> tuple[int, str, int]:
    """Row, id and seq of the allocation that was placed last."""
    table = role.state.allocations
    rows = table.live_rows()
    row = int(rows[table.key[rows].argmax()])
    key = int(table.key[row])
    return row, alloc_id(key), role.state.policy.incarnations.seq(key)


def asked(role: Gateway, log: StoredLog, alloc: str) -> Any:
    """The answer of the endpoint."""
    call: Any = object.__new__(Call)
    call.role, call.path = role, {"alloc": alloc}
    call.server = SimpleNamespace(log=log, past=PastStates(log))  # type: ignore[arg-type]
    return asyncio.run(read_why(call))


def test_records_before_the_decision_do_not_count(
    world: tuple[Gateway, StoredLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind more records than an answer may read, the explanation is the one of the whole log."""
    role, log = world
    row, alloc, placed = last_placed(role)
    whole = explain_placement(role.state, log.records[:placed], row)
    between = placed - whole.decision.snapshot_seq
    assert between < placed
    monkeypatch.setattr(console_state, "EXPLAINED_MAX", between)
    found = asked(role, log, alloc)
    assert (found.node, found.text, found.top) == (whole.node, whole.text, whole.top)
    assert found.decision == whole.decision


def test_what_lies_too_far_behind_its_snapshot_is_said(
    world: tuple[Gateway, StoredLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records between a decision and its snapshot are bounded; a record that was dropped is 410."""
    role, log = world
    _, alloc, placed = last_placed(role)
    monkeypatch.setattr(console_state, "EXPLAINED_MAX", -1)
    with pytest.raises(HttpFault) as err:
        asked(role, log, alloc)
    assert (err.value.status, "caravan why" in err.value.text) == (503, True)
    monkeypatch.setattr(log, "first", placed + 1)
    with pytest.raises(HttpFault) as err:
        asked(role, log, alloc)
    assert err.value.status == 410
