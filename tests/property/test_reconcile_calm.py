"""Where nothing happened to a group but to its nodes, the short way of reconcile is the long one."""

from unittest.mock import patch

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as some

from schemas.base import JobId
from shared.core.scheduling.reconcile.service_jobs import Reconciler, ReconcileResult, reconcile
from shared.core.state.tables.allocations import COMPLETE, FAILED, RUNNING, STOP, UNKNOWN
from shared.core.state.tables.fleet import DOWN
from tests.builders import Cluster, group, join, register
from tests.examples import examples

NODES = 6


def buckets(found: ReconcileResult) -> object:
    """Everything in it, as plain values."""
    wants = []
    for want in found.requests:
        columns = {name: getattr(want, name) for name in want.__struct_fields__ if name != "group"}
        wants.append(
            (want.group.name, {k: np.asarray(v).tolist() for k, v in sorted(columns.items())})
        )
    return msgspec.to_builtins((found.stops, found.updates)), wants


@examples(150)
@given(
    counts=some.lists(some.integers(1, 9), min_size=1, max_size=3),
    count_now=some.integers(1, 9),
    down=some.sets(some.integers(0, NODES - 1), max_size=3),
    changed=some.lists(
        some.tuples(
            some.integers(0, 40), some.sampled_from((RUNNING, FAILED, COMPLETE, UNKNOWN, STOP))
        ),
        max_size=2,
    ),
    renamed=some.booleans(),
)
def test_the_short_way_is_the_long_one(
    *,
    counts: list[int],
    count_now: int,
    down: set[int],
    changed: list[tuple[int, int]],
    renamed: bool,
) -> None:
    """Whatever nodes are lost, counts are changed, tasks fail or names are doubled, the buckets are equal."""
    world = Cluster()
    for number in range(NODES):
        world.do(join(f"n{number}"))
    groups = [group(f"g{at}", count=count) for at, count in enumerate(counts)]
    world.run(register("app", *groups))
    again = [group("g0", count=count_now), *groups[1:]]
    world.do(register("app", *again, salt=1, submission_id="s2"))
    state = world.state
    table, job = state.allocations, state.jobs.by_id[JobId("app")]
    if not renamed:
        # The count of the version that there is, and no other version: calm but for its nodes.
        table.groups.versions[:] = [job.version] * len(table.groups.versions)
    rows = table.rows_of(JobId("app"))
    table.client[rows] = RUNNING
    for at, what in changed:
        row = rows[at % len(rows)]
        if what == STOP:
            table.desired[row] = STOP
        else:
            table.client[row] = what
    state.fleet.status[sorted(down)] = DOWN

    def found() -> object:
        return buckets(
            reconcile(
                state,
                job,
                rows,
                mask_of=lambda _: np.ones(state.fleet.size, dtype=bool),
                score_of=lambda _, nodes: [0] * len(nodes),
            )
        )

    short = found()
    with patch.object(Reconciler, "_is_calm", return_value=False):
        assert found() == short
