"""Drains at the pace of `migrate`: who leaves when, in what order, and when a drain is over."""

from typing import Any

import pytest

from schemas.allocations import AllocationsHealthChanged, AllocationsReported
from schemas.evaluations import WakeEvaluations
from schemas.jobs import MigratePolicy
from schemas.nodes import ChangeLiveness, NodeDrainChanged, NodeDrained
from schemas.plans import PlanCommitted
from schemas.policy import DrainNode, OperatorRefused, SetEligibility
from shared.core.decide.consequences import apply_facts
from shared.core.state.tables.allocations import RUNNING
from tests.builders import SECOND, Cluster, group, join, register

DRAINED = "its node is drained"


class Fleet:
    """Nodes n0, n1, …; a job fills them in this order."""

    def __init__(self, nodes: int = 2, **fields: Any) -> None:
        self.world = Cluster()
        self.fields = {"cpu_mhz": 2_000, "memory_mib": 2_000} | fields
        self.join(nodes)

    def join(self, nodes: int = 1) -> None:
        """Let more nodes come."""
        for _ in range(nodes):
            self.world.do(join(f"n{self.world.state.fleet.size}", **self.fields))

    def run(
        self, job_id: str = "app", *, count: int = 10, mp: int | None = 1, **fields: Any
    ) -> None:
        """Run a job, healthy."""
        migrate = None if mp is None else MigratePolicy(max_parallel=mp)
        job_type = fields.pop("job_type", "service")
        one = group(count=count, migrate=migrate, **fields)
        self.world.run(register(job_id, one, submission_id=f"s-{job_id}", job_type=job_type))
        self.say(1, self.world.rows(job_id))

    def say(self, health: int, rows: list[int]) -> None:
        """Have rows run with this health."""
        running = AllocationsReported(rows=tuple(rows), statuses=(RUNNING,) * len(rows))
        said = AllocationsHealthChanged(rows=tuple(rows), healths=(health,) * len(rows))
        state = self.world.state
        state.begin(state.seq + 1, self.world.now_ns)
        apply_facts(state, (running, said), self.world.now_ns)
        self.world.check()

    def drain(self, node: str = "n0", after_s: int | None = 3_600, **fields: Any) -> list[Any]:
        """Drain a node; None: without a deadline."""
        at_ns = 0 if after_s is None else self.world.now_ns + after_s * SECOND
        fields = {"draining": True, "deadline_ns": at_ns} | fields
        return self.world.do(DrainNode(request_id="r", node_id=node, **fields))

    def settle(self) -> list[Any]:
        """Schedule until nothing is pending."""
        out: list[Any] = []
        table = self.world.state.evaluations
        while ready := [
            one
            for one in (table.by_key[key] for key in table.open)
            if one.status == "pending" and one.wait_until_ns <= 0
        ]:
            out += self.world.do(self.world.plan(ready[0].job_id, key=ready[0].key))
        return out

    def look(self, job_id: str = "app") -> None:
        """Wake what is due, and what waits for a second."""
        self.world.later(2)
        table = self.world.state.evaluations
        keys = [k for k in table.open if 0 < table.by_key[k].wait_until_ns <= self.world.now_ns]
        self.world.do(WakeEvaluations(keys=tuple(keys), reason="due"))
        del job_id

    def on(self, node: str, job_id: str = "app") -> list[int]:
        """Rows of a job on a node that are to run."""
        row = self.world.state.fleet.row_of[node]  # type: ignore[index]
        nodes = self.world.state.allocations.node
        return [at for at in self.world.rows(job_id) if int(nodes[at]) == row]

    def end_stopped(self, node: str, status: str = "complete") -> list[Any]:
        """The node says that what was to stop ended."""
        table = self.world.state.allocations
        at = self.world.state.fleet.row_of[node]  # type: ignore[index]
        rows = [
            row
            for row in table.live_rows().tolist()
            if table.node[row] == at and table.desired[row] == 1 and table.client[row] < 2
        ]
        return self.world.report(node, *((row, status) for row in rows))


def moved(events: list[Any]) -> int:
    """How many allocations plans moved off drained nodes."""
    plans = [event for event in events if isinstance(event, PlanCommitted)]
    return sum(len(stop.rows) for plan in plans for stop in plan.stops if stop.reason == DRAINED)


@pytest.mark.parametrize(("mp", "wanted"), [(1, 1), (2, 2), (10, 10), (0, 0)])
def test_d1_as_many_move_as_may(mp: int, wanted: int) -> None:
    """D1: of ten healthy ones max_parallel leave, none with 0; each stops with its replacement."""
    fleet = Fleet(1)
    fleet.run(mp=mp)
    fleet.join()
    assert len(fleet.on("n0")) == 10
    fleet.drain()
    assert moved(fleet.settle()) == wanted
    assert (len(fleet.on("n0")), len(fleet.on("n1"))) == (10 - wanted, wanted)


def test_d2_health_lets_the_next_one_go() -> None:
    """D2: one without health holds the others; once it is healthy the next one moves, until none is left."""
    fleet = Fleet(1)
    fleet.run(count=3)
    fleet.join()
    fleet.drain()
    for left in (2, 1, 0):
        fleet.settle()
        assert len(fleet.on("n0")) == left
        assert not moved(fleet.settle())
        new = [row for row in fleet.on("n1") if not fleet.world.state.allocations.health[row]]
        assert len(new) == 1
        fleet.say(1, new)
        fleet.look()


def test_d3_unhealthy_ones_count_as_down() -> None:
    """D3: with five of ten without health nothing moves."""
    fleet = Fleet(1)
    fleet.run()
    fleet.join()
    table = fleet.world.state.allocations
    table.health[fleet.on("n0")[:5]] = 0
    fleet.drain()
    assert not moved(fleet.settle()) and len(fleet.on("n0")) == 10


@pytest.mark.parametrize("job_type", ["batch", "sysbatch"])
def test_d4_batch_runs_on_and_is_not_replaced(job_type: str) -> None:
    """D4: it stays until the deadline, then it stops and begins nowhere else, not even on its node."""
    fleet = Fleet()
    fleet.run(count=1, mp=None, job_type=job_type)
    fleet.drain(after_s=10)
    fleet.settle()
    assert len(fleet.on("n0")) == 1
    fleet.world.later(11)
    fleet.look()
    assert moved(fleet.settle()) == 1
    assert not fleet.on("n0") and len(fleet.on("n1")) == (job_type == "sysbatch")
    events = fleet.end_stopped("n0")
    assert NodeDrained(row=0, deadline_reached=True) in events
    fleet.drain(draining=False, deadline_ns=0)
    fleet.settle()
    assert not fleet.on("n0") and len(fleet.on("n1")) == (job_type == "sysbatch")


def test_d5_two_nodes_drain_one_allocation_at_a_time() -> None:
    """D5: count 2 on two draining nodes, max_parallel 1: one moves."""
    fleet = Fleet(3, cpu_mhz=100)
    fleet.run(count=2)
    assert (len(fleet.on("n0")), len(fleet.on("n1"))) == (1, 1)
    fleet.drain("n0")
    fleet.drain("n1")
    assert moved(fleet.settle()) == 1 and len(fleet.on("n2")) == 1


def test_d6_an_empty_node_is_drained_at_once() -> None:
    """D6: nothing to wait for; the node stays ineligible."""
    fleet = Fleet()
    events = fleet.drain()
    assert [type(event) for event in events] == [NodeDrainChanged, NodeDrained]
    assert not fleet.world.state.fleet.drains and not fleet.world.state.fleet.eligible[0]


def test_d6_a_node_with_system_jobs_alone() -> None:
    """D6: they stop before the deadline, and the drain ends with the last of them."""
    fleet = Fleet()
    fleet.run("logs", count=1, mp=None, job_type="system")
    fleet.drain()
    assert moved(fleet.settle()) == 1 and 0 in fleet.world.state.fleet.drains
    assert NodeDrained(row=0) in fleet.end_stopped("n0")


def test_d7_at_the_deadline_everything_stops() -> None:
    """D7: what found no room before goes all the same, and the end says so."""
    fleet = Fleet(1)
    fleet.run(count=2, mp=2)
    fleet.drain(after_s=10)
    assert not moved(fleet.settle()) and len(fleet.on("n0")) == 2
    fleet.world.later(11)
    fleet.look()
    assert moved(fleet.settle()) == 2
    assert NodeDrained(row=0, deadline_reached=True) in fleet.end_stopped("n0")


def test_d8_an_infinite_drain() -> None:
    """D8: the service moves, the batch job ends by itself, the system job goes last."""
    fleet = Fleet()
    fleet.run("logs", count=1, mp=None, job_type="system")
    fleet.run("app", count=1)
    fleet.run("once", count=1, mp=None, job_type="batch")
    assert len(fleet.on("n0", "once")) == len(fleet.on("n0", "app")) == 1
    fleet.drain(after_s=None)
    fleet.settle()
    assert not fleet.on("n0", "app") and fleet.on("n0", "once") and fleet.on("n0", "logs")
    fleet.end_stopped("n0")
    fleet.settle()
    assert fleet.on("n0", "logs")
    fleet.world.report("n0", (fleet.on("n0", "once")[0], "complete"))
    fleet.settle()
    assert not fleet.on("n0", "logs")
    assert NodeDrained(row=0) in fleet.end_stopped("n0")


def test_d9_system_jobs_may_stay() -> None:
    """D9: with ignore_system they stay, and do not hinder the end."""
    fleet = Fleet()
    fleet.run("logs", count=1, mp=None, job_type="system")
    fleet.run("app", count=1)
    fleet.drain(ignore_system=True)
    fleet.settle()
    assert NodeDrained(row=0) in fleet.end_stopped("n0")
    fleet.settle()
    assert fleet.on("n0", "logs")


def test_d9_keep_ineligible_and_disable() -> None:
    """D9: an end may keep the node ineligible; without that it takes allocations again, also when drained."""
    fleet = Fleet()
    fleet.drain()
    assert fleet.drain(draining=False, deadline_ns=0, keep_ineligible=True) == []
    fleet.drain(draining=False, deadline_ns=0)
    assert fleet.world.state.fleet.eligible[0]
    assert fleet.drain(draining=False, deadline_ns=0) == []
    fleet.run(count=1)
    fleet.drain()
    fleet.drain(draining=False, deadline_ns=0, keep_ineligible=True)
    assert not fleet.world.state.fleet.drains and not fleet.world.state.fleet.eligible[0]


def test_an_end_opens_no_node_that_an_operator_had_closed() -> None:
    """A node that was ineligible before stays so, whether its drain is ended or complete; else it opens."""
    fleet = Fleet()
    eligible = fleet.world.state.fleet.eligible
    fleet.run(count=1)
    for _ in range(2):
        fleet.world.do(SetEligibility(request_id="r", node_id="n0", eligible=False))
        assert fleet.drain(draining=False, deadline_ns=0) == []
        fleet.drain()
        fleet.drain(message="another text")
        fleet.drain(draining=False, deadline_ns=0)
        assert not fleet.world.state.fleet.drains and not eligible[0]
        fleet.drain()
        fleet.settle()
        assert NodeDrained(row=0) in fleet.end_stopped("n0") or not fleet.on("n0")
        assert fleet.drain(draining=False, deadline_ns=0) == [] and not eligible[0]
        fleet.world.do(SetEligibility(request_id="r", node_id="n0", eligible=True))
        # A drain of a node that another drain left closed.
        fleet.drain()
        fleet.drain()
        assert fleet.drain(draining=False, deadline_ns=0) and eligible[0]


def test_d9_force_moves_all_now() -> None:
    """D9: a deadline of now stops everything, whatever max_parallel is."""
    fleet = Fleet(1)
    fleet.run()
    fleet.join()
    fleet.drain(after_s=0)
    assert moved(fleet.settle()) == 10


def test_d10_a_drain_waits_for_the_last_to_die() -> None:
    """D10: the drain ends only with the last stopping allocation."""
    fleet = Fleet()
    fleet.run(count=1)
    fleet.drain()
    assert not [one for one in fleet.settle() if isinstance(one, NodeDrained)]
    assert NodeDrained(row=0) in fleet.end_stopped("n0", "failed")


def test_d11_another_deadline_keeps_the_start() -> None:
    """D11: the newer deadline counts alone, from the same beginning; another message is another fact."""
    fleet = Fleet(1)
    fleet.run(count=1)
    fleet.drain(after_s=10)
    began = fleet.world.state.fleet.terms_of(0).started_ns
    fleet.world.later(5)
    fleet.drain(after_s=3_600, message="disk")
    terms = fleet.world.state.fleet.terms_of(0)
    assert (terms.started_ns, terms.message) == (began, "disk")
    fleet.world.later(6)
    fleet.look()
    fleet.settle()
    assert len(fleet.on("n0")) == 1


def test_d11_disabled_before_the_deadline() -> None:
    """D11: a drain that was ended stops nothing at its deadline."""
    fleet = Fleet(1)
    fleet.run(count=1)
    fleet.drain(after_s=10)
    fleet.drain(draining=False, deadline_ns=0)
    fleet.world.later(11)
    fleet.look()
    fleet.settle()
    assert len(fleet.on("n0")) == 1


def test_d11_a_node_that_goes_down_is_drained_by_its_losses() -> None:
    """D11: the drain continues; the plan that declares the last one lost ends it."""
    fleet = Fleet()
    fleet.run(count=2, mp=0)
    fleet.drain()
    fleet.settle()
    fleet.world.do(ChangeLiveness(node_ids=("n0",), status="down", seen_seq=fleet.world.state.seq))
    assert 0 in fleet.world.state.fleet.drains
    assert NodeDrained(row=0) in fleet.settle()


def test_a_long_message_is_refused() -> None:
    """A message is bounded."""
    fleet = Fleet()
    refused = fleet.drain(message="x" * 501)
    assert isinstance(refused[0], OperatorRefused) and refused[0].code == "invalid"
