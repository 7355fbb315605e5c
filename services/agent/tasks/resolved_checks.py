"""What an agent keeps of the checks of a group's services, with every default resolved.

Decides which checks run and what they mean for health. Stands in the journal with the group. Next: `check_monitor.py`.
"""

from schemas.base import SECOND_NS, Wire
from shared.jobspec.nomad.job import JobSpec, TaskGroup
from shared.jobspec.nomad.policies import CheckRestart
from shared.jobspec.nomad.services import Check, Service
from shared.jobspec.service_names import named_checks

#: Text of `on_update` where neither check nor service says it.
REQUIRE_HEALTHY, IGNORE_WARNINGS, IGNORE = "require_healthy", "ignore_warnings", "ignore"


class ResolvedCheck(Wire, frozen=True, kw_only=True):
    """One check. References in its texts are resolved when it runs."""

    #: unique in the group: service and name, as reports have it.
    name: str
    #: tcp, http, grpc or script.
    kind: str
    #: whose check it is, and which runs a script; empty: of the group.
    task: str = ""
    #: label or number.
    port: str = ""
    protocol: str = "http"
    method: str = "GET"
    path: str = ""
    header: dict[str, tuple[str, ...]] = {}
    body: str = ""
    tls_skip_verify: bool = False
    #: empty: the server as a whole.
    grpc_service: str = ""
    grpc_use_tls: bool = False
    command: tuple[str, ...] = ()
    interval_ns: int = 10_000_000_000
    timeout_ns: int = 1_000_000_000
    #: passing, warning or critical; empty: pending.
    initial_status: str = ""
    #: what an update of the job requires of it.
    on_update: str = REQUIRE_HEALTHY
    #: how often in a row it may fail before its task is started again; 0: forever.
    limit: int = 0
    #: from the start of the task until failures count.
    grace_ns: int = 1_000_000_000
    ignore_warnings: bool = False


def resolve_checks(job: JobSpec, group: TaskGroup) -> tuple[ResolvedCheck, ...]:
    """List the checks of all services of a group, those of its tasks included."""
    return tuple(
        _resolve(
            one.name,
            one.owner.task or one.check.task_name or one.owner.service.task_name,
            one.owner.service,
            one.check,
        )
        for one in named_checks(job.name or job.id, group)
    )


def _resolve(name: str, task: str, service: Service, check: Check) -> ResolvedCheck:
    again = check.check_restart or service.check_restart or CheckRestart()
    return ResolvedCheck(
        name=name,
        kind=check.type.lower(),
        task=task,
        port=check.port_label or service.port_label,
        protocol=check.protocol or "http",
        method=check.method or "GET",
        path=check.path,
        header=check.header,
        body=check.body,
        tls_skip_verify=check.tls_skip_verify,
        grpc_service=check.grpc_service,
        grpc_use_tls=check.grpc_use_tls,
        command=(check.command, *check.args) if check.command else (),
        interval_ns=max(check.interval_ns, SECOND_NS),
        timeout_ns=max(check.timeout_ns, SECOND_NS),
        initial_status=check.initial_status,
        on_update=check.on_update or service.on_update or REQUIRE_HEALTHY,
        limit=again.limit,
        grace_ns=again.grace_ns,
        ignore_warnings=again.ignore_warnings,
    )
