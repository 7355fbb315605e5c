"""Which code reads which event, and why the rest is ignored.

Data only. `tests/tidy/test_events.py` compares it with what the code names; `generate.py` prints it into
docs/events.md. A new event needs no line here for a reader that handles it, and one tag under a reason for each that
ignores it.
"""

from typing import NamedTuple


class EventReader(NamedTuple):
    """A file, or a folder (its path ends in a slash), that dispatches on the types of events."""

    path: str
    #: what it makes of events.
    purpose: str
    #: reason -> tags of the events that it ignores for it, separated by blanks.
    ignores: dict[str, str]

    def ignored(self) -> frozenset[str]:
        """Return the tags of every event that it ignores."""
        return frozenset(tag for tags in self.ignores.values() for tag in tags.split())


_OTHER = "changes nothing in this table"
_CLEAN = "cleanup of what has ended already"
#: The child comes as job.registered, its evaluation as evaluations.created.
_LAUNCHES = "says where a child comes from, which is registered beside it"

_BY_SEQ = "changed rows are found by their seq, whatever fact changed them"

READERS = (
    EventReader(
        "shared/core/state/tables/policy.py",
        "table policy",
        {
            _OTHER: "operator.refused job.registered job.stopped job.evaluated submission.refused intake.advanced"
            " submissions.collected jobs.collected node.registered node.refused nodes.status_changed"
            " node.eligibility_changed nodes.collected pool.declared node.drain_changed"
            " node.drained node.meta_changed"
            " capacity.freed evaluations.created evaluations.woken evaluation.ended evaluations.collected"
            " reservations.changed plan.committed plan.refused allocations.reported allocations.collected"
            " allocations.displaced log.loss_accepted",
            "is about a deployment or a version": "allocations.health_changed deployment.started deployment.sized"
            " deployment.promoted deployment.paused deployment.resumed"
            " deployment.held deployment.released deployment.gated deployment.gate_changed"
            " deployment.window_changed rollout.started rollout.ended deployment.ended"
            " job.stability_changed job.version_tagged",
            _LAUNCHES: "job.launched launch.skipped job.payload",
        },
    ),
    EventReader(
        "shared/core/state/tables/jobs.py",
        "table jobs",
        {
            _OTHER: "cluster.created policy.changed operator.refused log.rolled log.loss_accepted"
            " log.incarnation_began node.registered node.refused"
            " nodes.status_changed node.eligibility_changed nodes.collected pool.declared node.drain_changed"
            " node.drained"
            " node.meta_changed capacity.freed evaluations.created evaluations.woken evaluation.ended"
            " evaluations.collected reservations.changed plan.refused allocations.reported allocations.collected"
            " allocations.displaced",
            "is about a deployment or a version": "allocations.health_changed deployment.started deployment.sized"
            " deployment.promoted deployment.paused deployment.resumed"
            " deployment.held deployment.released deployment.gated deployment.gate_changed"
            " deployment.window_changed",
            _LAUNCHES: "job.launched launch.skipped job.payload",
        },
    ),
    EventReader(
        "shared/core/state/tables/fleet.py",
        "table fleet",
        {
            _OTHER: "cluster.created policy.changed operator.refused log.rolled log.loss_accepted"
            " log.incarnation_began job.registered job.stopped"
            " job.evaluated submission.refused intake.advanced submissions.collected jobs.collected"
            " capacity.freed evaluations.created evaluations.woken evaluation.ended evaluations.collected"
            " reservations.changed plan.committed plan.refused allocations.collected allocations.displaced",
            "is about a deployment or a version": "allocations.health_changed deployment.started deployment.sized"
            " deployment.promoted deployment.paused deployment.resumed"
            " deployment.held deployment.released deployment.gated deployment.gate_changed"
            " deployment.window_changed rollout.started rollout.ended deployment.ended"
            " job.stability_changed job.version_tagged",
            _LAUNCHES: "job.launched launch.skipped job.payload",
        },
    ),
    EventReader(
        "shared/core/state/tables/evaluations.py",
        "table evaluations",
        {
            "the evaluations it calls for come as evaluations.created": "job.registered job.stopped job.evaluated"
            " node.registered nodes.status_changed node.eligibility_changed node.drain_changed"
            " node.drained node.meta_changed"
            " pool.declared allocations.reported allocations.displaced",
            _OTHER: "cluster.created policy.changed operator.refused log.rolled log.loss_accepted"
            " submission.refused intake.advanced"
            " submissions.collected jobs.collected node.refused nodes.collected reservations.changed"
            " allocations.collected",
            "the evaluations that follow come as evaluations.created": "allocations.health_changed"
            " deployment.started deployment.sized deployment.promoted deployment.paused"
            " deployment.resumed"
            " deployment.held deployment.released deployment.gated deployment.gate_changed"
            " deployment.window_changed rollout.started rollout.ended deployment.ended"
            " job.stability_changed job.version_tagged",
            _LAUNCHES: "job.launched launch.skipped job.payload",
        },
    ),
    EventReader(
        "shared/core/state/tables/allocations.py",
        "table allocations",
        {
            _OTHER: "cluster.created policy.changed operator.refused log.rolled log.loss_accepted"
            " job.stopped job.evaluated"
            " submission.refused intake.advanced submissions.collected node.registered node.refused"
            " nodes.status_changed node.eligibility_changed nodes.collected pool.declared node.drain_changed"
            " node.drained"
            " node.meta_changed capacity.freed evaluations.created evaluations.woken evaluation.ended"
            " evaluations.collected reservations.changed plan.refused",
            "is about a deployment or a version": "deployment.started deployment.sized"
            " deployment.paused deployment.resumed"
            " deployment.held deployment.released deployment.gated deployment.gate_changed"
            " deployment.window_changed rollout.started rollout.ended deployment.ended"
            " job.stability_changed job.version_tagged",
            _LAUNCHES: "job.launched launch.skipped job.payload",
        },
    ),
    EventReader(
        "shared/core/state/tables/reservations.py",
        "table reservations",
        {
            "a reservation that it takes away comes as reservations.changed": "job.registered job.stopped"
            " nodes.status_changed node.eligibility_changed nodes.collected node.drain_changed"
            " node.drained evaluation.ended"
            " policy.changed plan.committed",
            _OTHER: "cluster.created operator.refused log.rolled log.loss_accepted log.incarnation_began"
            " job.evaluated submission.refused intake.advanced"
            " submissions.collected node.registered node.refused pool.declared node.meta_changed capacity.freed"
            " evaluations.created evaluations.woken evaluations.collected plan.refused allocations.reported"
            " allocations.collected allocations.displaced",
            "is about a deployment or a version": "allocations.health_changed deployment.started deployment.sized"
            " deployment.promoted deployment.paused deployment.resumed"
            " deployment.held deployment.released deployment.gated deployment.gate_changed"
            " deployment.window_changed rollout.started rollout.ended deployment.ended"
            " job.stability_changed job.version_tagged",
            _LAUNCHES: "job.launched launch.skipped job.payload",
        },
    ),
    EventReader(
        "shared/core/state/tables/launches.py",
        "table launches",
        {
            _OTHER: "cluster.created policy.changed operator.refused log.rolled log.loss_accepted"
            " log.incarnation_began job.evaluated submission.refused intake.advanced submissions.collected"
            " node.registered node.refused nodes.status_changed node.eligibility_changed nodes.collected"
            " pool.declared node.drain_changed node.meta_changed capacity.freed evaluations.created"
            " evaluations.woken evaluation.ended evaluations.collected reservations.changed plan.committed"
            " plan.refused allocations.reported allocations.collected allocations.displaced"
            " allocations.health_changed deployment.started deployment.sized"
            " deployment.promoted deployment.paused deployment.resumed"
            " deployment.held deployment.released deployment.gated deployment.gate_changed"
            " deployment.window_changed rollout.started rollout.ended deployment.ended"
            " job.stability_changed job.version_tagged node.drained",
        },
    ),
    EventReader(
        "shared/core/state/tables/deployments.py",
        "table deployments",
        {
            _OTHER: "cluster.created policy.changed operator.refused log.rolled log.loss_accepted"
            " log.incarnation_began job.stopped job.evaluated submission.refused intake.advanced"
            " submissions.collected node.registered node.refused nodes.status_changed node.eligibility_changed"
            " nodes.collected pool.declared node.drain_changed node.drained node.meta_changed capacity.freed"
            " evaluations.created evaluations.woken evaluation.ended evaluations.collected reservations.changed"
            " plan.refused allocations.reported allocations.collected allocations.displaced"
            " job.stability_changed job.version_tagged rollout.started rollout.ended",
            _LAUNCHES: "job.launched launch.skipped job.payload",
        },
    ),
    EventReader(
        "shared/core/state/tables/rollouts.py",
        "table rollouts",
        {
            _OTHER: "cluster.created policy.changed operator.refused log.rolled log.loss_accepted"
            " log.incarnation_began job.registered job.stopped job.evaluated submission.refused intake.advanced"
            " submissions.collected node.registered node.refused nodes.status_changed node.eligibility_changed"
            " nodes.collected pool.declared node.drain_changed node.drained node.meta_changed capacity.freed"
            " evaluations.created evaluations.woken evaluation.ended evaluations.collected reservations.changed"
            " plan.refused plan.committed jobs.collected allocations.reported allocations.collected"
            " allocations.displaced"
            " job.stability_changed job.version_tagged",
            "the end of a member's deployment tells all": "allocations.health_changed deployment.started"
            " deployment.sized"
            " deployment.promoted deployment.paused deployment.resumed deployment.held"
            " deployment.released deployment.gated deployment.gate_changed deployment.window_changed",
            _LAUNCHES: "job.launched launch.skipped job.payload",
        },
    ),
    EventReader(
        "services/eval_broker/",
        "queues and leases of evaluations",
        {
            "capacity.freed tells what may wake": "node.registered nodes.status_changed node.eligibility_changed"
            " node.drain_changed"
            " node.drained node.meta_changed pool.declared allocations.reported allocations.displaced"
            " policy.changed",
            "the evaluation comes as evaluations.created": "job.evaluated",
            _CLEAN: "submissions.collected jobs.collected nodes.collected evaluations.collected"
            " allocations.collected",
            "is not about an evaluation": "cluster.created operator.refused log.rolled log.loss_accepted"
            " log.incarnation_began submission.refused"
            " intake.advanced node.refused",
            "does not change who is served first": "reservations.changed",
            "the evaluations that follow come as evaluations.created": "allocations.health_changed"
            " deployment.started deployment.sized deployment.promoted deployment.paused"
            " deployment.resumed"
            " deployment.held deployment.released deployment.gated deployment.gate_changed"
            " deployment.window_changed rollout.started rollout.ended deployment.ended"
            " job.stability_changed job.version_tagged",
            _LAUNCHES: "job.launched launch.skipped job.payload",
        },
    ),
    EventReader(
        "services/scheduler/",
        "answers to its own plans",
        {
            "read from the state when it plans": "cluster.created policy.changed log.rolled log.loss_accepted"
            " log.incarnation_began operator.refused"
            " job.registered job.stopped job.evaluated submission.refused intake.advanced submissions.collected"
            " jobs.collected node.registered node.refused nodes.status_changed node.eligibility_changed"
            " nodes.collected pool.declared node.drain_changed node.drained node.meta_changed capacity.freed"
            " evaluations.created evaluations.woken evaluations.collected reservations.changed"
            " allocations.reported allocations.collected allocations.displaced",
            "is about a deployment or a version": "allocations.health_changed deployment.started deployment.sized"
            " deployment.promoted deployment.paused deployment.resumed"
            " deployment.held deployment.released deployment.gated deployment.gate_changed"
            " deployment.window_changed rollout.started rollout.ended deployment.ended"
            " job.stability_changed job.version_tagged",
            _LAUNCHES: "job.launched launch.skipped job.payload",
        },
    ),
    EventReader(
        "services/intake/",
        "verdicts on submissions",
        {
            "position of the stream, read from the table of jobs": "intake.advanced",
            _CLEAN: "submissions.collected jobs.collected nodes.collected evaluations.collected"
            " allocations.collected",
            "is not a verdict on a submission": "cluster.created policy.changed operator.refused"
            " log.rolled log.loss_accepted log.incarnation_began"
            " node.registered node.refused nodes.status_changed node.eligibility_changed pool.declared"
            " node.drain_changed"
            " node.drained node.meta_changed capacity.freed evaluations.created evaluations.woken"
            " evaluation.ended reservations.changed plan.committed plan.refused allocations.reported"
            " allocations.displaced",
            "is about a deployment or a version": "allocations.health_changed deployment.started deployment.sized"
            " deployment.promoted deployment.paused deployment.resumed"
            " deployment.held deployment.released deployment.gated deployment.gate_changed"
            " deployment.window_changed deployment.ended"
            " job.stability_changed job.version_tagged rollout.ended",
            _LAUNCHES: "job.launched launch.skipped job.payload",
        },
    ),
    EventReader(
        "services/heartbeat/",
        "nodes to watch and their deadlines",
        {
            "says nothing of a node's heartbeats": "operator.refused log.rolled log.loss_accepted"
            " log.incarnation_began job.registered job.stopped"
            " job.evaluated submission.refused intake.advanced submissions.collected jobs.collected node.refused"
            " node.eligibility_changed pool.declared node.drain_changed"
            " node.drained node.meta_changed capacity.freed"
            " evaluations.created evaluations.woken evaluation.ended evaluations.collected reservations.changed"
            " plan.committed plan.refused allocations.reported allocations.collected allocations.displaced",
            "is about a deployment or a version": "allocations.health_changed deployment.started deployment.sized"
            " deployment.promoted deployment.paused deployment.resumed"
            " deployment.held deployment.released deployment.gated deployment.gate_changed"
            " deployment.window_changed rollout.started rollout.ended deployment.ended"
            " job.stability_changed job.version_tagged",
            _LAUNCHES: "job.launched launch.skipped job.payload",
        },
    ),
    EventReader(
        "services/timekeeper/",
        "when what is due",
        {
            "nothing waits for a time because of it": "cluster.created policy.changed operator.refused log.rolled"
            " log.loss_accepted log.incarnation_began job.evaluated submission.refused"
            " intake.advanced submissions.collected node.registered node.refused"
            " nodes.status_changed node.eligibility_changed nodes.collected pool.declared"
            " node.drain_changed node.drained"
            " node.meta_changed capacity.freed evaluations.created evaluations.woken evaluation.ended"
            " evaluations.collected reservations.changed plan.refused allocations.reported"
            " allocations.collected allocations.displaced",
            "is about a version that is kept": "job.stability_changed job.version_tagged rollout.started"
            " rollout.ended",
            _LAUNCHES: "job.payload",
        },
    ),
    EventReader(
        "services/plan_applier/",
        "counters of its metrics, and the size of a batch",
        {
            "applied by the state; no metric is by its type": "cluster.created policy.changed"
            " operator.refused log.rolled log.loss_accepted job.registered job.stopped job.evaluated"
            " submission.refused"
            " intake.advanced submissions.collected jobs.collected node.registered node.refused"
            " nodes.status_changed node.eligibility_changed nodes.collected pool.declared node.drain_changed"
            " node.drained"
            " node.meta_changed capacity.freed evaluations.woken evaluation.ended evaluations.collected"
            " reservations.changed allocations.reported allocations.collected allocations.displaced",
            "is about a deployment or a version": "allocations.health_changed deployment.started deployment.sized"
            " deployment.promoted deployment.paused deployment.resumed"
            " deployment.held deployment.released deployment.gated deployment.gate_changed"
            " deployment.window_changed rollout.started rollout.ended deployment.ended"
            " job.stability_changed job.version_tagged",
            _LAUNCHES: "job.launched launch.skipped job.payload",
        },
    ),
    EventReader(
        "services/view/",
        "projections, and answers to operators",
        {
            "no projection and no verdict shows it": "cluster.created intake.advanced submissions.collected"
            " capacity.freed reservations.changed plan.refused",
            "shared/query/ keeps the index of evaluations": "evaluations.created evaluation.ended",
            "a verb's row in shared/protocol/operator_verbs.py names its effect": "allocations.displaced"
            " log.rolled log.loss_accepted policy.changed",
            "no projection shows it": "rollout.ended job.stability_changed job.version_tagged",
            _LAUNCHES: "job.launched launch.skipped job.payload",
        },
    ),
    EventReader(
        "shared/query/",
        "which jobs and nodes an event is about; the index of evaluations",
        {
            "found by the names of its fields": "cluster.created policy.changed operator.refused"
            " log.rolled log.loss_accepted log.incarnation_began"
            " submission.refused intake.advanced submissions.collected"
            " node.refused nodes.status_changed node.eligibility_changed nodes.collected"
            " pool.declared node.drain_changed"
            " node.drained node.meta_changed capacity.freed reservations.changed"
            " allocations.collected allocations.displaced",
            "found by the names of its fields, too": "deployment.started deployment.ended job.stability_changed"
            " job.version_tagged",
            _LAUNCHES: "job.payload",
        },
    ),
    EventReader(
        "shared/archive/",
        "rows of the exported tables",
        {
            "only in the exported table of events": "cluster.created policy.changed"
            " operator.refused log.rolled log.loss_accepted log.incarnation_began"
            " job.evaluated submission.refused intake.advanced node.refused pool.declared capacity.freed"
            " reservations.changed",
            _CLEAN: "submissions.collected evaluations.collected allocations.collected",
            "in the exported table of events alone": "job.stability_changed job.version_tagged",
            _LAUNCHES: "job.payload",
        },
    ),
    EventReader(
        "shared/core/scheduling/explain/",
        "plans to decide again",
        {
            "is not an answer to a plan": "cluster.created policy.changed operator.refused"
            " log.rolled log.loss_accepted log.incarnation_began"
            " job.registered job.stopped job.evaluated submission.refused intake.advanced submissions.collected"
            " jobs.collected node.registered node.refused nodes.status_changed node.eligibility_changed"
            " nodes.collected pool.declared node.drain_changed node.drained node.meta_changed capacity.freed"
            " evaluations.created evaluations.woken evaluation.ended evaluations.collected reservations.changed"
            " allocations.reported allocations.collected allocations.displaced",
            "is about a deployment or a version": "allocations.health_changed deployment.started deployment.sized"
            " deployment.promoted deployment.paused deployment.resumed"
            " deployment.held deployment.released deployment.gated deployment.gate_changed"
            " deployment.window_changed rollout.started rollout.ended deployment.ended"
            " job.stability_changed job.version_tagged",
            _LAUNCHES: "job.launched launch.skipped job.payload",
        },
    ),
    EventReader(
        "shared/whatif/",
        "what came from outside, as commands; waiting times",
        {
            "decided again in the fork": "submission.refused node.refused node.drained capacity.freed"
            " reservations.changed allocations.collected submissions.collected jobs.collected nodes.collected"
            " evaluations.collected",
            "is not a change of the workload or of the fleet": "cluster.created log.rolled log.loss_accepted"
            " log.incarnation_began intake.advanced",
            "is about a deployment or a version": "deployment.sized"
            " deployment.held deployment.gated"
            " deployment.window_changed rollout.started rollout.ended job.stability_changed job.version_tagged",
            _LAUNCHES: "job.launched launch.skipped job.payload",
        },
    ),
    EventReader(
        "shared/sim/engine/",
        "which roles to wake",
        {
            "wakes no role that waits": "operator.refused log.rolled log.loss_accepted log.incarnation_began"
            " intake.advanced submissions.collected"
            " jobs.collected node.refused nodes.status_changed node.eligibility_changed pool.declared"
            " node.drain_changed node.drained node.meta_changed evaluations.collected reservations.changed"
            " allocations.reported allocations.collected allocations.displaced",
            "is about a deployment or a version": "allocations.health_changed deployment.started deployment.sized"
            " deployment.promoted deployment.paused deployment.resumed"
            " deployment.held deployment.released deployment.gated deployment.gate_changed"
            " deployment.window_changed rollout.started rollout.ended deployment.ended"
            " job.stability_changed job.version_tagged",
            _LAUNCHES: "job.launched launch.skipped job.payload",
        },
    ),
    EventReader(
        "shared/sim/scenario/",
        "figures of a scenario, and its arrivals",
        {
            "no figure counts it": "cluster.created policy.changed operator.refused log.rolled log.loss_accepted"
            " log.incarnation_began job.evaluated"
            " submission.refused intake.advanced submissions.collected jobs.collected node.registered"
            " node.refused nodes.status_changed node.eligibility_changed nodes.collected pool.declared"
            " node.drain_changed"
            " node.drained node.meta_changed capacity.freed evaluations.woken evaluation.ended"
            " evaluations.collected reservations.changed allocations.collected allocations.displaced",
            "is about a deployment or a version": "allocations.health_changed deployment.started deployment.sized"
            " deployment.promoted deployment.paused deployment.resumed"
            " deployment.held deployment.released deployment.gated deployment.gate_changed"
            " deployment.window_changed rollout.started rollout.ended deployment.ended"
            " job.stability_changed job.version_tagged",
            _LAUNCHES: "job.launched launch.skipped job.payload",
        },
    ),
    EventReader(
        "shared/sim/oracle/",
        "the reference model of the state",
        {
            "the model has no policy and no clusters": "cluster.created policy.changed log.rolled log.loss_accepted",
            "the model keeps no refusals of operators and nodes": "operator.refused node.refused",
            "the model does not schedule": "pool.declared capacity.freed"
            " reservations.changed plan.refused",
            _CLEAN: "submissions.collected",
            "is about a version that is kept": "job.stability_changed",
        },
    ),
    EventReader(
        "shared/bus/process/event_lines.py",
        "INFO lines of the roles",
        {
            "no operator waits for it": "cluster.created job.evaluated intake.advanced submissions.collected"
            " jobs.collected nodes.collected capacity.freed evaluations.created evaluations.woken"
            " evaluations.collected reservations.changed allocations.reported"
            " allocations.collected",
            "belongs to a deployment or version that has a line": "allocations.health_changed deployment.sized"
            " deployment.gated job.stability_changed job.version_tagged",
            _LAUNCHES: "job.payload",
        },
    ),
    EventReader(
        "shared/display/",
        "one line of text each",
        {
            "printed field by field": "policy.changed operator.refused log.rolled log.loss_accepted"
            " log.incarnation_began job.evaluated intake.advanced"
            " submissions.collected jobs.collected nodes.collected evaluations.collected allocations.collected",
        },
    ),
    EventReader(
        "services/gateway/nomad/events.py",
        "events of `/v1/event/stream`",
        {
            _BY_SEQ: "allocations.collected allocations.health_changed capacity.freed cluster.created"
            " deployment.ended deployment.gate_changed deployment.gated deployment.held"
            " deployment.paused deployment.released deployment.resumed deployment.sized"
            " deployment.started deployment.window_changed evaluation.ended"
            " evaluations.collected evaluations.created evaluations.woken intake.advanced"
            " job.evaluated job.stability_changed job.version_tagged log.incarnation_began"
            " log.loss_accepted log.rolled node.meta_changed node.refused nodes.status_changed"
            " operator.refused plan.refused policy.changed pool.declared reservations.changed"
            " rollout.ended rollout.started submission.refused submissions.collected",
            _LAUNCHES: "job.launched job.payload launch.skipped",
        },
    ),
    EventReader(
        "shared/display/time_marks.py",
        "marks of the time bar",
        {
            "not a moment that an operator looks for": ""
            "allocations.collected allocations.displaced allocations.health_changed"
            " allocations.reported capacity.freed cluster.created deployment.gate_changed"
            " deployment.gated deployment.held deployment.paused deployment.promoted"
            " deployment.released deployment.resumed deployment.sized deployment.window_changed"
            " evaluation.ended evaluations.collected evaluations.created evaluations.woken"
            " intake.advanced job.evaluated job.launched job.payload job.stability_changed"
            " job.version_tagged jobs.collected launch.skipped log.incarnation_began log.loss_accepted"
            " log.rolled node.drained node.eligibility_changed node.meta_changed node.refused"
            " nodes.collected operator.refused plan.refused policy.changed"
            " pool.declared reservations.changed rollout.ended rollout.started submission.refused"
            " submissions.collected",
        },
    ),
    EventReader(
        "services/gateway/allocation_times.py",
        "times to place and to start allocations",
        {
            "no delay ends with it": ""
            "allocations.collected allocations.displaced allocations.health_changed capacity.freed"
            " cluster.created deployment.ended deployment.gate_changed deployment.gated"
            " deployment.held deployment.paused deployment.promoted deployment.released"
            " deployment.resumed deployment.sized deployment.started deployment.window_changed"
            " evaluation.ended evaluations.collected evaluations.created evaluations.woken"
            " intake.advanced job.evaluated job.launched job.payload job.registered"
            " job.stability_changed job.stopped job.version_tagged jobs.collected launch.skipped"
            " log.incarnation_began log.loss_accepted log.rolled node.drain_changed node.drained"
            " node.eligibility_changed node.meta_changed node.refused node.registered nodes.collected"
            " nodes.status_changed operator.refused plan.refused policy.changed pool.declared"
            " reservations.changed rollout.ended rollout.started submission.refused"
            " submissions.collected",
        },
    ),
)
