"""Host volumes on a node: what the operator's setting means, and when a volume is read only."""

from pathlib import Path
from typing import Any

import pytest

from schemas.nodes import Pool
from services.agent.drivers.driver import StartRefused
from services.agent.host_volumes import read_host_volumes
from shared.core.runtime.agent_messages import StartTask, TaskLaunch, VolumeBind
from shared.errors import ConfigInvalid
from tests.unit.agent.agent_story import Story, alloc, job_json, task_json


def test_the_setting_names_directories_and_attributes(tmp_path: Path) -> None:
    """`name=path[:ro]`; the path is resolved once."""
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    found = read_host_volumes(f"x={tmp_path}/link,y={tmp_path}/a:ro", str(tmp_path / "data"))
    assert found.attributes() == {"volume.x": "rw", "volume.y": "ro"}
    assert found.pools() == (Pool(name="volume.x", amount=10_000),)
    bind = VolumeBind(source="x", target="/d")
    (mount,) = found.resolved(TaskLaunch(volumes=(bind,))).volumes
    assert mount.path == str((tmp_path / "a").resolve())


@pytest.mark.parametrize(
    "text", ["a", "a=", "a=rel", "a=/none/such", "a=/tmp:rx", "a b=/tmp", "a=/tmp,a=/tmp"]
)
def test_a_setting_that_cannot_be_stops_the_agent(text: str, tmp_path: Path) -> None:
    """The message names the setting."""
    with pytest.raises(ConfigInvalid, match="HOST_VOLUMES"):
        read_host_volumes(text, str(tmp_path / "data"))


def test_no_volume_shows_the_agents_own_files(tmp_path: Path) -> None:
    """Neither the data directory, nor one above or below it."""
    data = tmp_path / "data"
    (data / "alloc").mkdir(parents=True)
    for path in (tmp_path, data, data / "alloc"):
        with pytest.raises(ConfigInvalid, match="data directory"):
            read_host_volumes(f"v={path}", str(data))


def test_a_start_without_its_volume_is_refused(tmp_path: Path) -> None:
    """Gone from the settings, or read only by now: for good; a missing directory may come back."""
    (tmp_path / "a").mkdir()
    found = read_host_volumes(f"x={tmp_path}/a:ro", str(tmp_path / "data"))

    def refusal(**fields: Any) -> StartRefused:
        launch = TaskLaunch(volumes=(VolumeBind(target="/d", **fields),))
        with pytest.raises(StartRefused) as raised:
            found.resolved(launch)
        return raised.value

    assert refusal(source="y").recoverable is False
    assert "read only" in str(refusal(source="x"))
    (tmp_path / "a").rmdir()
    assert refusal(source="x", read_only=True).recoverable is True


@pytest.mark.parametrize(("request_ro", "mount_ro"), [(False, False), (True, False), (False, True)])
def test_read_only_at_the_request_or_the_mount_is_read_only(
    *, request_ro: bool, mount_ro: bool
) -> None:
    """S70; the node's own word is the scheduler's filter and the check at the start."""
    mounts = [{"Volume": "v", "Destination": "data", "ReadOnly": mount_ro}]
    job = job_json(task_json(driver="exec", VolumeMounts=mounts))
    job["TaskGroups"][0]["Volumes"] = {
        "v": {"Name": "v", "Type": "host", "Source": "d", "ReadOnly": request_ro}
    }
    story = Story(job=job).hear(5, alloc())
    (start,) = story.did(StartTask)
    (found,) = start.launch.volumes
    expected = ("d", "/data", request_ro or mount_ro)
    assert (found.source, found.target, found.read_only) == expected


def test_a_volume_by_index_is_that_of_the_allocation() -> None:
    """S71: `data[2]` for index 2; propagation and label reach the driver."""
    mounts = [
        {
            "Volume": "v",
            "Destination": "data",
            "PropagationMode": "host-to-task",
            "SELinuxLabel": "z",
        }
    ]
    job = job_json(task_json(driver="exec", VolumeMounts=mounts))
    job["TaskGroups"][0]["Volumes"] = {
        "v": {"Name": "v", "Type": "host", "Source": "data", "PerAlloc": True}
    }
    story = Story(job=job).hear(5, alloc(index=2))
    (start,) = story.did(StartTask)
    (found,) = start.launch.volumes
    assert (found.source, found.propagation, found.label) == ("data[2]", "host-to-task", "z")
