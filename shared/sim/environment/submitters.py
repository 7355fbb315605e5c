"""Scripted submitters: each owns one job and changes it through either API, with retries under the same id.

One request at a time: the next one begins after the verdict of the last.
"""

from collections.abc import Callable

import msgspec

from schemas.jobs import SERVICE_JOB_TYPES, Verdict
from shared.protocol import subjects
from shared.sim.environment.gauge_publisher import BOUND, GAUGE
from shared.sim.environment.pool_model import task_resources
from shared.sim.environment.simulated_process import SimulationContext
from shared.sim.oracle.lifecycle_checks import BESIDE, add_lifecycle_tasks
from shared.sim.virtual_time import MS, SECOND, RandomDraws

_RETRY_NS = 900 * MS
#: Verbs after which the job must be as the request says.
_PROMISES = frozenset({"submit", "stop", "revert", "scale", "start"})
_VERDICT = msgspec.json.Decoder(Verdict)
#: By count in turn: no rule, one allocation a node, two a node.
_DISTINCT: tuple[list[dict[str, str]], ...] = (
    [],
    [{"Operand": "distinct_hosts"}],
    [{"Operand": "distinct_property", "LTarget": "${node.unique.name}", "RTarget": "2"}],
)


#: Name of the volume that each node has, in worlds with claims.
VOLUME = "data"
#: Name of the driver whose tasks run elsewhere, in worlds with remote tasks.
REMOTE = "cloud"


class SubmittedJob(msgspec.Struct, frozen=True, kw_only=True):
    """The desired form of a job. `run_ms` 0: until it is stopped."""

    job_id: str
    job_type: str
    count: int
    cpu_mhz: int
    run_ms: int = 0
    #: changes the spec, so that running allocations must be replaced.
    edition: int = 0
    #: CPU, the dominant resource.
    memory_mib: int = 64
    priority: int = 50
    #: index of its pool resources (pool_model.py); None: none.
    extras: int | None = None
    #: has a task of every hook beside the main one.
    has_lifecycle: bool = False
    #: `lost_after` of its disconnect block; None: no such block.
    lost_after_ms: int | None = None
    replace: bool = True
    strategy: str = "best_score"
    #: cron specs: a periodic job.
    crons: tuple[str, ...] = ()
    prohibits_overlap: bool = False
    #: meta that each dispatch of it must have: a parameterized job.
    dispatched_with: tuple[str, ...] = ()
    #: of its deployments, which revert to a stable version and promote this many canaries themselves; -1: as below.
    canaries: int = -1
    #: its deployments wait for the gauge of the world.
    has_gate: bool = False
    #: its allocations are to go where the data of their predecessors is.
    is_sticky: bool = False
    #: its distinct rule follows from its count, so that rules come and go with versions that restart nothing.
    has_distinct: bool = False
    #: its indexes claim volumes.
    has_claims: bool = False
    #: name of a volume that its group writes to; empty: none.
    volume: str = ""
    #: of its templates, which change while it runs.
    change_modes: tuple[str, ...] = ()
    #: ordered, one instance of an index.
    is_stateful: bool = False
    #: its group has a network of its own.
    is_bridged: bool = False
    #: its tasks run elsewhere.
    is_remote: bool = False

    def body(self, submission_id: str, index: int = 0) -> bytes:
        """Encode the submission in Nomad's JSON; with `index`, it requires that modify index."""
        task = {
            "Name": "main",
            "Driver": REMOTE if self.is_remote else "raw_exec",
            "Config": {"command": "/bin/simulated", "args": [str(self.run_ms)]},
            "Env": {"EDITION": str(self.edition)},
            "Resources": self._resources(),
            "KillTimeout": SECOND,
            "LogConfig": {"MaxFiles": 1, "MaxFileSizeMB": 1},
            **self._templates(),
        }
        group = {
            "Name": "web",
            "Count": self.count,
            "Tasks": [task, {**task, "Name": BESIDE}] if self.is_remote else [task],
            "EphemeralDisk": {"SizeMB": 10, **({"Sticky": True} if self.is_sticky else {})},
            "RestartPolicy": {
                "Attempts": 0 if self.is_remote else 1,
                "Interval": 10 * SECOND,
                "Delay": SECOND // 5,
                "Mode": "fail",
            },
            **self._policies(),
        }
        if self.is_stateful:
            group["Stateful"] = True
        if self.dispatched_with:
            task["DispatchPayload"] = {"File": "in/lot"}
        if self.has_claims:
            volume = {"Type": "host", "Source": VOLUME, "ReadOnly": True, "Sticky": True}
            group["Volumes"] = {"v": {"Name": "v", **volume}}
        if self.volume:
            group["Volumes"] = {"v": {"Name": "v", "Type": "host", "Source": self.volume}}
        if self.has_distinct:
            group["Constraints"] = _DISTINCT[self.count % len(_DISTINCT)]
        if self.is_bridged:
            ports = [{"Label": "in", "To": 80}]
            group["Networks"] = [{"Mode": "bridge", "DynamicPorts": ports}]
        if self.has_lifecycle:
            group = add_lifecycle_tasks(group)
        job: dict[str, object] = {
            "ID": self.job_id,
            "Name": self.job_id,
            "Type": self.job_type,
            "Priority": self.priority,
            "Datacenters": ["*"],
            "TaskGroups": [group],
        }
        if self.has_gate:
            gate = {"Name": "load", "Gauge": GAUGE, "Below": BOUND, "For": 500 * MS}
            job["Update"] = {"Gates": [gate]}
        if self.crons:
            job["Periodic"] = {"Specs": self.crons, "ProhibitOverlap": self.prohibits_overlap}
        if self.dispatched_with:
            job["ParameterizedJob"] = {"Payload": "optional", "MetaRequired": self.dispatched_with}
        fence = {"EnforceIndex": True, "JobModifyIndex": index} if index else {}
        return msgspec.json.encode({"Job": job, "SubmissionID": submission_id, **fence})

    def _templates(self) -> dict[str, object]:
        found = [
            {
                "SourcePath": f"local/{at}.tpl",
                "DestPath": f"local/{at}",
                "ChangeMode": mode,
                "Splay": 2 * SECOND,
                **({"ChangeSignal": "SIGHUP"} if mode == "signal" else {}),
                **({"ChangeScript": {"Command": "/bin/x"}} if mode == "script" else {}),
            }
            for at, mode in enumerate(self.change_modes)
        ]
        return {"Templates": found} if found else {}

    def _resources(self) -> dict[str, object]:
        found = {} if self.extras is None else task_resources(self.extras)
        # Reserved cores include their MHz.
        share = {} if "Cores" in found else {"CPU": self.cpu_mhz}
        return {**share, "MemoryMB": self.memory_mib, **found}

    def _policies(self) -> dict[str, object]:
        """Reschedule, disconnect, update and migrate blocks of the group."""
        found: dict[str, object] = {}
        if self.canaries >= 0:
            found["Update"] = {
                "MaxParallel": 1 if self.is_stateful else 1 + self.edition % 3,
                "HealthCheck": "task_states",
                "MinHealthyTime": 300 * MS,
                "HealthyDeadline": 4 * SECOND,
                "ProgressDeadline": 9 * SECOND,
                "Canary": self.canaries,
                "AutoPromote": self.canaries > 0,
                "AutoRevert": True,
            }
        elif self.job_type in SERVICE_JOB_TYPES:
            found["Update"] = {
                "MaxParallel": 1 + self.edition % 3,
                "MinHealthyTime": SECOND,
                "HealthyDeadline": 20 * SECOND,
                "ProgressDeadline": 60 * SECOND,
            }
        if self.job_type == "service":
            found["Migrate"] = {
                "MaxParallel": 1 if self.is_stateful else 1 + self.edition % 2,
                "MinHealthyTime": SECOND,
                "HealthyDeadline": 20 * SECOND,
            }
        if self.job_type in {"service", "batch"}:
            found["ReschedulePolicy"] = {
                "Unlimited": True,
                "Attempts": 0,
                "Delay": 5 * SECOND,
                "MaxDelay": 5 * SECOND,
                "DelayFunction": "constant",
            }
        if self.lost_after_ms is not None:
            found["Disconnect"] = {
                "LostAfter": self.lost_after_ms * MS,
                "Replace": self.replace,
                "Reconcile": self.strategy,
            }
        return found


class SubmitRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `shape`: of a submission; None: a stop or an evaluation."""

    verb: str
    body: bytes
    submission_id: str
    by_box: bool
    shape: SubmittedJob | None = None
    #: reuses an id with other content: must be refused.
    is_conflict: bool = False


class Submitter:
    """Owner of one job. `promised`: its last accepted request, which must hold at the end."""

    #: the longest time between a verdict and the next request.
    pause_max_ns = 4 * SECOND

    def __init__(
        self,
        context: SimulationContext,
        draws: RandomDraws,
        first: SubmittedJob,
        counts: tuple[int, int] = (1, 6),
    ) -> None:
        self.context = context
        self.shape = first
        self.promised: SubmitRequest | None = None
        self.accepted: list[SubmitRequest] = []
        self.is_closing = False
        self.is_idle = False
        #: called with every final verdict; returns the status of a drop-box submission.
        self.on_verdict: Callable[[SubmitRequest, Verdict], None] | None = None
        self.status_of_submission: Callable[[str], str] | None = None
        self._draws = draws
        self._counts = counts
        self._number = 0
        self._stops_last = False
        #: modify index of the job by the last verdict.
        self._index = 0
        self._open: SubmitRequest | None = None

    def begin(self, after_ns: int) -> None:
        """Submit the job for the first time."""
        self.context.loop.after(after_ns, self._next)

    def close(self, *, stop: bool) -> None:
        """Make no new requests; with `stop`, stop the job last."""
        self.is_closing = True
        self._stops_last = stop

    # ---- the script ----

    def _next(self) -> None:
        if self._open is not None:
            return
        if not self.is_closing or not self._number:
            self._ask(self._wish())
        elif self._stops_last:
            self._stops_last = False
            self._ask(self._stop_wish())
        else:
            self.is_idle = True

    def _wish(self) -> SubmitRequest:
        what = self._draws.below(100)
        shape = self.shape
        if self._number == 0 or what < 12:
            return self._submit(shape)
        if what < 52:
            count = self._draws.between(*self._counts)
            return self._submit(msgspec.structs.replace(shape, count=count))
        if what < 68:
            return self._submit(msgspec.structs.replace(shape, edition=shape.edition + 1))
        if what < 78 and self.accepted and self.accepted[-1].shape is not None:
            return self._conflict(self.accepted[-1])
        if what < 86:
            return self._named("evaluate")
        return self._stop_wish()

    def _submit(self, shape: SubmittedJob) -> SubmitRequest:
        self.shape = shape
        name = self._fresh()
        # Only this submitter changes the job: its index is that of the last verdict.
        index = self._index if self._draws.hit(300) else 0
        body = shape.body(name, index)
        by_box = self._draws.hit(350)
        return SubmitRequest(
            verb="submit", body=body, submission_id=name, by_box=by_box, shape=shape
        )

    def _conflict(self, old: SubmitRequest) -> SubmitRequest:
        assert old.shape is not None
        other = msgspec.structs.replace(old.shape, count=old.shape.count + 1)
        body = other.body(old.submission_id)
        return SubmitRequest(
            verb="submit",
            body=body,
            submission_id=old.submission_id,
            by_box=False,
            shape=other,
            is_conflict=True,
        )

    def _stop_wish(self) -> SubmitRequest:
        return self._named("stop", purges=self._draws.hit(300))

    def _named(self, verb: str, *, purges: bool = False) -> SubmitRequest:
        name = self._fresh()
        more = {"Purge": True} if purges else {}
        body = msgspec.json.encode({"JobID": self.shape.job_id, "SubmissionID": name, **more})
        return SubmitRequest(verb=verb, body=body, submission_id=name, by_box=self._draws.hit(350))

    def _fresh(self) -> str:
        self._number += 1
        return f"{self.shape.job_id}-{self._number}"

    # ---- asking ----

    def _ask(self, request: SubmitRequest) -> None:
        self._open = request
        self._try(request)

    def _try(self, request: SubmitRequest) -> None:
        if self._open is not request:
            return
        context = self.context
        if request.by_box:
            for delay in context.message_faults.hop_delays():
                context.loop.after(delay, self._drop, request)
        else:
            subject = subjects.api_jobs(request.verb)
            for delay in context.message_faults.hop_delays():
                context.loop.after(
                    delay, context.bus.publish, subject, request.body, self._answer(request)
                )
        context.loop.after(_RETRY_NS, self._try, request)

    def _drop(self, request: SubmitRequest) -> None:
        kept = self.context.bus.store_job(
            subjects.jobs(request.verb), request.body, request.submission_id
        )
        if kept and self._open is request:
            self._watch(request)

    def _watch(self, request: SubmitRequest) -> None:
        """Wait for the verdict of a drop-box submission, as a reader of `view.submission.<id>`."""
        assert self.status_of_submission is not None
        status = self.status_of_submission(request.submission_id)
        if self._open is request and status:
            self._finish(request, Verdict(submission_id=request.submission_id, status=status))
        elif self._open is request:
            self.context.loop.after(300 * MS, self._watch, request)

    def _answer(self, request: SubmitRequest) -> Callable[[bytes], None]:
        def answered(data: bytes) -> None:
            verdict = _VERDICT.decode(data)
            if self._open is request and verdict.status != "pending":
                self._finish(request, verdict)

        return answered

    def _finish(self, request: SubmitRequest, verdict: Verdict) -> None:
        self._open = None
        if self.on_verdict is not None:
            self.on_verdict(request, verdict)
        if verdict.status == "accepted":
            self.accepted.append(request)
            is_live = request.shape is not None and request.shape.job_type in SERVICE_JOB_TYPES
            self._index = verdict.modify_index if is_live else 0
            if request.verb in _PROMISES:
                self.promised = request
        pause = self._draws.between(200 * MS, self.pause_max_ns)
        self.context.loop.after(pause, self._next)
