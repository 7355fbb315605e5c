"""The fleet as columns: what an older picture hands over changes nothing, and the rows that differ are found."""

import numpy as np

from shared.core.runtime.messages import Record
from shared.query.fleet_columns import FleetColumns, fleet_columns
from shared.query.historical_state import HistoricalState
from shared.sim.world.world import SimulatedWorld


def test_an_older_picture_changes_nothing() -> None:
    """Nodes come, change and leave: columns made with the picture before equal those made without, byte by byte."""
    simulated = SimulatedWorld(1)
    assert not simulated.run().invariant
    past, older = HistoricalState(), None
    members = set()
    for at, (subject, data) in enumerate(simulated.context.bus.log.records, 1):
        past.apply(Record(at, subject, data))
        alone, found = fleet_columns(past.state), fleet_columns(past.state, older)
        assert found.encode() == alone.encode()
        if older is not None:
            _check_changes(older, found)
        members.add(found.members.generation)
        older = found
    assert len(members) > 3


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
