"""Checks of versions: what a revert, a scaling and a start make of a job, and that what has a tag is kept.

Reads the log alone, and shares no code with the tables.
"""

from collections.abc import Callable

from msgspec.structs import replace

from schemas import jobs
from schemas.jobs import GroupSpec
from shared.sim.environment.version_submitter import ASKED
from shared.sim.oracle.invariants import InvariantChecks

_RULE = "version_by_rule"
Groups = tuple[GroupSpec, ...]


class _KnownJob:
    """One job: groups by version, names by version, and whether it is to run or to be forgotten."""

    def __init__(self) -> None:
        self.groups: dict[int, Groups] = {}
        self.tags: dict[int, str] = {}
        self.newest = -1
        self.is_stopped = self.is_purged = False


class VersionChecks:
    """What the versions of all jobs must keep to. `is_updating`: whether a job has an active deployment."""

    def __init__(self, ledger: InvariantChecks, is_updating: Callable[[str], bool]) -> None:
        self._ledger = ledger
        self._is_updating = is_updating
        self._jobs: dict[str, _KnownJob] = {}
        #: what operators said of versions: seq, job, version and name; a job that is forgotten says that of -1.
        self._said: list[tuple[int, str, int, str]] = []

    def tags_of(self, job_id: str) -> dict[int, str]:
        """Return the names of a job's versions."""
        job = self._jobs.get(job_id)
        return {} if job is None else job.tags

    def had_tag(self, job_id: str, version: int, name: str, seq: int) -> bool:
        """Tell whether a version had a name in the record at `seq`, or behind it; "": none.

        What a record names it may also forget, with its job.
        """
        found = [""]
        for at, of, which, said in self._said:
            if at <= seq and of == job_id and which in {version, -1}:
                found = [*found, said] if at == seq else [said]
        return name in found

    def apply(self, event: object, seq: int) -> None:
        """Check one event, before it is applied elsewhere. Raises InvariantBroken."""
        match event:
            case jobs.JobRegistered():
                self._register(event)
            case jobs.JobStopped():
                job = self._jobs[event.job_id]
                job.is_stopped, job.is_purged = True, event.purge
            case jobs.JobVersionTagged():
                job = self._jobs[event.job_id]
                others = [name for version, name in job.tags.items() if version != event.version]
                is_free = not event.name or event.name not in others
                self._ledger.hold(_RULE, is_free, "a name twice", event)
                job.tags.pop(event.version, None)
                if event.name:
                    job.tags[event.version] = event.name
                self._said.append((seq, event.job_id, event.version, event.name))
            case jobs.JobsCollected():
                for job_id in event.job_ids:
                    gone = self._jobs.pop(job_id)
                    fine = gone.is_purged or not gone.tags
                    self._ledger.hold(_RULE, fine, job_id, "is gone, it has names", gone.tags)
                    self._said.append((seq, job_id, -1, ""))
            case _:
                pass

    def _register(self, event: jobs.JobRegistered) -> None:
        job = self._jobs.setdefault(event.job_id, _KnownJob())
        asked = ASKED.search(event.submission_id)
        if asked is not None:
            self._judge(job, event, asked[1], int(asked[2] or -1))
        job.groups[event.version] = event.groups
        job.newest = event.version
        job.is_stopped, job.is_purged = event.stopped, False

    def _judge(self, job: _KnownJob, event: jobs.JobRegistered, verb: str, number: int) -> None:
        """Check the groups of a next version against those of the version that it is made of."""
        before = job.groups.get(job.newest, ())
        wanted, fine = before, not event.stopped
        match verb:
            case "revert":
                wanted = job.groups.get(number, ())
                fine = fine and number != job.newest
            case "scale":
                wanted = tuple([replace(one, count=number) for one in before])
                fine = fine and not job.is_stopped and not self._is_updating(event.job_id)
            case _:
                fine = fine and job.is_stopped
        self._ledger.hold(_RULE, fine, "refused by rule", event.submission_id)
        same = event.groups == wanted
        self._ledger.hold(_RULE, same, event.submission_id, event.groups, "is not", wanted)
