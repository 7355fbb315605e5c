"""What benchmarks of faults share: careful submitters, who was noticed down when, and counts that must come out exact.

Decides what a careful submitter does while services come and go: it asks again under the same id until there is a
verdict that stays. Decides what lost and doubled mean: allocations that shall run and have not ended, by job, against
what the job asks for. Next: `beats.py`, `observer.py`.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from bench.observer import Observer
from bench.outcome import Outcome
from schemas.base import JobId, NodeId
from schemas.jobs import Verdict
from schemas.nodes import NodeSpec
from shared.bus import subjects
from shared.bus.connect import BusClient
from shared.core.tables.allocations import RUN, TERMINAL
from shared.core.tables.fleet import DOWN
from shared.errors import BusUnavailable

SUBMITTERS = 64
PATIENCE_S = 120.0
#: How long one ask waits, and the pause before the next where nobody answered or all were busy.
_ANSWER_S, _PAUSE_S = 0.25, 0.02
_VERDICT = msgspec.json.Decoder(Verdict)


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Allocations against what was asked for."""

    lost: int
    doubled: int

    @property
    def exact(self) -> bool:
        """Neither."""
        return not (self.lost or self.doubled)


async def submit(bus: BusClient, body: bytes, patience_s: float = PATIENCE_S) -> Verdict:
    """Submit one job until there is a verdict that stays. Raises TimeoutError."""
    async with asyncio.timeout(patience_s):
        while True:
            with contextlib.suppress(BusUnavailable):
                _, answer = await bus.request_raw(
                    subjects.api_jobs("submit"), body, timeout_s=_ANSWER_S
                )
                verdict = _VERDICT.decode(answer)
                busy = verdict.error is not None and verdict.error.code == "unavailable"
                if verdict.status != "pending" and not busy:
                    return verdict
            await asyncio.sleep(_PAUSE_S)


async def submit_all(
    bus: BusClient, bodies: Iterable[bytes], submitters: int = SUBMITTERS
) -> list[Verdict]:
    """Submit them by so many submitters at once, each one after the other."""
    verdicts: list[Verdict] = []
    queue = iter(bodies)

    async def submitter() -> None:
        for body in queue:
            verdicts.append(await submit(bus, body))  # noqa: PERF401 - several append to it.

    await asyncio.gather(*(submitter() for _ in range(submitters)))
    return verdicts


def count(observer: Observer, wanted: Mapping[str, int]) -> Counts:
    """Compare what shall run and has not ended with `wanted`, allocations by job."""
    table = observer.state.allocations
    lost = doubled = 0
    for name, want in wanted.items():
        rows = table.rows_of(JobId(name))
        held = int(np.count_nonzero((table.desired[rows] == RUN) & ~TERMINAL[table.client[rows]]))
        lost += max(0, want - held)
        doubled += max(0, held - want)
    return Counts(lost=lost, doubled=doubled)


def down(observer: Observer) -> set[int]:
    """Rows of nodes that are down now."""
    fleet = observer.state.fleet
    return set(np.flatnonzero(fleet.status[: fleet.size] == DOWN).tolist())


async def noticed(
    observer: Observer, rows: NDArray[np.int64], within_s: float = 30.0
) -> dict[int, float]:
    """When each row was seen down (time.perf_counter); who is not seen so in time is left out."""
    found: dict[int, float] = {}
    deadline = time.perf_counter() + within_s
    while len(found) < len(rows) and (left := deadline - time.perf_counter()) > 0:
        observer.changed.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(observer.changed.wait(), min(left, 1.0))
        now = time.perf_counter()
        for row in rows[observer.state.fleet.status[rows] == DOWN].tolist():
            found.setdefault(row, now)
    return found


def one_in(nodes: Sequence[NodeSpec], part: int) -> list[NodeId]:
    """One of each `part` nodes, at every place in the second at which a heartbeat goes."""
    return [spec.node_id for at, spec in enumerate(nodes) if at % part == at // part % part]


def nested(outcome: Outcome) -> Outcome:
    """Make `a.b` of the results a part `b` of `a`."""
    return msgspec.structs.replace(
        outcome,
        result=_nested(outcome.result),
        result_min=_nested(outcome.result_min),
        result_max=_nested(outcome.result_max),
    )


def _nested(flat: Mapping[str, float]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in flat.items():
        *path, last = name.split(".")
        into = out
        for part in path:
            into = into.setdefault(part, {})
        into[last] = value
    return out
