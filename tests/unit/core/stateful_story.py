"""A job with one stateful group, its nodes and what they report, for tests of its order."""

from typing import Any

from schemas.base import Event, JobId, NodeId
from schemas.evaluations import Waiting
from schemas.jobs import Disconnect, MigratePolicy, UpdatePolicy
from schemas.nodes import AllocReport, ChangeLiveness, ReportNode
from schemas.policy import ConfirmDeath
from shared.core.state.tables.allocations import HEALTHY, RUN, TERMINAL
from tests.builders import Cluster, group, join, register

APP = JobId("app")


class StatefulStory:
    """The world of one stateful job; `version` counts its submissions."""

    def __init__(
        self, *, count: int = 3, nodes: int = 4, paced: bool = True, **fields: Any
    ) -> None:
        self.world = Cluster()
        self.version = 0
        self.fields = {
            "stateful": True,
            "disconnect": Disconnect(replace=False),
            "migrate": MigratePolicy(),
            "update": UpdatePolicy(max_parallel=1) if paced else None,
            "distinct_hosts": "group",
            **fields,
        }
        for at in range(nodes):
            self.world.do(join(f"n{at}"))
        self.submit(count=count)

    def submit(self, *, count: int, digest: str = "d0", **fields: Any) -> None:
        """Submit a version, and schedule it."""
        spec = group(count=count, digest=digest, **(self.fields | fields))
        command = register("app", spec, submission_id=f"v{self.version}", salt=self.version)
        self.version += 1
        self.world.do(command)
        self.settle()

    def settle(self) -> None:
        """Decide what is pending of the job."""
        table = self.world.state.evaluations
        for _ in range(20):
            keys = [
                key
                for key in table.open_of.get(APP, {})
                if table.by_key[key].status == "pending"
                and table.by_key[key].wait_until_ns <= self.world.state.t_ns
            ]
            if not keys:
                return
            self.world.do(self.world.plan(key=keys[0]))
        raise AssertionError("evaluations without an end")

    # ---- what is ----

    def row(self, index: int) -> int:
        """The newest row of an index that has not ended."""
        table = self.world.state.allocations
        rows = [row for row in self.live() if table.index[row] == index]
        assert rows, f"no instance of index {index}"
        return max(rows, key=lambda row: int(table.key[row]))

    def live(self) -> list[int]:
        """Rows that have not ended, wanted or not."""
        table = self.world.state.allocations
        rows = table.rows_of(APP)
        return [int(row) for row in rows if not TERMINAL[table.client[row]]]

    @property
    def wanted(self) -> list[int]:
        """Indexes that are to run, sorted."""
        table = self.world.state.allocations
        return sorted(int(table.index[row]) for row in self.live() if table.desired[row] == RUN)

    @property
    def stopping(self) -> list[int]:
        """Indexes that are to end and have not, sorted."""
        table = self.world.state.allocations
        return sorted(int(table.index[row]) for row in self.live() if table.desired[row] != RUN)

    def digest(self, index: int) -> str:
        """The text that an index runs."""
        table = self.world.state.allocations
        return table.groups.digests[int(table.group[self.row(index)])]

    def node(self, index: int) -> str:
        """Where an index runs."""
        table, fleet = self.world.state.allocations, self.world.state.fleet
        return str(fleet.ids[int(table.node[self.row(index)])])

    def wait(self) -> Waiting | None:
        """Why some of the group wait; None: none do."""
        evaluations = self.world.state.evaluations
        key = evaluations.blocked_of.get(APP)
        blocked = evaluations.by_key[key].blocked if key is not None else None
        return None if blocked is None else blocked.waiting["web"]

    # ---- what nodes and operators say ----

    def say(self, index: int, status: str, *, health: int = 0) -> list[Event]:
        """The node of an index reports it."""
        world, row = self.world, self.row(index)
        fleet, node = world.state.fleet, self.node(index)
        at = fleet.row_of[NodeId(node)]
        entry = AllocReport(
            key=int(world.state.allocations.key[row]), row=row, status=status, health=health
        )
        report = ReportNode(
            node_id=NodeId(node),
            host_id=fleet.host_ids[at],
            boot_id=fleet.boot_ids[at],
            number=int(fleet.reports_seen[at]) + 1,
            states=(entry,),
        )
        out = world.do(report)
        self.settle()
        return out

    def healthy(self, *indexes: int) -> None:
        """These run, and are healthy."""
        for index in indexes:
            self.say(index, "running", health=HEALTHY)

    def end(self, index: int) -> None:
        """An instance ends of its stop."""
        self.say(index, "complete")

    def silence(self, node: str, status: str = "down") -> None:
        """The heartbeat monitor says that a node is silent, or is there again."""
        seq = self.world.state.seq
        self.world.do(ChangeLiveness(node_ids=(NodeId(node),), status=status, seen_seq=seq))
        self.settle()

    def confirm_dead(self, node: str) -> list[Event]:
        """An operator says that a node is dead."""
        out = self.world.do(ConfirmDeath(request_id="dead", node_id=node))
        self.settle()
        return out


def grown(count: int = 3, **fields: Any) -> StatefulStory:
    """A story whose instances are all healthy."""
    story = StatefulStory(count=count, **fields)
    story.healthy(*range(count))
    assert story.wanted == list(range(count))
    return story
