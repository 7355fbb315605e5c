"""A cluster whose jobs are submitted together, scheduled by the real scheduler, and reported on by hand."""

from typing import Any

from schemas.base import Event, JobId
from schemas.jobs import GroupSpec, JobRegistered, RegisterJob, UpdatePolicy
from schemas.nodes import AllocReport
from schemas.rollouts import FailRollout, PromoteRollout, RegisterJobs
from shared.core.state.tables.rollouts import RolloutRecord
from tests.builders import Cluster, group, join, register


def paced(digest: str = "d1", *, count: int = 2, **update: Any) -> GroupSpec:
    """A group with an update block."""
    return group(
        "web", count=count, digest=digest, update=UpdatePolicy(**({"max_parallel": 1} | update))
    )


class JointCluster(Cluster):
    """One roomy node."""

    def __init__(self) -> None:
        super().__init__()
        self.do(join("n1", cpu_mhz=100_000, memory_mib=100_000))
        self.salt = 0

    @property
    def rollout(self) -> RolloutRecord:
        """The newest."""
        return list(self.state.rollouts.by_key.values())[-1]

    def job(self, job_id: str, *groups: GroupSpec, **fields: Any) -> RegisterJob:
        """A new text of a job."""
        self.salt += 1
        fields = {"salt": self.salt, "submission_id": f"s{self.salt}"} | fields
        return register(job_id, *groups, **fields)

    def submit(self, *jobs: RegisterJob, **fields: Any) -> list[Event]:
        """Submit jobs together."""
        self.salt += 1
        base: dict[str, Any] = {"submission_id": f"t{self.salt}", "digest": "x", "rollout": "r"}
        return self.do(RegisterJobs(jobs=jobs, **(base | fields)))

    def schedule_all(self) -> None:
        """Decide every pending evaluation that is due, until none is left."""
        table = self.state.evaluations
        while True:
            due = [
                table.by_key[key]
                for keys in table.open_of.values()
                for key in keys
                if table.by_key[key].status == "pending"
            ]
            if not due:
                return
            self.now_ns = max(self.now_ns, *(one.wait_until_ns for one in due))
            self.state.begin(self.state.seq + 1, self.now_ns)
            self.schedule(due[0].job_id)

    def report_new(self, *broken: str) -> int:
        """Report every allocation that should run and has no health: unhealthy of broken jobs, else healthy."""
        table = self.state.allocations
        states = []
        for job_id in self.state.jobs.by_id:
            for row in self.rows(job_id):
                if table.health[row]:
                    continue
                health = 2 if job_id in broken else 1
                states.append(
                    AllocReport(key=int(table.key[row]), row=row, status="running", health=health)
                )
        if states:
            self.report("n1", states=tuple(states))
        return len(states)

    def settle(self, *broken: str, steps: int = 50) -> None:
        """Schedule and report until nothing changes, or so many times."""
        for _ in range(steps):
            self.schedule_all()
            self.check()
            if not self.report_new(*broken):
                return

    def bring_up(self, *job_ids: str, **update: Any) -> None:
        """Register jobs alone and bring each up as version 0."""
        for job_id in job_ids:
            self.do(self.job(job_id, paced("d1", **update)))
        self.settle()

    def text(self, job_id: str, version: int = -1) -> bytes:
        """Text of a version of a job; -1: of the newest."""
        job = self.state.jobs.by_id[JobId(job_id)]
        found = self.state.jobs.spec(job.id, job.version if version < 0 else version)
        assert found is not None
        return found

    def versions(self, *job_ids: str) -> list[int]:
        """Newest versions."""
        return [self.state.jobs.by_id[JobId(one)].version for one in job_ids]

    def running(self, job_id: str) -> list[str]:
        """Digests of what should run of a job."""
        groups = self.state.allocations.groups
        return [groups.digests[int(self.state.allocations.group[row])] for row in self.rows(job_id)]

    def fail(self) -> list[Event]:
        """Have an operator fail the newest rollout."""
        return self.do(FailRollout(request_id="r1", rollout_key=self.rollout.key))

    def promote(self) -> list[Event]:
        """Have an operator promote the newest rollout."""
        return self.do(PromoteRollout(request_id="r1", rollout_key=self.rollout.key))


def registered(events: list[Event]) -> list[str]:
    """Jobs that were registered, in order."""
    return [one.job_id for one in events if isinstance(one, JobRegistered)]
