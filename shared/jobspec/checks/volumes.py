"""Validation of volumes and their mounts: host volumes that an operator offers; what else Nomad has is refused.

The requests themselves: `volume_requests.py`.
"""

from posixpath import normpath

from shared.jobspec.checks.error_list import ErrorList
from shared.jobspec.checks.volume_requests import check_requests
from shared.jobspec.drivers.registry import DRIVERS, driver_traits
from shared.jobspec.nomad.job import JobSpec, TaskGroup, TaskSpec
from shared.jobspec.nomad.placement import VolumeMount

PROPAGATIONS = ("", "private", "host-to-task", "bidirectional")
SELINUX_LABELS = ("", "z", "Z")
MOUNTS_MAX = 64
_PATH_CHARS_MAX = 1_024
#: What a task has there already, and what is the kernel's.
_TAKEN = ("/", "/alloc", "/local", "/secrets", "/tmp", "/dev", "/proc", "/sys", "/etc")  # noqa: S108
_KERNELS = ("/dev/", "/proc/", "/sys/")
#: What a destination may refer to, and where that is in a task that has a view of its own.
_DIRECTORIES = {
    "${NOMAD_TASK_DIR}": "/local",
    "${NOMAD_ALLOC_DIR}": "/alloc",
    "${NOMAD_SECRETS_DIR}": "/secrets",
}


def check_volumes(faults: ErrorList, job: JobSpec, group: TaskGroup, path: str) -> None:
    """Check a group's volumes, and the mounts of its tasks against them."""
    check_requests(faults, job, group, path)
    for at, task in enumerate(group.tasks):
        _mounts(faults, group, task, f"{path}.Tasks[{at}]")


def _mounts(faults: ErrorList, group: TaskGroup, task: TaskSpec, path: str) -> None:
    if len(task.volume_mounts) > MOUNTS_MAX:
        faults.add(f"{path}.VolumeMounts", f"at most {MOUNTS_MAX} mounts are allowed")
        return
    if task.volume_mounts and not driver_traits(task.driver).has_mounts:
        *others, last = [name for name, traits in DRIVERS.items() if traits.has_mounts]
        text = f"driver {task.driver} cannot mount; {', '.join(others)} and {last} can"
        faults.add(f"{path}.VolumeMounts", text)
    seen: set[str] = set()
    for at, one in enumerate(task.volume_mounts):
        here = f"{path}.VolumeMounts[{at}]"
        _mount(faults, group, one, here)
        _mount_rights(faults, group, task.driver, one, path=here)
        place = mount_place(one.destination)
        if place in seen:
            faults.add(f"{here}.Destination", f"{place[:80]!r} has another volume already")
        seen.add(place)


def _mount(faults: ErrorList, group: TaskGroup, one: VolumeMount, path: str) -> None:
    volume = group.volumes.get(one.volume)
    if volume is None:
        faults.add(f"{path}.Volume", f"the group has no volume {one.volume[:80]!r}")
    if one.propagation_mode not in PROPAGATIONS:
        known = ", ".join(PROPAGATIONS[1:])
        faults.add(
            f"{path}.PropagationMode", f"must be one of {known}, was {one.propagation_mode[:40]!r}"
        )
    if one.selinux_label not in SELINUX_LABELS:
        faults.add(f"{path}.SELinuxLabel", f"must be z or Z, was {one.selinux_label[:40]!r}")
    if text := destination_error(one.destination):
        faults.add(f"{path}.Destination", text)


def _mount_rights(
    faults: ErrorList, group: TaskGroup, driver: str, one: VolumeMount, *, path: str
) -> None:
    """Check what only some drivers can do for a mount."""
    traits = driver_traits(driver)
    mode = one.propagation_mode
    volume = group.volumes.get(one.volume)
    if mode in PROPAGATIONS[2:]:
        if mode not in traits.propagations:
            faults.add(f"{path}.PropagationMode", f"{mode} is not built for driver {driver}")
        elif one.read_only or (volume is not None and volume.read_only):
            text = f"{mode} is not built for a read-only mount: what is mounted later would be writable"
            faults.add(f"{path}.PropagationMode", text)
    if one.selinux_label in SELINUX_LABELS[1:] and not traits.has_labels:
        faults.add(f"{path}.SELinuxLabel", f"driver {driver} does not label mounts; docker does")


def destination_error(text: str) -> str:
    """Say why nothing can be mounted there; empty: it can."""
    if not text:
        return "is required"
    if len(text) > _PATH_CHARS_MAX or not text.isprintable():
        return f"at most {_PATH_CHARS_MAX} printable characters are allowed"
    if "${" in mount_place(text):
        return f"may begin with {', '.join(_DIRECTORIES)}, and refer to nothing else"
    if ".." in text.split("/"):
        return f"{text[:80]!r} must not contain .."
    place = mount_place(text)
    if place in _TAKEN or place.startswith(_KERNELS):
        return f"{place[:80]!r} is reserved for the task's own directories or the kernel"
    return ""


def mount_place(destination: str) -> str:
    """Where a mount is in the task: always from its root, or below a directory that it begins with."""
    for reference, directory in _DIRECTORIES.items():
        if destination == reference or destination.startswith(f"{reference}/"):
            destination = directory + destination.removeprefix(reference)
    return normpath("/" + destination.lstrip("/"))
