"""Jobs whose driver is a program of the operator are checked by what the registered nodes say of it."""

import json
from typing import Any

import pytest

from shared.core.state.node_attributes import AttributeColumns
from shared.jobspec.plugin_drivers import check_plugin_drivers
from shared.jobspec.submission import JobInvalid, ParsedSubmission, read_submission

SCHEMA = {
    "type": "object",
    "properties": {"image": {"type": "string"}},
    "required": ["image"],
    "additionalProperties": False,
}
NEWER = {**SCHEMA, "properties": {"image": {"type": "string"}, "size": {"type": "integer"}}}


def nodes(*schemas: Any, capabilities: str = "exec") -> AttributeColumns:
    """Nodes that have the driver toy, each with its schema."""
    found = AttributeColumns()
    for row, schema in enumerate(schemas):
        text = schema if isinstance(schema, str) else json.dumps(schema)
        said = {"": "1", ".schema": text, ".capabilities": capabilities}
        found.set_row(row, {f"attr.driver.toy{name}": value for name, value in said.items()})
    return found


def submitted(config: dict[str, Any], *, driver: str = "toy", **group: Any) -> ParsedSubmission:
    """A job with one task of the driver."""
    task = {"Name": "main", "Driver": driver, "Config": config, **group.pop("task", {})}
    job = {"ID": "j", "TaskGroups": [{"Name": "g", "Tasks": [task], **group}]}
    return read_submission(json.dumps({"Job": job}).encode(), "submit")


def errors(submission: ParsedSubmission, columns: AttributeColumns) -> list[tuple[str, str]]:
    """Paths and texts of the faults."""
    with pytest.raises(JobInvalid) as err:
        check_plugin_drivers(submission, columns)
    return [(one.path, one.message) for one in err.value.errors]


def test_options_are_checked_at_submission() -> None:
    """The schema that a node registered is the door's: a fault has the path of the option."""
    good = submitted({"image": "a"})
    assert check_plugin_drivers(good, nodes(SCHEMA)) == good
    path = "Job.TaskGroups[0].Tasks[0].Config"
    assert errors(submitted({"imag": "a"}), nodes(SCHEMA)) == [
        (f"{path}.imag", "unknown option 'imag' (did you mean image?)"),
        (f"{path}.image", "is required"),
    ]


def test_one_schema_of_several_is_enough() -> None:
    """While nodes have different versions of a driver, options that one of them takes are valid."""
    job = submitted({"image": "a", "size": 1})
    assert check_plugin_drivers(job, nodes(SCHEMA, NEWER)) == job
    assert errors(job, nodes(SCHEMA))


def test_a_schema_that_is_none_stops_nothing() -> None:
    """A node may say anything: what is no schema is skipped, and its agent checks again."""
    job = submitted({"image": "a"})
    assert check_plugin_drivers(job, nodes("{", '{"oneOf": []}')) == job


@pytest.mark.parametrize(("driver", "hint"), [("rkt", ""), ("dokcer", " (did you mean docker?)")])
def test_a_driver_that_no_node_offers_is_waited_for(driver: str, hint: str) -> None:
    """The job is accepted with a warning, which names the nearest built-in driver."""
    found = check_plugin_drivers(submitted({}, driver=driver), nodes(SCHEMA))
    text = f"no node offers driver {driver!r}{hint}: its tasks wait for a node that does"
    assert found.warnings == (text,)


def test_what_a_driver_cannot_do_is_refused() -> None:
    """Volumes, and a network of none, need a driver that declares them."""
    mount = {"VolumeMounts": [{"Volume": "v", "Destination": "/v"}]}
    volumes = {"v": {"Name": "v", "Type": "host", "Source": "data"}}
    networks = [{"Mode": "none"}]
    job = submitted({"image": "a"}, task=mount, Volumes=volumes, Networks=networks)
    assert errors(job, nodes(SCHEMA)) == [
        ("Job.TaskGroups[0].Tasks[0].VolumeMounts", "driver toy cannot mount volumes"),
        (
            "Job.TaskGroups[0].Networks[0].Mode",
            "task 'main' uses toy, which cannot run a task without a network",
        ),
    ]
    able = nodes(SCHEMA, capabilities="mounts,no_network")
    assert check_plugin_drivers(job, able) == job


def test_built_in_drivers_are_not_asked_for() -> None:
    """A node cannot change what the built-in drivers take."""
    columns = AttributeColumns()
    columns.set_row(0, {"attr.driver.exec": "1", "attr.driver.exec.schema": json.dumps(SCHEMA)})
    job = submitted({"command": "/bin/true"}, driver="exec")
    assert check_plugin_drivers(job, columns) is job
