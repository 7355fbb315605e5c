"""Task profiles of job versions: each version is queried once, for the whole fleet.

The leader task of a group, else its first main task, determines the profile of its allocations.
"""

import msgspec
import numpy as np
import structlog

from schemas.envelope import ENCODER
from schemas.job_answers import JobVersionAnswer
from schemas.projections import GroupRef, Query
from services.agent.tasks.resolved_group import ResolvedGroup, ResolvedTask, resolve_group
from shared.core.columns import Rows
from shared.core.runtime.messages import Ask
from shared.errors import CommandInvalid, ConfigInvalid
from shared.fleet.distributions import fixed
from shared.fleet.profile import NodeProfile, RestartRule, TaskProfile
from shared.fleet.simulated_allocs import NO_HEALTH_NS, HealthRules, SimulatedAllocs
from shared.protocol import subjects

JOB_VERSION_DECODER = msgspec.json.Decoder(JobVersionAnswer)
#: Of an invalid job: it fails at once.
_BROKEN = TaskProfile(fixed(0), 1 << 53, fixed(0), 1 << 53, fixed(0))


class _JobTypeField(msgspec.Struct):
    """The job's type, which the resolved group does not hold."""

    job_type: str = msgspec.field(name="Type", default="service")


class GroupTaskProfiles:
    """Task profiles by group, and pending queries for job versions."""

    def __init__(self, node_profile: NodeProfile, lives: SimulatedAllocs) -> None:
        self._node_profile = node_profile
        self._lives = lives
        #: number of a group, by its JSON as projections have it.
        self._numbers: dict[bytes, int] = {}
        #: by number: task profile, version of the job, min_healthy_time.
        self._task_profiles: list[int] = []
        self._versions: list[int] = []
        self._min_healthy: list[int] = []
        self._texts: dict[str, bytes] = {}
        #: pending queries, with the lowest seq of a valid answer.
        self.asked: dict[str, int] = {}
        self.asks: list[Ask] = []

    def numbers(self, labels: list[bytes]) -> list[int]:
        """Numbers of groups; -1: not known yet. `labels`: JSON of GroupRefs."""
        known = self._numbers
        return [known.get(label, -1) for label in labels]

    def rules(self, numbers: Rows) -> tuple[Rows, HealthRules]:
        """Task profiles of groups by number, and what decides their health. Shapes: (K,)."""
        versions = np.array(self._versions, dtype=np.int32)[numbers]
        min_healthy = np.array(self._min_healthy, dtype=np.int64)[numbers]
        task_profiles = np.array(self._task_profiles, dtype=np.int32)[numbers]
        return task_profiles, HealthRules(versions, min_healthy)

    def learn(self, label: bytes, seq: int) -> None:
        """Register a group's profile if its job version is known, else query the version."""
        if label in self._numbers:
            return
        try:
            group = msgspec.json.decode(label, type=GroupRef)
        except msgspec.MsgspecError:
            self._add(label, _BROKEN, 0, None)
            return
        name = f"{group.version} {group.job_id}"
        text = self._texts.get(name)
        if text is None:
            self._ask(name, group, seq)
        else:
            profile, plan = self._made(text, group)
            self._add(label, profile, group.version, plan)

    def _add(
        self, label: bytes, profile: TaskProfile, version: int, plan: ResolvedGroup | None
    ) -> None:
        health = plan.health if plan is not None else None
        self._numbers[label] = len(self._task_profiles)
        self._task_profiles.append(self._lives.profile_number(profile))
        self._versions.append(version)
        self._min_healthy.append(
            NO_HEALTH_NS if health is None or health.is_manual else health.min_healthy_ns
        )

    def _ask(self, name: str, group: GroupRef, seq: int) -> None:
        if name not in self.asked:
            self.asked[name] = seq
            query = Query(id=group.job_id, version=group.version, min_seq=seq)
            subject = subjects.query("job_version")
            self.asks.append(Ask(name=name, subject=subject, data=ENCODER.encode(query)))

    def take(self, name: str, data: bytes | None) -> bool:
        """Take an answer; False: it is empty or invalid, ask again."""
        self.asked.pop(name, None)
        version, _, job_id = name.partition(" ")
        try:
            found = JOB_VERSION_DECODER.decode(data or b"")
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return False
        if (found.job_id, found.version) != (job_id, int(version)):
            return False
        self._texts[name] = bytes(found.spec)
        return True

    def _made(self, text: bytes, group: GroupRef) -> tuple[TaskProfile, ResolvedGroup | None]:
        try:
            plan = resolve_group(text, group.group)
            return task_profile_of(self._node_profile, group.job_id, text, plan), plan
        except (CommandInvalid, ConfigInvalid) as err:
            structlog.get_logger().warning("job.cannot_live", job=group.job_id, reason=str(err))
            return _BROKEN, None


def task_profile_of(
    node_profile: NodeProfile, job_id: str, spec: bytes | msgspec.Raw, plan: ResolvedGroup
) -> TaskProfile:
    """Return the profile of a group's allocations. Raises ConfigInvalid: its meta is invalid."""
    job_type = msgspec.json.decode(spec, type=_JobTypeField).job_type
    task = status_task(plan)
    plan_ns = task.restart.interval_ns if task.restart.mode == "fail" else 0
    again = RestartRule(task.restart.attempts, task.restart.delay_ns, plan_ns)
    return node_profile.task_profile(job_id, job_type, task.meta, again)


def status_task(plan: ResolvedGroup) -> ResolvedTask:
    """Return the task whose end is the allocation's."""
    mains = [task for task in plan.tasks if not task.hook]
    leaders = [task for task in mains if task.leader]
    return (leaders or mains or list(plan.tasks))[0]
