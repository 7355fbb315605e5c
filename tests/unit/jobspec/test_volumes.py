"""Volumes: what a job may mount, and what of them the scheduler filters nodes by."""

import json
from typing import Any

import pytest

from shared.jobspec.checks.volumes import destination_error
from shared.jobspec.files.load import load_file
from shared.jobspec.submission import read_submission

JOB = (
    'job "a" {\n group "g" {\n%s\n  task "t" {\n   driver = "%s"\n   config { command = "/bin/true" }\n'
    "%s\n  }\n }\n}\n"
)
VOLUME = 'volume "v" {\n type = "host"\n source = "data"\n%s\n}'
MOUNT = 'volume_mount {\n volume = "v"\n destination = "/data"\n%s\n}'


def faults(
    volume: str = VOLUME % "", mount: str = MOUNT % "", driver: str = "exec"
) -> list[tuple[str, str]]:
    """Faults of a job: field and message; each has its line."""
    found = load_file((JOB % (volume, driver, mount)).encode(), "a.nomad.hcl").errors
    assert all(one.line for one in found), found
    return [((one.path or "").rpartition(".")[2], one.message) for one in found]


def test_a_host_volume_and_its_mount_are_accepted() -> None:
    """By drivers that can mount."""
    assert faults() == []
    assert faults(driver="java", mount=MOUNT % "read_only = true") == faults(
        driver="java", mount=""
    )


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"mount": MOUNT.replace('"v"', '"other"') % ""}, "Volume"),
        ({"mount": MOUNT % 'propagation_mode = "x"'}, "PropagationMode"),
        ({"mount": MOUNT % 'selinux_label = "q"'}, "SELinuxLabel"),
        ({"mount": MOUNT.replace("/data", "/data/../..") % ""}, "Destination"),
        ({"mount": MOUNT.replace("/data", "/proc/x") % ""}, "Destination"),
        ({"mount": MOUNT % "" + "\n" + MOUNT % ""}, "Destination"),
        ({"volume": VOLUME.replace('"data"', '"a b"') % ""}, "Source"),
        ({"driver": "raw_exec"}, "VolumeMounts"),
    ],
)
def test_mounts_that_cannot_be_are_faults(more: dict[str, Any], field: str) -> None:
    """S69: undeclared, wrong propagation or label, a place that is taken, a driver without mounts."""
    found = faults(**more)
    assert field in {one for one, _ in found}, found


@pytest.mark.parametrize(
    ("volume", "word"),
    [
        (
            VOLUME.replace('"host"', '"csi"')
            % 'access_mode = "single-node-writer"\n attachment_mode = "file-system"',
            "csi is not built",
        ),
        (VOLUME % "sticky = true", "sticky is not built"),
        (VOLUME % "per_alloc = true", "per_alloc is not built"),
        (VOLUME % 'access_mode = "single-node-writer"', "access_mode is not built"),
    ],
)
def test_what_is_not_built_of_volumes_is_refused(volume: str, word: str) -> None:
    """With the line of the block; nothing is accepted in silence."""
    assert any(word in message for _, message in faults(volume=volume))


def test_propagation_and_labels_beside_the_defaults_are_refused() -> None:
    """Nomad knows them; they are not built."""
    assert "not built" in faults(mount=MOUNT % 'propagation_mode = "bidirectional"')[0][1]
    assert "not built" in faults(mount=MOUNT % 'selinux_label = "z"')[0][1]


@pytest.mark.parametrize("text", ["", "/", "/alloc", "local", "/a/../..", "/dev/x", "/${x}", "a\n"])
def test_places_that_are_taken(text: str) -> None:
    """The task's own directories and the kernel's file systems."""
    assert destination_error(text)
    assert not destination_error("data/x")


def test_nodes_are_filtered_by_the_volumes_they_have() -> None:
    """S72: one that is written to needs `rw`; one that is read needs to be there."""
    groups = [
        {
            "Name": "g",
            "Volumes": {"v": {"Name": "v", "Type": "host", "Source": "data", "ReadOnly": is_ro}},
            "Tasks": [{"Name": "t", "Driver": "exec", "Config": {"command": "x"}}],
        }
        for is_ro in (False, True)
    ]
    found = [
        read_submission(json.dumps({"Job": {"ID": "a", "TaskGroups": [one]}}).encode(), "submit")
        for one in groups
    ]
    rules = [
        (one.left, one.operator, one.right) for job in found for one in job.groups[0].constraints
    ]
    assert rules == [("${attr.volume.data}", "=", "rw"), ("${attr.volume.data}", "is_set", "")]
