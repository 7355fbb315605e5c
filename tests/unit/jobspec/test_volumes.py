"""Volumes: what a job may mount, and what of them the scheduler filters nodes by."""

import json
from typing import Any

import pytest

from schemas.jobs import ResourceAsk
from shared.jobspec.checks.volumes import destination_error, mount_place
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
        ({"mount": MOUNT.replace("/data", "${meta.a}/x") % ""}, "Destination"),
        ({"mount": MOUNT.replace("/data", "/x/${NOMAD_TASK_DIR}") % ""}, "Destination"),
        ({"mount": MOUNT.replace("/data", "${NOMAD_SECRETS_DIR}") % ""}, "Destination"),
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
    ("destination", "place"),
    [
        ("${NOMAD_TASK_DIR}/a", "/local/a"),
        ("${NOMAD_ALLOC_DIR}/a/", "/alloc/a"),
        ("${NOMAD_SECRETS_DIR}/x/y", "/secrets/x/y"),
        ("data", "/data"),
    ],
)
def test_a_destination_may_be_below_a_directory_of_the_task(destination: str, place: str) -> None:
    """References to the three directories mean their places inside, for every driver that mounts."""
    assert faults(mount=MOUNT.replace("/data", destination) % "") == []
    assert mount_place(destination) == place


@pytest.mark.parametrize(
    ("volume", "word"),
    [
        (
            VOLUME.replace('"host"', '"csi"')
            % 'access_mode = "single-node-writer"\n attachment_mode = "file-system"',
            "csi is not built",
        ),
        (VOLUME.replace('"host"', '"nfs"') % "", "host or csi"),
        (VOLUME % 'access_mode = "multi-node-multi-writer"', "must be one of single-node-reader"),
        (VOLUME % 'access_mode = "single-node-reader-only"', "needs read_only"),
        (VOLUME % 'access_mode = "single-node-writer"\nread_only = true', "contradicts"),
        (VOLUME % 'access_mode = "single-node-single-writer"\nread_only = true', "contradicts"),
        (VOLUME % 'attachment_mode = "block-device"', "block-device is not built"),
        (VOLUME % 'attachment_mode = "x"', "must be file-system"),
        (
            VOLUME % 'per_alloc = true\naccess_mode = "single-node-single-writer"',
            "not built with access_mode",
        ),
        (VOLUME % "per_alloc = true\nsticky = true", "cannot be combined with sticky"),
        (VOLUME.replace('"data"', '"data[1]"') % "per_alloc = true", "adds the index itself"),
        (VOLUME % "per_alloc = true" + "\nupdate { canary = 1 }", "excludes per_alloc"),
    ],
)
def test_what_cannot_be_of_volumes_is_refused(volume: str, word: str) -> None:
    """S71, and access modes that contradict: with the line of the block; nothing is accepted in silence."""
    assert any(word in message for _, message in faults(volume=volume))


def test_a_system_job_has_no_volume_by_index() -> None:
    """S71."""
    text = JOB % (VOLUME % "per_alloc = true", "exec", MOUNT % "")
    text = text.replace('job "a" {', 'job "a" {\n type = "system"')
    found = load_file(text.encode(), "a.nomad.hcl").errors
    assert any("system job has no indexes" in one.message for one in found), found


@pytest.mark.parametrize(
    "volume",
    [
        VOLUME % 'access_mode = "single-node-reader-only"\nread_only = true',
        VOLUME % 'access_mode = "single-node-writer"\nattachment_mode = "file-system"',
        VOLUME % 'access_mode = "single-node-single-writer"',
        VOLUME % 'access_mode = "single-node-multi-writer"',
        VOLUME % "per_alloc = true",
        VOLUME.replace('"data"', '"data[1]"') % "",
    ],
)
def test_access_modes_and_volumes_by_index_are_accepted(volume: str) -> None:
    """Those of one node."""
    assert faults(volume=volume) == []


@pytest.mark.parametrize(
    ("driver", "mount", "word"),
    [
        ("docker", MOUNT % 'propagation_mode = "bidirectional"\nselinux_label = "Z"', ""),
        ("exec", MOUNT % 'propagation_mode = "host-to-task"', ""),
        ("exec", MOUNT % 'propagation_mode = "bidirectional"', "not built for driver exec"),
        ("exec", MOUNT % 'selinux_label = "z"', "does not label"),
        ("docker", MOUNT % 'read_only = true\npropagation_mode = "host-to-task"', "read-only"),
    ],
)
def test_propagation_and_labels_are_for_drivers_that_can(
    driver: str, mount: str, word: str
) -> None:
    """What a driver cannot do is refused with the field."""
    config = {"docker": 'config { image = "x" }', "exec": 'config { command = "/bin/true" }'}
    text = JOB % (VOLUME % "", driver, mount)
    text = text.replace(config["exec"], config[driver])
    found = [one.message for one in load_file(text.encode(), "a.nomad.hcl").errors]
    assert (not found) if not word else any(word in one for one in found), found


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
    held = [job.groups[0].alternatives for job in found]
    assert held == [((ResourceAsk(pool="volume.data", amount=1),),), ()]
    rules = [
        (one.left, one.operator, one.right) for job in found for one in job.groups[0].constraints
    ]
    assert rules == [("${attr.volume.data}", "=", "rw"), ("${attr.volume.data}", "is_set", "")]
