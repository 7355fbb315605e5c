"""Which code reads which event, and why the rest is ignored.

Data only. `tests/tidy/test_events.py` compares it with what the code names; `generate.py` prints it into
docs/events.md. A new event needs no line here for a reader that handles it, and for each that ignores it its tag under
a reason, alone or in a group.
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


#: Events that most readers ignore together. Each is written out: a new event is in no group until it is decided which
#: of the readers below ignore it.
GROUPS = {
    "CLUSTER": "cluster.created policy.changed operator.refused",
    "LOG": "log.rolled log.incarnation_began log.loss_accepted",
    "SUBMISSIONS": "submission.refused intake.advanced",
    "JOBS": "job.registered job.stopped job.evaluated",
    "VERSIONS": "job.stability_changed job.version_tagged",
    "LAUNCHES": "job.launched launch.skipped job.payload",
    "ROLLOUTS": "rollout.started rollout.ended",
    "DEPLOYMENTS": (
        "deployment.started deployment.sized deployment.promoted deployment.paused "
        "deployment.resumed deployment.held deployment.released deployment.gated "
        "deployment.gate_changed deployment.window_changed deployment.ended"
    ),
    "NODES": (
        "node.registered node.refused nodes.status_changed node.eligibility_changed "
        "pool.declared node.drain_changed node.drained node.meta_changed node.confirmed_dead"
    ),
    "EVALUATIONS": "evaluations.created evaluations.woken evaluation.ended",
    "PLANS": "plan.committed plan.refused",
    "ALLOCATIONS": "allocations.reported allocations.displaced",
    "VARIABLES": ("variable.put variable.deleted variable.shredded variable.refused key.created"),
    "SIGNING_KEYS": "signing_key.created signing_key.removed",
    "CLAIMS": "claim.made claim.released",
    "VOLUMES": "volume.requested volume.ready volume.failed volume.deleting volume.deleted",
    "REMOTES": "remotes.reported remote.moved",
    "LOCKS": "variable.locked variable.lock_released variable.lock_expired",
    "COLLECTED": (
        "submissions.collected jobs.collected nodes.collected evaluations.collected "
        "allocations.collected"
    ),
}


def _tags(text: str) -> str:
    """Write out the groups of a list of tags; `-tag` takes one out again."""
    words = text.split()
    without = {word[1:] for word in words if word.startswith("-")}
    found = " ".join(GROUPS.get(word, word) for word in words if not word.startswith("-")).split()
    if unknown := without.difference(found):
        raise ValueError(f"in no group of {text!r}: {', '.join(sorted(unknown))}")
    return " ".join(tag for tag in found if tag not in without)


def _reader(text: str) -> EventReader:
    """Make a reader of `path: purpose` and of lines `reason: tags`; a line without a reason continues the one above."""
    first, *lines = filter(None, map(str.strip, text.splitlines()))
    path, _, purpose = first.partition(": ")
    found: dict[str, str] = {}
    reason = ""
    for line in lines:
        head, is_new, tags = line.rpartition(": ")
        reason = head if is_new else reason
        found[reason] = f"{found.get(reason, '')} {tags}"
    return EventReader(path, purpose, {reason: _tags(tags) for reason, tags in found.items()})


_OTHER = "changes nothing in this table"
_CLEAN = "cleanup of what has ended already"
#: The child comes as job.registered, its evaluation as evaluations.created.
_LAUNCHES = "says where a child comes from, which is registered beside it"

#: Ciphertext, lives of paths, and keys of the keeper.
_VARIABLES = "is about a variable or a key"

_CLAIMED = "is about a volume, or a claim on one"
_REMOTE = "is about what runs elsewhere for a task"
_BY_SEQ = "changed rows are found by their seq"
_DEPLOYED = "is about a deployment or a version"
_FOLLOW = "the evaluations that follow come as evaluations.created"

READERS = (
    _reader(f"""
        shared/core/state/tables/policy.py: table policy
            {_OTHER}: SUBMISSIONS JOBS NODES EVALUATIONS PLANS ALLOCATIONS COLLECTED operator.refused
                log.loss_accepted capacity.freed reservations.changed
            {_DEPLOYED}: VERSIONS ROLLOUTS DEPLOYMENTS allocations.health_changed
            {_LAUNCHES}: LAUNCHES
            {_VARIABLES}: VARIABLES LOCKS SIGNING_KEYS
            {_CLAIMED}: CLAIMS VOLUMES
            {_REMOTE}: REMOTES
    """),
    _reader(f"""
        shared/core/state/tables/jobs.py: table jobs
            {_OTHER}: CLUSTER LOG NODES EVALUATIONS ALLOCATIONS nodes.collected capacity.freed
                evaluations.collected reservations.changed plan.refused allocations.collected
            {_DEPLOYED}: DEPLOYMENTS allocations.health_changed -deployment.ended
            {_LAUNCHES}: LAUNCHES
            {_VARIABLES}: VARIABLES LOCKS SIGNING_KEYS
            {_CLAIMED}: CLAIMS VOLUMES
            {_REMOTE}: REMOTES
    """),
    _reader(f"""
        shared/core/state/tables/fleet.py: table fleet
            {_OTHER}: CLUSTER LOG SUBMISSIONS JOBS EVALUATIONS PLANS COLLECTED capacity.freed
                reservations.changed allocations.displaced -nodes.collected
            {_DEPLOYED}: VERSIONS ROLLOUTS DEPLOYMENTS allocations.health_changed
            {_LAUNCHES}: LAUNCHES
            {_VARIABLES}: VARIABLES LOCKS SIGNING_KEYS
            {_CLAIMED}: CLAIMS VOLUMES
            {_REMOTE}: REMOTES
    """),
    _reader(f"""
        shared/core/state/tables/evaluations.py: table evaluations
            the evaluations it calls for come as evaluations.created: JOBS NODES ALLOCATIONS -node.refused
            {_OTHER}: CLUSTER SUBMISSIONS COLLECTED log.rolled log.loss_accepted node.refused
                reservations.changed -evaluations.collected
            {_FOLLOW}: VERSIONS ROLLOUTS DEPLOYMENTS allocations.health_changed
            {_LAUNCHES}: LAUNCHES
            {_VARIABLES}: VARIABLES LOCKS SIGNING_KEYS
            {_CLAIMED}: CLAIMS VOLUMES
            {_REMOTE}: REMOTES
    """),
    _reader(f"""
        shared/core/state/tables/allocations.py: table allocations
            {_OTHER}: CLUSTER SUBMISSIONS NODES EVALUATIONS log.rolled log.loss_accepted job.stopped
                job.evaluated submissions.collected nodes.collected capacity.freed evaluations.collected
                reservations.changed plan.refused
            {_DEPLOYED}: VERSIONS ROLLOUTS DEPLOYMENTS -deployment.promoted
            {_LAUNCHES}: LAUNCHES
            {_VARIABLES}: VARIABLES LOCKS SIGNING_KEYS
            {_CLAIMED}: CLAIMS VOLUMES
            {_REMOTE}: REMOTES
    """),
    _reader(f"""
        shared/core/state/tables/reservations.py: table reservations
            a reservation that it takes away comes as reservations.changed: policy.changed job.registered
                job.stopped nodes.status_changed node.eligibility_changed nodes.collected node.drain_changed
                node.drained evaluation.ended plan.committed
            {_OTHER}: LOG SUBMISSIONS ALLOCATIONS cluster.created operator.refused job.evaluated
                submissions.collected node.registered node.refused pool.declared node.meta_changed
                node.confirmed_dead capacity.freed evaluations.created evaluations.woken evaluations.collected
                plan.refused allocations.collected
            {_DEPLOYED}: VERSIONS ROLLOUTS DEPLOYMENTS allocations.health_changed
            {_LAUNCHES}: LAUNCHES
            {_VARIABLES}: VARIABLES LOCKS SIGNING_KEYS
            {_CLAIMED}: CLAIMS VOLUMES
            {_REMOTE}: REMOTES
    """),
    _reader(f"""
        shared/core/state/tables/launches.py: table launches
            {_OTHER}: CLUSTER LOG SUBMISSIONS VERSIONS ROLLOUTS DEPLOYMENTS NODES EVALUATIONS PLANS
                ALLOCATIONS COLLECTED job.evaluated capacity.freed reservations.changed
                allocations.health_changed -jobs.collected
            {_VARIABLES}: VARIABLES LOCKS SIGNING_KEYS
            {_CLAIMED}: CLAIMS VOLUMES
            {_REMOTE}: REMOTES
    """),
    _reader(f"""
        shared/core/state/tables/deployments.py: table deployments
            {_OTHER}: CLUSTER LOG SUBMISSIONS VERSIONS ROLLOUTS NODES EVALUATIONS ALLOCATIONS
                COLLECTED job.stopped job.evaluated capacity.freed reservations.changed plan.refused
                -jobs.collected
            {_LAUNCHES}: LAUNCHES
            {_VARIABLES}: VARIABLES LOCKS SIGNING_KEYS
            {_CLAIMED}: CLAIMS VOLUMES
            {_REMOTE}: REMOTES
    """),
    _reader(f"""
        shared/core/state/tables/rollouts.py: table rollouts
            {_OTHER}: CLUSTER LOG SUBMISSIONS JOBS VERSIONS NODES EVALUATIONS PLANS ALLOCATIONS
                COLLECTED capacity.freed reservations.changed
            the end of a member's deployment tells all: DEPLOYMENTS allocations.health_changed
                -deployment.ended
            {_LAUNCHES}: LAUNCHES
            {_VARIABLES}: VARIABLES LOCKS SIGNING_KEYS
            {_CLAIMED}: CLAIMS VOLUMES
            {_REMOTE}: REMOTES
    """),
    _reader(f"""
        shared/core/state/tables/variables.py: table variables
            {_OTHER}: CLUSTER LOG SUBMISSIONS JOBS VERSIONS ROLLOUTS DEPLOYMENTS NODES EVALUATIONS PLANS
                ALLOCATIONS COLLECTED capacity.freed reservations.changed allocations.health_changed
                LOCKS SIGNING_KEYS
            {_LAUNCHES}: LAUNCHES
            {_CLAIMED}: CLAIMS VOLUMES
            {_REMOTE}: REMOTES
    """),
    _reader(f"""
        shared/core/state/tables/variable_locks.py: table variable_locks
            {_OTHER}: CLUSTER LOG SUBMISSIONS JOBS VERSIONS ROLLOUTS DEPLOYMENTS NODES EVALUATIONS PLANS
                ALLOCATIONS COLLECTED capacity.freed reservations.changed allocations.health_changed
                VARIABLES SIGNING_KEYS
            {_LAUNCHES}: LAUNCHES
            {_CLAIMED}: CLAIMS VOLUMES
            {_REMOTE}: REMOTES
    """),
    _reader(f"""
        shared/core/state/tables/signing_keys.py: table signing_keys
            {_OTHER}: CLUSTER LOG SUBMISSIONS JOBS VERSIONS ROLLOUTS DEPLOYMENTS NODES EVALUATIONS PLANS
                ALLOCATIONS COLLECTED capacity.freed reservations.changed allocations.health_changed
                VARIABLES LOCKS
            {_LAUNCHES}: LAUNCHES
            {_CLAIMED}: CLAIMS VOLUMES
            {_REMOTE}: REMOTES
    """),
    _reader(f"""
        shared/core/state/tables/claims.py: table claims
            {_OTHER}: CLUSTER LOG SUBMISSIONS JOBS VERSIONS ROLLOUTS DEPLOYMENTS NODES EVALUATIONS PLANS
                ALLOCATIONS COLLECTED capacity.freed reservations.changed allocations.health_changed
                -jobs.collected VOLUMES
            {_LAUNCHES}: LAUNCHES
            {_VARIABLES}: VARIABLES LOCKS SIGNING_KEYS
            {_REMOTE}: REMOTES
    """),
    _reader(f"""
        shared/core/state/tables/host_volumes.py: table volumes
            {_OTHER}: CLUSTER LOG SUBMISSIONS JOBS VERSIONS ROLLOUTS DEPLOYMENTS NODES EVALUATIONS PLANS
                ALLOCATIONS COLLECTED capacity.freed reservations.changed allocations.health_changed CLAIMS
            {_LAUNCHES}: LAUNCHES
            {_VARIABLES}: VARIABLES LOCKS SIGNING_KEYS
            {_REMOTE}: REMOTES
    """),
    _reader(f"""
        shared/core/state/tables/remotes.py: table remotes
            {_OTHER}: CLUSTER LOG SUBMISSIONS JOBS VERSIONS ROLLOUTS DEPLOYMENTS NODES EVALUATIONS PLANS
                ALLOCATIONS COLLECTED capacity.freed reservations.changed allocations.health_changed
            {_LAUNCHES}: LAUNCHES
            {_VARIABLES}: VARIABLES LOCKS SIGNING_KEYS
            {_CLAIMED}: CLAIMS VOLUMES
    """),
    _reader("""
        services/keeper/: what became of requests, and which keys are to be erased
            no request waits for it: LOG SUBMISSIONS JOBS VERSIONS LAUNCHES ROLLOUTS DEPLOYMENTS NODES
                EVALUATIONS PLANS ALLOCATIONS COLLECTED CLUSTER -cluster.created capacity.freed
                reservations.changed
                allocations.health_changed
            is about a volume, or a claim on one: CLAIMS VOLUMES
            is about what runs elsewhere for a task: REMOTES
    """),
    _reader(f"""
        services/eval_broker/: queues and leases of evaluations
            capacity.freed tells what may wake: NODES ALLOCATIONS policy.changed -node.refused
            the evaluation comes as evaluations.created: job.evaluated
            {_CLEAN}: COLLECTED
            is not about an evaluation: LOG SUBMISSIONS cluster.created operator.refused node.refused
            does not change who is served first: reservations.changed
            {_FOLLOW}: VERSIONS ROLLOUTS DEPLOYMENTS allocations.health_changed
            {_LAUNCHES}: LAUNCHES
            {_VARIABLES}: VARIABLES LOCKS SIGNING_KEYS
            {_CLAIMED}: CLAIMS VOLUMES
            {_REMOTE}: REMOTES
    """),
    _reader(f"""
        services/scheduler/: answers to its own plans
            read from the state when it plans: CLUSTER LOG SUBMISSIONS JOBS NODES ALLOCATIONS
                COLLECTED capacity.freed evaluations.created evaluations.woken reservations.changed
            {_DEPLOYED}: VERSIONS ROLLOUTS DEPLOYMENTS allocations.health_changed
            {_LAUNCHES}: LAUNCHES
            {_VARIABLES}: VARIABLES LOCKS SIGNING_KEYS
            {_CLAIMED}: CLAIMS VOLUMES
            {_REMOTE}: REMOTES
    """),
    _reader(f"""
        services/intake/: verdicts on submissions
            position of the stream, read from the table of jobs: intake.advanced
            {_CLEAN}: COLLECTED
            is not a verdict on a submission: CLUSTER LOG NODES EVALUATIONS PLANS ALLOCATIONS
                capacity.freed reservations.changed
            {_DEPLOYED}: VERSIONS DEPLOYMENTS allocations.health_changed rollout.ended
            {_LAUNCHES}: LAUNCHES
            {_VARIABLES}: VARIABLES LOCKS SIGNING_KEYS
            {_CLAIMED}: CLAIMS VOLUMES
            {_REMOTE}: REMOTES
    """),
    _reader(f"""
        services/heartbeat/: nodes to watch and their deadlines
            says nothing of a node's heartbeats: LOG SUBMISSIONS JOBS NODES EVALUATIONS PLANS
                ALLOCATIONS COLLECTED operator.refused capacity.freed reservations.changed -node.registered
                -nodes.status_changed -nodes.collected
            {_DEPLOYED}: VERSIONS ROLLOUTS DEPLOYMENTS allocations.health_changed
            {_LAUNCHES}: LAUNCHES
            {_VARIABLES}: VARIABLES LOCKS SIGNING_KEYS
            {_CLAIMED}: CLAIMS VOLUMES
            {_REMOTE}: REMOTES
    """),
    _reader(f"""
        services/timekeeper/: when what is due
            nothing waits for a time because of it: CLUSTER LOG SUBMISSIONS NODES EVALUATIONS
                ALLOCATIONS COLLECTED job.evaluated capacity.freed reservations.changed plan.refused
                -jobs.collected
            is about a version that is kept: VERSIONS ROLLOUTS
            {_LAUNCHES}: job.payload
            {_VARIABLES}: VARIABLES LOCKS SIGNING_KEYS
            {_CLAIMED}: CLAIMS VOLUMES
            {_REMOTE}: REMOTES
    """),
    _reader(f"""
        services/plan_applier/: counters of its metrics, and the size of a batch
            applied by the state; no metric is by its type: CLUSTER SUBMISSIONS JOBS NODES ALLOCATIONS
                COLLECTED log.rolled log.loss_accepted capacity.freed evaluations.woken evaluation.ended
                reservations.changed
            {_DEPLOYED}: VERSIONS ROLLOUTS DEPLOYMENTS allocations.health_changed
            {_LAUNCHES}: LAUNCHES
            {_VARIABLES}: VARIABLES LOCKS SIGNING_KEYS
            {_CLAIMED}: CLAIMS VOLUMES
            {_REMOTE}: REMOTES
    """),
    _reader(f"""
        services/view/: projections, and answers to operators
            no projection and no verdict shows it: cluster.created intake.advanced submissions.collected
                capacity.freed reservations.changed plan.refused
            shared/query/ keeps the index of evaluations: evaluations.created evaluation.ended
            a verb's row in shared/protocol/operator_verbs.py names its effect: policy.changed log.rolled
                log.loss_accepted allocations.displaced
            no projection shows it: VERSIONS rollout.ended variable.shredded variable.refused key.created
                LOCKS SIGNING_KEYS
            query.claims and query.volumes read the tables: CLAIMS volume.ready volume.failed
            what a node should do shows it where it moves: remotes.reported
            {_LAUNCHES}: LAUNCHES
    """),
    _reader(f"""
        shared/query/: which jobs and nodes an event is about; the index of evaluations
            found by the names of its fields: CLUSTER LOG SUBMISSIONS NODES submissions.collected
                nodes.collected capacity.freed reservations.changed allocations.collected allocations.displaced
                -node.registered
            found by the names of its fields, too: VERSIONS deployment.started deployment.ended
            {_LAUNCHES}: job.payload
            {_VARIABLES}: VARIABLES LOCKS SIGNING_KEYS
            {_CLAIMED}: CLAIMS VOLUMES
            {_REMOTE}: REMOTES
    """),
    _reader(f"""
        shared/archive/: rows of the exported tables
            only in the exported table of events: CLUSTER LOG SUBMISSIONS job.evaluated node.refused
                pool.declared capacity.freed reservations.changed variable.refused key.created
                SIGNING_KEYS CLAIMS VOLUMES REMOTES
            {_CLEAN}: submissions.collected evaluations.collected
            in the exported table of events alone: VERSIONS
            {_LAUNCHES}: job.payload
    """),
    _reader(f"""
        shared/core/scheduling/explain/: plans to decide again
            is not an answer to a plan: CLUSTER LOG SUBMISSIONS JOBS NODES EVALUATIONS ALLOCATIONS
                COLLECTED capacity.freed reservations.changed
            {_DEPLOYED}: VERSIONS ROLLOUTS DEPLOYMENTS allocations.health_changed
            {_LAUNCHES}: LAUNCHES
            {_VARIABLES}: VARIABLES LOCKS SIGNING_KEYS
            {_CLAIMED}: CLAIMS VOLUMES
            {_REMOTE}: REMOTES
    """),
    _reader(f"""
        shared/whatif/: what came from outside, as commands; waiting times
            decided again in the fork: REMOTES COLLECTED claim.made submission.refused node.refused node.drained
                capacity.freed
                reservations.changed
            a node that has a volume registers with it: volume.ready volume.failed
            is not a change of the workload or of the fleet: LOG cluster.created intake.advanced
            {_DEPLOYED}: VERSIONS deployment.sized deployment.held deployment.gated
                deployment.window_changed
            {_LAUNCHES}: LAUNCHES
            {_VARIABLES}: VARIABLES LOCKS SIGNING_KEYS
    """),
    _reader(f"""
        shared/sim/engine/: which roles to wake
            wakes no role that waits: LOG NODES ALLOCATIONS COLLECTED operator.refused intake.advanced
                reservations.changed -node.registered -nodes.collected
            {_DEPLOYED}: VERSIONS ROLLOUTS DEPLOYMENTS allocations.health_changed
            {_LAUNCHES}: LAUNCHES
            {_VARIABLES}: VARIABLES LOCKS SIGNING_KEYS
            {_CLAIMED}: CLAIMS VOLUMES
            {_REMOTE}: REMOTES
    """),
    _reader(f"""
        shared/sim/scenario/: figures of a scenario, and its arrivals
            no figure counts it: CLUSTER LOG SUBMISSIONS NODES COLLECTED job.evaluated capacity.freed
                evaluations.woken evaluation.ended reservations.changed allocations.displaced
            {_DEPLOYED}: VERSIONS ROLLOUTS DEPLOYMENTS allocations.health_changed
            {_LAUNCHES}: LAUNCHES
            {_VARIABLES}: VARIABLES LOCKS SIGNING_KEYS
            {_CLAIMED}: CLAIMS VOLUMES
            {_REMOTE}: REMOTES
    """),
    _reader("""
        shared/sim/oracle/: the reference model of the state
            the model has no policy and no clusters: cluster.created policy.changed log.rolled log.loss_accepted
            the model keeps no refusals of operators and nodes: operator.refused node.refused
            the model does not schedule: pool.declared capacity.freed reservations.changed
            is about a version that is kept: job.stability_changed
    """),
    _reader(f"""
        shared/bus/process/event_lines.py: INFO lines of the roles
            no operator waits for it: COLLECTED cluster.created job.evaluated intake.advanced capacity.freed
                evaluations.created evaluations.woken reservations.changed allocations.reported
            belongs to a deployment or version that has a line: VERSIONS deployment.sized deployment.gated
                allocations.health_changed
            {_LAUNCHES}: job.payload
    """),
    _reader("""
        shared/display/: one line of text each
            printed field by field: LOG COLLECTED policy.changed operator.refused job.evaluated
                intake.advanced
    """),
    _reader(f"""
        services/gateway/nomad/events.py: events of `/v1/event/stream`
            {_BY_SEQ}: CLUSTER LOG SUBMISSIONS VERSIONS ROLLOUTS DEPLOYMENTS EVALUATIONS
                job.evaluated submissions.collected node.refused nodes.status_changed pool.declared
                node.meta_changed node.confirmed_dead capacity.freed evaluations.collected reservations.changed
                plan.refused
                allocations.collected allocations.health_changed -deployment.promoted
            {_LAUNCHES}: LAUNCHES
            {_VARIABLES}: VARIABLES LOCKS SIGNING_KEYS
            {_CLAIMED}: CLAIMS VOLUMES
            {_REMOTE}: REMOTES
    """),
    _reader(f"""
        shared/display/time_marks.py: marks of the time bar
            not a moment that an operator looks for: CLUSTER LOG SUBMISSIONS VERSIONS LAUNCHES
                ROLLOUTS DEPLOYMENTS NODES EVALUATIONS ALLOCATIONS COLLECTED job.evaluated
                capacity.freed reservations.changed plan.refused allocations.health_changed -deployment.started
                -deployment.ended -node.registered -nodes.status_changed -node.drain_changed
            {_VARIABLES}: VARIABLES LOCKS SIGNING_KEYS
            {_CLAIMED}: CLAIMS VOLUMES
            {_REMOTE}: REMOTES
    """),
    _reader(f"""
        services/gateway/allocation_times.py: times to place and to start allocations
            no delay ends with it: CLUSTER LOG SUBMISSIONS JOBS VERSIONS LAUNCHES ROLLOUTS
                DEPLOYMENTS NODES EVALUATIONS COLLECTED capacity.freed reservations.changed plan.refused
                allocations.displaced allocations.health_changed
            {_VARIABLES}: VARIABLES LOCKS SIGNING_KEYS
            {_CLAIMED}: CLAIMS VOLUMES
            {_REMOTE}: REMOTES
    """),
)
