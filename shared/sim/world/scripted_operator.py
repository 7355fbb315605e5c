"""A scripted operator: stops allocations, drains nodes and ends drains, sets node meta, and steers deployments.

In thorough worlds it also names versions of jobs, drains nodes without their system jobs, and leaves nodes closed.

Only every other world has an operator: each request evaluates jobs again, which would hide forgotten evaluations. One
request at a time, until its verdict. At the end every drain is over, except one in some worlds.
"""

from collections.abc import Callable, Mapping

import msgspec

from schemas.operator import OperatorVerdict
from shared.core.state.ids import alloc_id, deployment_id, rollout_id
from shared.protocol import subjects
from shared.sim.environment.simulated_process import SimulationContext
from shared.sim.oracle.reference_model import ReferenceModel
from shared.sim.virtual_time import MS, SECOND, RandomDraws

_RETRY_NS = 1_100 * MS
#: The most nodes drained at the same time.
_DRAINED_MAX = 2
_VERDICT = msgspec.json.Decoder(OperatorVerdict)
_TAGS = ("good", "calm")
_RACKS = ("r1", "r2", None)
#: Verbs on a deployment, and the status that shows their effect.
_STEERED = {
    "pause": "paused",
    "resume": "running",
    "fail": "failed",
    "promote": "",
    "set_health": "",
}


class OperatorRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request; `holds` checks its effect in the reference model, at the seq of the verdict or now.

    At its seq, since a copy of an earlier request, sent again while a view was silent, may have changed it since.
    """

    subject: str
    body: Mapping[str, object]
    holds: Callable[[int], bool]
    #: what the request is about, and whether the model is as it wants now; empty: it ends something for good.
    subject_of: str = ""
    stands: Callable[[], bool] = lambda: True
    #: what the operator has seen of the log; 0: not said.
    seen_seq: int = 0

    def encoded(self) -> bytes:
        """Return the body of the request; without the seq for a verb that undoes nothing."""
        seen = {"seen_seq": self.seen_seq} if self.seen_seq else {}
        return msgspec.json.encode({**self.body, **seen})


class ScriptedOperator:
    """The one operator of a world."""

    def __init__(
        self,
        context: SimulationContext,
        draws: RandomDraws,
        model: ReferenceModel,
        *,
        is_thorough: bool = False,
    ) -> None:
        self.context = context
        self.requests = 0
        self.is_idle = False
        #: called with the check of each accepted request.
        self.on_verdict: Callable[[bool, object], None] | None = None
        self._draws = draws
        self._model = model
        self._is_thorough = is_thorough
        self._drained: list[str] = []
        #: nodes whose drain is over, and which take nothing new yet.
        self._closed: list[str] = []
        self._is_closing = False
        #: one drain is never ended.
        self._leaves_one = draws.hit(400)
        self._open: OperatorRequest | None = None
        #: the newest accepted request by what it is about.
        self._newest: dict[str, OperatorRequest] = {}

    def begin(self, after_ns: int) -> None:
        """Create the first request, in a world with an operator."""
        self.is_idle = self._draws.hit(500) and not self._is_thorough
        self.context.loop.after(after_ns, self._next)

    def close(self) -> None:
        """Make no new requests, and end drains."""
        self._is_closing = True

    def overtaken(self) -> list[str]:
        """Name what is not as the newest accepted request wants: a late copy of an older one came behind it."""
        return sorted(name for name, request in self._newest.items() if not request.stands())

    # ---- requests ----

    def _next(self) -> None:
        if self._open is not None or self.is_idle:
            return
        request = self._last() if self._is_closing else self._any()
        if request is not None:
            self._open = request
            self.requests += 1
            self._try(request)
        elif self._is_closing:
            self.is_idle = True
        else:
            self.context.loop.after(500 * MS, self._next)

    def _last(self) -> OperatorRequest | None:
        keep = 1 if self._leaves_one else 0
        paused = self._deployments("paused")
        if paused:
            return self._steer("resume", paused[0])
        if self._closed:
            return self._reopen()
        return self.drain(self._drained[-1], draining=False) if len(self._drained) > keep else None

    def _any(self) -> OperatorRequest | None:
        if self._is_thorough and self._draws.hit(500):
            return self._any_thorough()
        what = self._draws.below(130)
        if what >= 100:
            return self._any_steering()
        if self._model.joint.active and what < 15:
            return self._fail_rollout()
        if what < 45:
            return self._stop()
        nodes = sorted(one.id for one in self._model.nodes.values())
        if not nodes:
            return None
        if what < 65 and len(self._drained) < _DRAINED_MAX:
            name = nodes[self._draws.below(len(nodes))]
            is_free = name not in self._drained and name not in self._closed
            return self.drain(name, draining=True) if is_free else None
        if what < 85 and self._drained:
            return self.drain(self._drained[0], draining=False)
        return self._say(nodes[self._draws.below(len(nodes))])

    def _any_thorough(self) -> OperatorRequest | None:
        """Name a version, drain a node, end its drain, or let a closed one take allocations again."""
        what = self._draws.below(100)
        if what < 40:
            return self._name()
        if self._closed and what < 60:
            return self._reopen()
        if self._drained and what < 75:
            return self.drain(self._drained[0], draining=False)
        return self._drain_one()

    def _drain_one(self) -> OperatorRequest | None:
        nodes = sorted(one.id for one in self._model.nodes.values())
        name = nodes[self._draws.below(len(nodes))] if nodes else ""
        is_taken = name in self._drained or name in self._closed
        if not name or is_taken or len(self._drained) >= _DRAINED_MAX:
            return None
        return self.drain(name, draining=True)

    def _stop(self) -> OperatorRequest | None:
        rows = sorted(row for row, one in self._model.allocs.items() if one.is_wanted)
        if not rows:
            return None
        alloc = self._model.allocs[rows[self._draws.below(len(rows))]]
        body = {"alloc_id": alloc_id(alloc.key)}
        return OperatorRequest(
            subject=subjects.api("alloc", "stop"),
            body=body,
            holds=lambda _: alloc.is_displaced or not alloc.is_wanted,
        )

    def _deployments(self, *statuses: str) -> list[int]:
        """Keys of the deployments with one of these statuses, oldest first."""
        found = self._model.rollouts.by_key.items()
        return sorted(key for key, one in found if one.status in statuses)

    def _any_steering(self) -> OperatorRequest | None:
        """Steer a deployment, now and then one that has ended: that is refused."""
        is_over = self._draws.hit(100)
        keys = self._deployments("failed", "successful") if is_over else []
        keys = keys or self._deployments("running", "paused")
        if not keys:
            return None
        verbs = tuple(_STEERED)
        verb = verbs[self._draws.below(len(verbs))]
        return self._steer(verb, keys[self._draws.below(len(keys))])

    def _steer(self, verb: str, key: int) -> OperatorRequest | None:
        """Create a request about a deployment; its effect stays in the log, whatever follows."""
        one, status = self._model.rollouts.by_key[key], _STEERED[verb]
        body: dict[str, object] = {"deployment_id": deployment_id(key)}
        if verb == "set_health":
            return self._set_health(key, body)

        def holds(_: int) -> bool:
            if verb == "promote":
                return all(not part.canaries or part.is_promoted for part in one.groups.values())
            return status in one.statuses

        return OperatorRequest(subject=subjects.api("deployment", verb), body=body, holds=holds)

    def _set_health(self, key: int, body: dict[str, object]) -> OperatorRequest | None:
        members = self._model.rollouts.members
        rows = sorted(row for row, one in members.items() if one.deployment == key)
        if not rows:
            return None
        row = rows[self._draws.below(len(rows))]
        member, name = members[row], self._draws.below(2)
        health = ("healthy", "unhealthy")[name]
        alloc = alloc_id(self._model.allocs[row].key)
        return OperatorRequest(
            subject=subjects.api("deployment", "set_health"),
            body={**body, health: [alloc]},
            holds=lambda _: member.health == 1 + name or members.get(row) is not member,
        )

    def _fail_rollout(self) -> OperatorRequest:
        """Create the request that fails the newest rollout."""
        key = max(self._model.joint.active)
        return OperatorRequest(
            subject=subjects.api("rollout", "fail"),
            body={"rollout_id": rollout_id(key)},
            holds=lambda _: key not in self._model.joint.active,
        )

    def drain(self, name: str, *, draining: bool) -> OperatorRequest:
        """Create the request that drains a node, or ends its drain."""
        # At once, soon, or never in one case of ten.
        deadline_ns = -1 if self._draws.hit(100) else self._draws.below(4) * SECOND
        body: dict[str, object] = {
            "node_id": name,
            "draining": draining,
            "deadline_ns": deadline_ns,
        }
        flag = self._is_thorough and not self._is_closing and self._draws.hit(400)
        if flag:
            body["ignore_system" if draining else "keep_ineligible"] = True
            if not draining:
                self._closed.append(name)
        stays_closed = draining or flag
        if not draining:
            self._drained.remove(name)
        elif name not in self._drained:
            self._drained.append(name)
        return OperatorRequest(
            subject=subjects.api("node", "drain"),
            body=body,
            subject_of=f"drain of {name}",
            # A complete drain leaves the node closed, as requested.
            stands=lambda: self._model.is_closed(name) == stays_closed,
            seen_seq=self._model.seq,
            holds=lambda seq: (
                self._model.is_drained(name) == draining
                or (seq, draining) in self._model.drains_of.get(name, ())
            ),
        )

    def _reopen(self) -> OperatorRequest:
        """Create the request that lets a node take new allocations again."""
        name = self._closed.pop()
        return OperatorRequest(
            subject=subjects.api("node", "set_eligibility"),
            body={"node_id": name, "eligible": True},
            subject_of=f"drain of {name}",
            stands=lambda: not self._model.is_closed(name),
            seen_seq=self._model.seq,
            holds=lambda _: not self._model.is_closed(name),
        )

    def _name(self) -> OperatorRequest | None:
        """Create the request that names a version of a job, or takes its name away; some are refused."""
        names = sorted(name for name, job in self._model.jobs.items() if job.job_type == "service")
        if not names:
            return None
        job_id = names[self._draws.below(len(names))]
        versions = self._model.versions
        tags = versions.tags_of(job_id)
        if tags and self._draws.hit(250):
            version, name = sorted(tags.items())[self._draws.below(len(tags))]
            body = {"job_id": job_id, "version": version, "name": name, "unset": True}
            wanted = ""
        else:
            version = self._draws.below(self._model.jobs[job_id].version + 1)
            wanted = _TAGS[self._draws.below(len(_TAGS))]
            body = {"job_id": job_id, "version": version, "name": wanted}
        return OperatorRequest(
            subject=subjects.api("job", "tag"),
            body=body,
            holds=lambda seq: (
                versions.had_tag(job_id, version, wanted, seq)
                or versions.had_tag(job_id, version, wanted, self._model.seq)
            ),
        )

    def _say(self, name: str) -> OperatorRequest:
        rack = _RACKS[self._draws.below(len(_RACKS))]
        body = {"node_id": name, "change": {"rack": rack}}
        return OperatorRequest(
            subject=subjects.api("node", "set_meta"),
            body=body,
            subject_of=f"meta of {name}",
            stands=lambda: self._model.meta.get(name, {}).get("rack") == rack,
            seen_seq=self._model.seq,
            holds=lambda seq: (
                self._model.meta.get(name, {}).get("rack") == rack
                or any(
                    at == seq and meta.get("rack") == rack
                    for at, meta in self._model.metas_of.get(name, ())
                )
            ),
        )

    # ---- asking ----

    def _try(self, request: OperatorRequest) -> None:
        if self._open is not request:
            return
        context = self.context
        for delay in context.message_faults.hop_delays():
            body, answer = request.encoded(), self._answer(request)
            context.loop.after(delay, context.bus.publish, request.subject, body, answer)
        context.loop.after(_RETRY_NS, self._try, request)

    def _send_late_copy(self, request: OperatorRequest) -> None:
        """Deliver a copy that a silent view held, long after the request was decided."""
        self.context.bus.publish(request.subject, request.encoded(), self._answer(request))

    def _answer(self, request: OperatorRequest) -> Callable[[bytes], None]:
        def answered(data: bytes) -> None:
            verdict = _VERDICT.decode(data)
            if self._open is not request or verdict.status == "pending":
                return
            error = verdict.error
            if error is not None and error.code == "conflict" and request.seen_seq:
                # The node changed meanwhile: look, and ask anew.
                self._open = msgspec.structs.replace(request, seen_seq=self._model.seq)
                self._try(self._open)
                return
            if verdict.status == "accepted" and self.on_verdict is not None:
                self.on_verdict(request.holds(verdict.seq), request)
            if verdict.status == "accepted" and request.subject_of:
                older = self._newest.get(request.subject_of)
                self._newest[request.subject_of] = request
                if older is not None:
                    # Of the request that this one takes back.
                    after_ns = self._draws.between(10 * MS, SECOND)
                    self.context.loop.after(after_ns, self._send_late_copy, older)
            self._open = None
            pause_max_ns = SECOND if self._is_thorough else 2 * SECOND
            self.context.loop.after(self._draws.between(200 * MS, pause_max_ns), self._next)

        return answered
