"""How the tasks of job versions live: each version is asked for once, for the whole fleet.

Decides which task of a group speaks for its allocation (the leader, else the first main one), and when a question is
asked again. Must not know nodes. Next: `lean.py`.
"""

import msgspec
import structlog

from schemas.answers import JobVersionAnswer
from schemas.envelope import ENCODER
from schemas.projections import GroupRef, Query
from services.agent.spec import GroupPlan, TaskPlan, group_plan
from shared.bus import subjects
from shared.core.role import Ask
from shared.errors import CommandInvalid, ConfigInvalid
from shared.fleet.laws import fixed
from shared.fleet.lives import Lives
from shared.fleet.profile import Again, Habits, Manner

_JOB_VERSION = msgspec.json.Decoder(JobVersionAnswer)
#: Of a job that cannot be run: it fails at once.
_BROKEN = Manner(fixed(0), 1 << 53, fixed(0), 1 << 53, fixed(0))


class _Kind(msgspec.Struct):
    """What of a job's text is not in the plan of a group."""

    job_type: str = msgspec.field(name="Type", default="service")


class Jobs:
    """Manners by task group, and job versions that are asked for."""

    def __init__(self, habits: Habits, lives: Lives) -> None:
        self._habits = habits
        self._lives = lives
        #: by the group's JSON as projections have it.
        self._manners: dict[bytes, int] = {}
        self._texts: dict[str, bytes] = {}
        #: questions on their way, and when asked, of which seq on an answer counts.
        self.asked: dict[str, int] = {}
        self.asks: list[Ask] = []

    def manners(self, labels: list[bytes]) -> list[int]:
        """Numbers of groups' manners; -1: not known yet. `labels`: JSON of GroupRefs."""
        known = self._manners
        return [known.get(label, -1) for label in labels]

    def learn(self, label: bytes, seq: int) -> None:
        """Make a group's manner known if its job is, else ask for it."""
        if label in self._manners:
            return
        try:
            group = msgspec.json.decode(label, type=GroupRef)
        except msgspec.MsgspecError:
            self._manners[label] = self._lives.manner(_BROKEN)
            return
        name = f"{group.version} {group.job_id}"
        text = self._texts.get(name)
        if text is None:
            self._ask(name, group, seq)
        else:
            self._manners[label] = self._lives.manner(self._made(text, group))

    def _ask(self, name: str, group: GroupRef, seq: int) -> None:
        if name not in self.asked:
            self.asked[name] = seq
            query = Query(id=group.job_id, version=group.version, min_seq=seq)
            subject = subjects.query("job_version")
            self.asks.append(Ask(name=name, subject=subject, data=ENCODER.encode(query)))

    def take(self, name: str, data: bytes | None) -> bool:
        """Take an answer; False: it brought nothing, and is to be asked again."""
        self.asked.pop(name, None)
        version, _, job_id = name.partition(" ")
        try:
            found = _JOB_VERSION.decode(data or b"")
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return False
        if (found.job_id, found.version) != (job_id, int(version)):
            return False
        self._texts[name] = bytes(found.spec)
        return True

    def _made(self, text: bytes, group: GroupRef) -> Manner:
        try:
            plan = group_plan(text, group.group)
            kind = msgspec.json.decode(text, type=_Kind).job_type
            return manner_of(self._habits, group.job_id, kind, plan)
        except (CommandInvalid, ConfigInvalid) as err:
            structlog.get_logger().warning("job.cannot_live", job=group.job_id, reason=str(err))
            return _BROKEN


def manner_of(habits: Habits, job_id: str, job_type: str, plan: GroupPlan) -> Manner:
    """Say how allocations of a group live. Raises ConfigInvalid: its meta makes no sense."""
    task = speaker(plan)
    plan_ns = task.restart.interval_ns if task.restart.mode == "fail" else 0
    again = Again(task.restart.attempts, task.restart.delay_ns, plan_ns)
    return habits.manner(job_id, job_type, task.meta, again)


def speaker(plan: GroupPlan) -> TaskPlan:
    """Name the task whose end is the allocation's."""
    mains = [task for task in plan.tasks if not task.hook]
    leaders = [task for task in mains if task.leader]
    return (leaders or mains or list(plan.tasks))[0]
