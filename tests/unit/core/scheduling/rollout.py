"""A job with versions and a deployment, for tests of what one pass of the scheduler does."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from schemas.allocations import AllocationsReported
from schemas.base import DeploymentKey, JobId
from schemas.deployments import (
    DeploymentEnded,
    DeploymentGroup,
    DeploymentHeld,
    DeploymentPaused,
    DeploymentPromoted,
    DeploymentStarted,
)
from schemas.evaluations import EvaluationsCreated, NewEvaluation
from schemas.jobs import GroupSpec, UpdatePolicy
from schemas.plans import PlanCommitted
from shared.core.decide.deployments.requests import health_changed
from shared.core.state.tables.allocations import FAILED, RUNNING
from shared.core.state.tables.deployments import Deployment
from tests.builders import Cluster, group, join, register

#: The updates of Nomad's own scenarios.
A = UpdatePolicy(max_parallel=4)
B = UpdatePolicy(max_parallel=2, canary=2)


class Pass(NamedTuple):
    """What one pass did, by names of allocations."""

    #: names by reason.
    stopped: dict[str, list[int]]
    #: version, name and whether it is a canary.
    placed: list[tuple[int, int, bool]]
    updated: list[int]
    #: names of the allocations that the new ones replace, -1: none.
    replaced: list[int]

    @property
    def names(self) -> list[int]:
        """Names placed."""
        return [name for _, name, _ in self.placed]


class Rollout:
    """One job on a cluster with room for everything."""

    def __init__(self, *, nodes: int = 12, job_type: str = "service", **fields: Any) -> None:
        self.world = Cluster()
        self.job_type = job_type
        self.fields = fields
        for at in range(nodes):
            self.world.do(join(f"n{at:02}", cpu_mhz=4_000, memory_mib=4_000))

    @property
    def table(self) -> Any:
        """The allocations."""
        return self.world.state.allocations

    @property
    def deployment(self) -> Deployment:
        """The newest deployment of the job."""
        found = self.world.state.deployments.latest_of(JobId("app"))
        assert found is not None
        return found

    def register(
        self, digest: str, *, count: int = 10, update: UpdatePolicy | None = A, **fields: Any
    ) -> None:
        """Register a version with one group."""
        self.register_groups(group(digest=digest, count=count, update=update, **fields))

    def register_groups(self, *groups: GroupSpec) -> None:
        """Register a version, with a deployment where a group has an update policy."""
        jobs = self.world.state.jobs
        before = jobs.by_id.get(JobId("app"))
        nth = 0 if before is None else before.version + 1
        self.world.do(
            register(
                "app",
                *groups,
                salt=nth,
                submission_id=f"s{nth}",
                job_type=self.job_type,
                **self.fields,
            )
        )
        self._start(nth, groups)

    def _start(self, version: int, groups: Sequence[GroupSpec]) -> None:
        """Start the deployment of a version, unless the applier did."""
        deployments = self.world.state.deployments
        latest = deployments.latest_of(JobId("app"))
        paced = [one for one in groups if one.update is not None and one.update.max_parallel]
        if not paced or (latest is not None and latest.version == version):
            return
        active = deployments.active_of(JobId("app"))
        if active is not None:
            self.end("cancelled")
        parts = []
        for one in paced:
            update = one.update
            assert update is not None
            old = {self.table.groups.digests[ref] for ref in self.table.group[self.rows()].tolist()}
            canaries = update.canary if old - {one.digest} else 0
            part = DeploymentGroup(
                name=one.name,
                desired_total=one.count,
                desired_canaries=canaries,
                max_parallel=update.max_parallel,
            )
            parts.append(part)
        key = DeploymentKey(1_000 + version)
        self.world.apply(
            DeploymentStarted(key=key, job_id=JobId("app"), version=version, groups=tuple(parts))
        )

    def end(self, status: str) -> None:
        """End the active deployment."""
        one = self.deployment
        self.world.apply(
            DeploymentEnded(
                key=one.key, job_id=one.job_id, version=one.version, status=status, cause="operator"
            )
        )

    def pause(self) -> None:
        """Pause the deployment."""
        self.world.apply(DeploymentPaused(key=self.deployment.key))

    def hold(self) -> None:
        """Hold the deployment."""
        held = DeploymentHeld(key=self.deployment.key, cause="gate", reason="closed", since_ns=1)
        self.world.apply(held)

    def wait(self, status: str) -> None:
        """Have the deployment paused, held or failed."""
        {"paused": self.pause, "held": self.hold, "failed": lambda: self.end("failed")}[status]()

    def promote(self, *names: str) -> None:
        """Promote groups, all by default."""
        names = names or tuple(one.name for one in self.deployment.groups)
        rows = [
            row for row in self.rows() if self.table.canary[row] and self.group_of(row) in names
        ]
        self.world.apply(
            DeploymentPromoted(key=self.deployment.key, groups=names, rows=tuple(rows))
        )

    def group_of(self, row: int) -> str:
        """Name of a row's group."""
        name: str = self.table.groups.names[self.table.group[row]]
        return name

    def old(self, count: int = 10, **fields: Any) -> None:
        """Have `count` healthy allocations of a first version, whose deployment succeeded."""
        self.register("old", count=count, **fields)
        self.look()
        self.say(1, self.rows())
        if self.world.state.deployments.active_of(JobId("app")) is not None:
            self.end("successful")

    def rows(self, version: int | None = None) -> list[int]:
        """Rows that are to run and did not end, of one version or all."""
        groups = self.table.groups
        return [
            row
            for row in self.world.rows()
            if version is None or groups.versions[self.table.group[row]] == version
        ]

    def names(self, version: int | None = None) -> list[int]:
        """Their names, sorted."""
        return sorted(self.table.index[self.rows(version)].tolist())

    def say(self, health: int, rows: Iterable[int]) -> None:
        """Have rows run, with this health."""
        rows = tuple(rows)
        running = AllocationsReported(rows=rows, statuses=(RUNNING,) * len(rows))
        if not health:
            self.world.apply(running)
            return
        codes = np.full(len(rows), health, dtype=np.int8)
        at = np.asarray(rows, dtype=np.int32)
        said = health_changed(self.world.state, at, codes, self.world.now_ns, source="operator")
        self.world.apply(running, said)

    def fail(self, rows: Iterable[int], *, due: bool = True) -> None:
        """Have rows fail, to be rescheduled now or never."""
        rows = tuple(rows)
        self.world.apply(AllocationsReported(rows=rows, statuses=(FAILED,) * len(rows)))
        if due:
            for row in rows:
                self.table.reschedule_at_ns[row] = 1

    def look(self) -> Pass:
        """One pass of the scheduler."""
        job = self.world.state.jobs.by_id[JobId("app")]
        keys = self.world.state.evaluations.open_of.get(job.id, {})
        by_key = self.world.state.evaluations.by_key
        if not any(by_key[key].status == "pending" for key in keys):
            new = NewEvaluation(
                job_id=job.id, priority=50, job_type=job.job_type, triggered_by="node-update"
            )
            self.world.apply(EvaluationsCreated(evaluations=(new,)))
        before = set(self.table.rows_of(job.id).tolist())
        events = self.world.schedule("app")
        done = next(event for event in events if isinstance(event, PlanCommitted))
        stopped: dict[str, list[int]] = {}
        for stop in done.stops:
            stopped.setdefault(stop.reason, []).extend(self.table.index[list(stop.rows)].tolist())
        new_rows = [row for row in self.table.rows_of(job.id).tolist() if row not in before]
        groups = self.table.groups
        placed = sorted(
            (
                groups.versions[self.table.group[row]],
                int(self.table.index[row]),
                bool(self.table.canary[row]),
            )
            for row in new_rows
        )
        name_of = {int(self.table.key[row]): int(self.table.index[row]) for row in before}
        replaced = [name_of.get(self.table.previous.get(row, 0), -1) for row in new_rows]
        updated = [row for one in done.updates for row in one.rows]
        return Pass(
            {reason: sorted(names) for reason, names in stopped.items()},
            placed,
            sorted(self.table.index[updated].tolist()),
            sorted(replaced),
        )
