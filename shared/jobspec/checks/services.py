"""Validation of services and their checks, by Nomad's rules. Source: Nomad services.go, Validate.

Beyond Nomad, all providers allow checks of type grpc and script, warnings and `ignore_warnings`. What a node cannot do
yet (addresses of containers) is refused here.
"""

import re
from collections.abc import Iterator

from schemas.base import SECOND_NS
from shared.jobspec.checks.error_list import ErrorList
from shared.jobspec.nomad.job import JobSpec, TaskGroup
from shared.jobspec.nomad.services import Check, Service
from shared.jobspec.service_names import (
    CHECK_KINDS,
    PORT_MAX,
    DeclaredService,
    declared_services,
    port_number,
    service_name,
)

PROVIDERS = ("nomad", "consul", "")
ON_UPDATE = ("require_healthy", "ignore_warnings", "ignore", "")
STATUSES = ("", "passing", "warning", "critical")
SERVICES_MAX = 100
CHECKS_MAX = 100
NAME_MAX = 63
GRPC_SERVICE_MAX = 1024
DAY_NS = 86_400 * SECOND_NS
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def check_services(faults: ErrorList, job: JobSpec, group: TaskGroup, path: str) -> None:
    """Find what is impossible in the services of one group and its tasks."""
    if not group.services and not any(task.services for task in group.tasks):
        return
    declared = list(declared_services(group))
    if len(declared) > SERVICES_MAX:
        text = f"{len(declared)} services, at most {SERVICES_MAX} are allowed"
        faults.add(f"{path}.Services", text)
        return
    seen: set[tuple[str, str, str]] = set()
    labels = frozenset(_labels(group))
    names = frozenset(task.name for task in group.tasks)
    for one in declared:
        here = f"{path}{one.path}"
        _service(faults, one, labels, names, path=here)
        name = service_name(job.name or job.id, group.name, one.service, one.task)
        key = (name, one.task, one.service.port_label)
        if key in seen:
            faults.add(f"{here}.Name", f"another service is named {name[:80]!r} with the same port")
        seen.add(key)
    providers = sorted({one.service.provider or "consul" for one in declared})
    if len(providers) > 1:
        text = f"all services of a group must have the same provider, found {' and '.join(providers)[:80]}"
        faults.add(f"{path}{declared[-1].path}.Provider", text)


def other_providers(job: JobSpec) -> tuple[str, ...]:
    """List the providers of a job's services that are not contacted: they are served here."""
    return tuple(
        sorted(
            {
                one.service.provider or "consul"
                for group in job.groups
                for one in declared_services(group)
            }
            - {"nomad"}
        )
    )


def _labels(group: TaskGroup) -> Iterator[str]:
    networks = [*group.networks, *(one for task in group.tasks for one in task.resources.networks)]
    for network in networks:
        for port in (*network.reserved_ports, *network.dynamic_ports):
            yield port.label


def _service(
    faults: ErrorList,
    one: DeclaredService,
    labels: frozenset[str],
    tasks: frozenset[str],
    *,
    path: str,
) -> None:
    service = one.service
    if service.name and "${" not in service.name:
        is_label = len(service.name) <= NAME_MAX and _LABEL.fullmatch(service.name)
        if not is_label:
            text = "must be 1 to 63 letters, digits and hyphens, without a hyphen at either end"
            faults.add(f"{path}.Name", text)
    if service.provider not in PROVIDERS:
        faults.add(f"{path}.Provider", f"must be nomad or consul, was {service.provider[:80]!r}")
    _one_of(faults, f"{path}.OnUpdate", ON_UPDATE, service.on_update)
    if service.address_mode not in {"", "auto", "host"}:
        _unbuilt(faults, f"{path}.AddressMode", f"address_mode {service.address_mode[:80]!r}")
    if service.address and service.address_mode not in {"", "auto"}:
        faults.add(f"{path}.Address", "is only for address_mode auto")
    _port(faults, f"{path}.PortLabel", service.port_label, labels)
    if service.task_name and service.task_name not in tasks:
        faults.add(f"{path}.TaskName", f"the group has no task {service.task_name[:80]!r}")
    if len(service.checks) > CHECKS_MAX:
        text = f"{len(service.checks)} checks, at most {CHECKS_MAX} are allowed"
        faults.add(f"{path}.Checks", text)
        return
    for at, check in enumerate(service.checks):
        here = f"{path}.Checks[{at}]"
        _check(faults, one, check, labels, path=here)
        if check.task_name and check.task_name not in tasks:
            faults.add(f"{here}.TaskName", f"the group has no task {check.task_name[:80]!r}")
    if service.check_restart is not None and service.check_restart.limit < 0:
        faults.add(f"{path}.CheckRestart.Limit", "must not be negative")


def _check(
    faults: ErrorList,
    one: DeclaredService,
    check: Check,
    labels: frozenset[str],
    *,
    path: str,
) -> None:
    service, kind = one.service, check.type.lower()
    if kind not in CHECK_KINDS:
        _one_of(faults, f"{path}.Type", CHECK_KINDS, check.type)
    for name, value in (("Interval", check.interval_ns), ("Timeout", check.timeout_ns)):
        if not SECOND_NS <= value <= DAY_NS:
            faults.add(f"{path}.{name}", "must be set, from 1s to 24h")
    _one_of(faults, f"{path}.InitialStatus", STATUSES, check.initial_status)
    if check.address_mode not in {"", "auto", "host"}:
        _unbuilt(faults, f"{path}.AddressMode", f"address_mode {check.address_mode[:80]!r}")
    if kind == "script":
        if not check.command:
            faults.add(f"{path}.Command", "must be set for a check of type script")
        if not (one.task or check.task_name or service.task_name):
            faults.add(f"{path}.TaskName", "must name the task that the script runs in")
    elif not check.port_label and not service.port_label:
        faults.add(f"{path}.PortLabel", "must be set, here or in the service")
    _port(faults, f"{path}.PortLabel", check.port_label, labels)
    if kind == "http":
        _http(faults, check, path)
    _grpc(faults, check, path)
    _on_update(faults, service, check, path)


def _http(faults: ErrorList, check: Check, path: str) -> None:
    if not check.path:
        faults.add(f"{path}.Path", "must be set for a check of type http")
    elif "://" in check.path.partition("?")[0] or check.path.startswith("//"):
        faults.add(f"{path}.Path", "must be a path without scheme and host")
    elif _CONTROL.search(check.path) or " " in check.path:
        faults.add(f"{path}.Path", "must not have blanks or control characters")
    _one_of(faults, f"{path}.Protocol", ("", "http", "https"), check.protocol)
    if check.method and not _TOKEN.fullmatch(check.method):
        faults.add(f"{path}.Method", "is not an HTTP method")
    for name, texts in sorted(check.header.items()):
        if not _TOKEN.fullmatch(name) or any(_CONTROL.search(one) for one in texts):
            faults.add(f"{path}.Header", f"{name[:80]!r} is not an HTTP header")


def _grpc(faults: ErrorList, check: Check, path: str) -> None:
    if check.type.lower() != "grpc":
        for name, value in (
            ("GRPCService", check.grpc_service),
            ("GRPCUseTLS", check.grpc_use_tls),
        ):
            if value:
                faults.add(f"{path}.{name}", "is only for a check of type grpc")
    elif len(check.grpc_service) > GRPC_SERVICE_MAX or _CONTROL.search(check.grpc_service):
        text = f"must have at most {GRPC_SERVICE_MAX} characters and no control characters"
        faults.add(f"{path}.GRPCService", text)


def _on_update(faults: ErrorList, service: Service, check: Check, path: str) -> None:
    _one_of(faults, f"{path}.OnUpdate", ON_UPDATE, check.on_update)
    mode, again = check.on_update or service.on_update, check.check_restart or service.check_restart
    if again is None:
        return
    faults.within(path, ".CheckRestart.Limit", again.limit, (0, 1_000_000))
    faults.within_span(path, ".CheckRestart.Grace", again.grace_ns, (0, DAY_NS))
    if mode == "ignore" and again.limit:
        faults.add(f"{path}.OnUpdate", "ignore excludes check_restart; remove one of them")
    elif mode == "ignore_warnings" and again.limit and not again.ignore_warnings:
        faults.add(
            f"{path}.CheckRestart.IgnoreWarnings", "must be true when on_update is ignore_warnings"
        )


def _port(faults: ErrorList, path: str, label: str, labels: frozenset[str]) -> None:
    if not label or label in labels or "${" in label:
        return
    if label.isascii() and label.isdecimal():
        if not port_number(label):
            faults.add(path, f"must be 1 to {PORT_MAX}")
        return
    faults.add(path, f"no network of the group has a port {label[:80]!r}")


def _one_of(faults: ErrorList, path: str, known: tuple[str, ...], value: str) -> None:
    if value not in known:
        names = ", ".join(one for one in known if one)
        faults.add(path, f"must be one of {names}, was {value[:80]!r}")


def _unbuilt(faults: ErrorList, path: str, what: str) -> None:
    faults.add(path, f"{what} is not built yet")
