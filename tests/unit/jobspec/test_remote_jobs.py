"""Jobs whose tasks run elsewhere: what needs a file of the node is refused, with the path of the block."""

from typing import Any

import pytest

from shared.jobspec.plugin_drivers import check_plugin_drivers
from tests.unit.jobspec.test_plugin_drivers import SCHEMA, errors, nodes, submitted

TASK = "Job.TaskGroups[0].Tasks[0]"
SCRIPT = {"Type": "script", "Command": "/x", "Interval": 10**10, "Timeout": 10**9}


@pytest.mark.parametrize(
    ("task", "group", "path"),
    [
        ({"Artifacts": [{"GetterSource": "https://x.test/a"}]}, {}, f"{TASK}.Artifacts[0]"),
        ({"Templates": [{"EmbeddedTmpl": "x", "DestPath": "local/x"}]}, {}, f"{TASK}.Templates[0]"),
        (
            {"VolumeMounts": [{"Volume": "v", "Destination": "/data"}]},
            {"Volumes": {"v": {"Name": "v", "Type": "host", "Source": "data"}}},
            f"{TASK}.VolumeMounts[0]",
        ),
        (
            {"Services": [{"Name": "s", "Checks": [{"Name": "c", **SCRIPT}]}]},
            {},
            f"{TASK}.Services[0].Checks[0]",
        ),
        (
            {},
            {"Services": [{"Name": "s", "Checks": [{"Name": "c", "TaskName": "main", **SCRIPT}]}]},
            "Job.TaskGroups[0].Services[0].Checks[0]",
        ),
        ({}, {"Networks": [{"Mode": "bridge"}]}, "Job.TaskGroups[0].Networks[0].Mode"),
        ({"Resources": {"Cores": 1}}, {}, f"{TASK}.Resources.Cores"),
    ],
)
def test_what_needs_the_node_is_refused(
    task: dict[str, Any], group: dict[str, Any], path: str
) -> None:
    """A driver that runs tasks elsewhere takes no files, scripts, networks and cores of the node."""
    job = submitted({"image": "a"}, task=task, **group)
    (found,) = errors(job, nodes(SCHEMA, capabilities="remote"))
    assert found[0] == path
    assert "runs tasks elsewhere" in found[1]


def test_a_plain_remote_task_is_accepted() -> None:
    """Options, variables and resources are all that a remote task needs."""
    job = submitted({"image": "a"}, task={"Env": {"A": "b"}})
    assert check_plugin_drivers(job, nodes(SCHEMA, capabilities="remote")) == job
