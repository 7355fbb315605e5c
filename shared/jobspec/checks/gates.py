"""Validation of the gates and windows of a job's update block, which are Caravan's own."""

import re

from schemas.base import SECOND_NS
from schemas.gates import GAUGE_CHARS_MAX, GAUGE_MAX, ON_TIMEOUTS
from schemas.jobs import SERVICE_JOB_TYPES
from shared.cron.instants import is_ever, time_zone
from shared.cron.spec import CronInvalid, parse_cron, reading
from shared.jobspec.checks.error_list import DURATION_NS_MAX, ErrorList
from shared.jobspec.nomad.job import JobSpec
from shared.jobspec.nomad.policies import GateBlock, UpdateStrategy, WindowBlock

GATES_MAX, WINDOWS_MAX = 10, 20
#: Gauges of the cluster itself.
BUILT_IN = re.compile(
    r"(cluster|pool\.[A-Za-z0-9_-]{1,128})\.(cpu|memory|disk)_held|queue\.(pending|blocked)"
)
_RESERVED = re.compile(r"(cluster|pool|queue)(\.|$)")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_GAUGE = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_KNOWN = "cluster.cpu_held, pool.NAME.memory_held, queue.pending and their like"


def check_gates(faults: ErrorList, job: JobSpec) -> None:
    """Find what is impossible in gates and windows, and those that no deployment reads."""
    for at, group in enumerate(job.groups):
        for name in _set_in(group.update):
            path = f"Job.TaskGroups[{at}].Update.{name}"
            faults.add(
                path, "is allowed in the update block of the job only: it holds all groups back"
            )
    names = _set_in(job.update)
    if job.update is None or not names:
        return
    if job.type not in SERVICE_JOB_TYPES:
        for name in names:
            faults.add(f"Job.Update.{name}", f"a {job.type} job has no deployments to hold")
        return
    gates, windows = job.update.gates or (), job.update.windows or ()
    if len(gates) > GATES_MAX:
        faults.add("Job.Update.Gates", f"at most {GATES_MAX} are allowed, was {len(gates)}")
    if len(windows) > WINDOWS_MAX:
        faults.add("Job.Update.Windows", f"at most {WINDOWS_MAX} are allowed, was {len(windows)}")
    seen: set[str] = set()
    for at, gate in enumerate(gates[:GATES_MAX]):
        path = f"Job.Update.Gates[{at}]"
        if gate.name in seen:
            faults.add(f"{path}.Name", f"{gate.name[:64]!r} names two gates")
        seen.add(gate.name)
        _gate(faults, gate, path)
    for at, window in enumerate(windows[:WINDOWS_MAX]):
        _window(faults, window, f"Job.Update.Windows[{at}]")


def _set_in(block: UpdateStrategy | None) -> list[str]:
    if block is None:
        return []
    found = (("Gates", block.gates), ("Windows", block.windows))
    return [name for name, value in found if value]


def _gate(faults: ErrorList, gate: GateBlock, path: str) -> None:
    if not _NAME.fullmatch(gate.name):
        faults.add(f"{path}.Name", "a gate needs a label of 1 to 64 letters, digits, - or _")
    if fault := gauge_error(gate.gauge):
        faults.add(f"{path}.Gauge", fault)
    if (gate.below is None) == (gate.above is None):
        faults.add(f"{path}.Below", "a gate has one bound: set below or above")
    bound = gate.below if gate.below is not None else gate.above
    if bound is not None and not -GAUGE_MAX <= bound <= GAUGE_MAX:
        name = "Below" if gate.below is not None else "Above"
        faults.add(f"{path}.{name}", f"must be -{GAUGE_MAX} to {GAUGE_MAX}, was {bound}")
    faults.within_span(path, ".For", gate.for_ns, (0, DURATION_NS_MAX))
    faults.within_span(path, ".Timeout", gate.timeout_ns, (0, DURATION_NS_MAX))
    if gate.on_timeout not in {None, "", *ON_TIMEOUTS}:
        text = f"must be one of {', '.join(ON_TIMEOUTS)}, was {(gate.on_timeout or '')[:80]!r}"
        faults.add(f"{path}.OnTimeout", text)
    elif gate.on_timeout in {"fail", "proceed"} and not gate.timeout_ns:
        faults.add(f"{path}.OnTimeout", "needs a timeout; set timeout")
    if gate.timeout_ns and gate.on_timeout != "wait" and gate.timeout_ns <= gate.for_ns:
        faults.add(f"{path}.Timeout", "must be longer than For, or the gate never opens")


def gauge_error(name: str) -> str:
    """Say why a gauge cannot have this name; empty: it can."""
    if not _GAUGE.fullmatch(name) or len(name) > GAUGE_CHARS_MAX:
        text = f"the name of a gauge is 1 to {GAUGE_CHARS_MAX} letters, digits, - and _, in parts"
        return f"{text} separated by dots, was {name[:80]!r}"
    if _RESERVED.match(name) and not BUILT_IN.fullmatch(name):
        return f"the cluster has no gauge {name[:80]!r}; it has {_KNOWN}"
    return ""


def _window(faults: ErrorList, window: WindowBlock, path: str) -> None:
    faults.within_span(path, ".Duration", window.duration_ns, (SECOND_NS, DURATION_NS_MAX))
    try:
        spec = parse_cron(window.cron)
        if not is_ever(spec):
            text = f"{window.cron[:80]!r} never matches a date; read as: {reading(spec)}"
            faults.add(f"{path}.Cron", text)
    except CronInvalid as fault:
        faults.add(f"{path}.Cron", f"{window.cron[:80]!r}: {fault}")
    try:
        time_zone(window.time_zone)
    except CronInvalid as fault:
        faults.add(f"{path}.TimeZone", str(fault))
