"""Drivers that are programs of a node's operator: which attributes offer them, and what a job that names one must be.

Decides from the attributes of the registered nodes. A job whose driver is offered nowhere is accepted with a warning,
and waits for a node, as any job does whose constraints no node meets. Next: `drivers/config_schema.py`.
"""

from collections.abc import Iterator

import msgspec

from schemas.jobs import ErrorDetail
from shared.core.state.node_attributes import AttributeColumns
from shared.jobspec.checks.error_list import ERRORS_MAX
from shared.jobspec.drivers.config_schema import (
    SchemaRefused,
    driver_attribute,
    fit_config,
    read_schema,
)
from shared.jobspec.drivers.options import OptionDiagnostic, suggest
from shared.jobspec.drivers.registry import DRIVERS
from shared.jobspec.nomad.job import JobSpec, TaskGroup, TaskSpec
from shared.jobspec.remote_jobs import remote_faults
from shared.jobspec.submission import JobInvalid, ParsedSubmission

_NAMES_MAX = 20


def check_plugin_drivers(submission: ParsedSubmission, nodes: AttributeColumns) -> ParsedSubmission:
    """Check the tasks whose driver is not built in; warns of drivers that no node offers. Raises JobInvalid."""
    job = submission.job
    if job is None:
        if not submission.together:
            return submission
        parts = tuple([check_plugin_drivers(one, nodes) for one in submission.together])
        return msgspec.structs.replace(submission, together=parts)
    if not any(task.driver not in DRIVERS for group in job.groups for task in group.tasks):
        return submission
    errors = tuple(_errors(job, nodes))[:ERRORS_MAX]
    if errors:
        raise JobInvalid(errors)
    warnings = (*submission.warnings, *_warnings(job, nodes))
    return msgspec.structs.replace(submission, warnings=warnings)


def _errors(job: JobSpec, nodes: AttributeColumns) -> Iterator[ErrorDetail]:
    for at, group in enumerate(job.groups):
        for number, task in enumerate(group.tasks):
            if task.driver in DRIVERS or not _is_offered(task.driver, nodes):
                continue
            path = f"Job.TaskGroups[{at}].Tasks[{number}]"
            for where, text in _option_faults(task, nodes):
                here = f"{path}.Config.{where}" if where else f"{path}.Config"
                yield ErrorDetail(code="invalid", message=text, path=here)
            if "remote" in _capabilities(task, nodes):
                faults = remote_faults(group, task, f"Job.TaskGroups[{at}]", number)
                for here, text in faults:
                    yield ErrorDetail(code="invalid", message=text, path=here)
                continue
            for field, text in _lacks(group, task, nodes):
                here = (
                    f"{path}.{field}"
                    if field != "Mode"
                    else f"Job.TaskGroups[{at}].Networks[0].Mode"
                )
                yield ErrorDetail(code="invalid", message=text, path=here)


def _values(driver: str, name: str, nodes: AttributeColumns) -> list[str]:
    """List the values that an attribute of a driver has, on any node."""
    return sorted({one for one in nodes.values(f"attr.{driver_attribute(driver, name)}") if one})


def _is_offered(driver: str, nodes: AttributeColumns) -> bool:
    return bool(_values(driver, "", nodes))


def _option_faults(task: TaskSpec, nodes: AttributeColumns) -> tuple[OptionDiagnostic, ...]:
    """Check options by each schema that a node has for the driver; without a fault by one they are valid."""
    config = msgspec.json.decode(task.config)
    least: tuple[OptionDiagnostic, ...] | None = None
    for text in _values(task.driver, "schema", nodes):
        try:
            schema = read_schema(text)
        except SchemaRefused:
            # A node may say anything; its agent checks again.
            continue
        _, faults = fit_config(schema, config)
        if not faults:
            return ()
        if least is None or len(faults) < len(least):
            least = faults
    return least or ()


def _capabilities(task: TaskSpec, nodes: AttributeColumns) -> set[str]:
    found = _values(task.driver, "capabilities", nodes)
    return {word for text in found for word in text.split(",")}


def _lacks(group: TaskGroup, task: TaskSpec, nodes: AttributeColumns) -> Iterator[tuple[str, str]]:
    """Say what a task asks for that its driver can do on no node: the field, and why."""
    can = _capabilities(task, nodes)
    if task.volume_mounts and "mounts" not in can:
        yield "VolumeMounts", f"driver {task.driver} cannot mount volumes"
    if group.networks and group.networks[0].mode == "none" and "no_network" not in can:
        text = f"task {task.name!r} uses {task.driver}, which cannot run a task without a network"
        yield "Mode", text


def _warnings(job: JobSpec, nodes: AttributeColumns) -> Iterator[str]:
    drivers = sorted({task.driver for group in job.groups for task in group.tasks} - DRIVERS.keys())
    for driver in [one for one in drivers if not _is_offered(one, nodes)][:_NAMES_MAX]:
        text = f"no node offers driver {driver!r}{suggest(driver, sorted(DRIVERS))}"
        yield f"{text}: its tasks wait for a node that does"
