"""The fleet as columns: what another picture hands over changes nothing, and the rows that differ are found."""

import numpy as np

from shared.core.runtime.messages import Record
from shared.query.fleet_columns import FleetColumns, FleetMembers, fleet_columns
from shared.query.historical_state import HistoricalState
from shared.sim.world.world import SimulatedWorld


def test_another_picture_of_the_log_changes_nothing() -> None:
    """Nodes come, change and leave: columns made with the members of any moment equal those without."""
    simulated = SimulatedWorld(1)
    assert not simulated.run().invariant
    records = [
        Record(at, subject, data)
        for at, (subject, data) in enumerate(simulated.context.bus.log.records, 1)
    ]
    past, older = HistoricalState(), None
    members: dict[int, FleetMembers] = {}
    alone: list[bytes] = []
    for record in records:
        past.apply(record)
        alone.append(fleet_columns(past.state).encode())
        found = fleet_columns(past.state, None if older is None else older.members)
        assert found.encode() == alone[-1]
        if older is not None:
            _check_changes(older, found)
        members[found.members.generation] = found.members
        older = found
    assert len(members) > 3
    again = HistoricalState()
    for record, wanted in zip(records, alone, strict=True):
        again.apply(record)
        for known in members.values():
            assert fleet_columns(again.state, known).encode() == wanted


def _check_changes(older: FleetColumns, newer: FleetColumns) -> None:
    """With the changed rows put in, the older picture is the newer one."""
    changed = newer.changed_since(older)
    if changed is None:
        assert (older.ids, older.jobs) != (newer.ids, newer.jobs)
        return
    columns = [
        [*older.shares[:, row].tolist(), int(older.count[row])] for row in range(len(older.ids))
    ]
    for row, *values in newer.rows(changed):
        columns[row] = values[:4]
    wanted = np.vstack([newer.shares, newer.count[None, :]]).T
    assert columns == wanted.tolist()
