"""Delays of allocations beside the gateway's replica, against the timeline that what-ifs measure by."""

import numpy as np
import pytest

from services.gateway import allocation_times
from services.gateway.allocation_times import EDGES_MS, distribution
from services.gateway.role import Gateway
from shared.core.runtime.messages import Record
from shared.core.runtime.replica import Replica
from shared.whatif.placement_table import NameTable
from shared.whatif.timeline import Timeline
from tests.sim.recorded import seq_at, written

MS = 1_000_000


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return written()


def test_delays_equal_those_of_the_timeline(records: list[Record]) -> None:
    """Both follow the same log: each allocation is placed and running at the same times, asked for never later."""
    gateway, timeline = Gateway(instance="g"), Timeline(Replica(), NameTable())
    gateway.step(list(records), 0)
    for record in records:
        timeline.follow(record)
    placed = timeline.placed
    running, began = placed.column("running_ns"), placed.column("placed_ns")
    found = gateway.delays.delays(gateway.seq, gateway.times.at(gateway.seq))
    assert found.first_seq == 1
    assert found.placed.count == placed.count > 10
    assert found.started == distribution((running - began)[running > 0])
    asked = distribution(began - placed.column("asked_ns"))
    assert (found.placed.p50_ms, found.placed.max_ms) == (asked.p50_ms, asked.max_ms)


def test_a_past_moment_knows_nothing_later(records: list[Record]) -> None:
    """The distribution behind a seq is that of a gateway that has read no further."""
    seq = seq_at(records, 15)
    whole, part = Gateway(instance="g"), Gateway(instance="h")
    whole.step(list(records), 0)
    part.step(records[:seq], 0)
    wanted = part.delays.delays(part.seq, part.times.at(part.seq))
    assert whole.delays.delays(part.seq, whole.times.at(part.seq)) == wanted
    assert wanted.placed.count < whole.delays.delays(whole.seq, 2**62).placed.count


def test_the_oldest_leave(records: list[Record], monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound the newest half stays, and the answer says from which record on."""
    monkeypatch.setattr(allocation_times, "KEPT", 4)
    gateway = Gateway(instance="g")
    gateway.step(list(records), 0)
    found = gateway.delays.delays(gateway.seq, gateway.times.at(gateway.seq))
    assert 4 <= found.placed.count <= 8 + 12
    assert found.first_seq > 1


def test_a_distribution_counts_each_delay_once() -> None:
    """Bins have upper edges; what is longer than all is in the last one; nothing has quantiles of zero."""
    found = distribution(np.asarray([0, MS, 2 * MS, 3 * MS, 10**18], dtype=np.int64))
    assert found.count == sum(found.bins) == 5
    assert found.bins[:3] == [2, 1, 1]
    assert found.bins[len(EDGES_MS)] == 1
    assert (found.p50_ms, found.max_ms) == (2.0, 1e12)
    assert distribution(np.zeros(0, dtype=np.int64)).p99_ms == 0.0
