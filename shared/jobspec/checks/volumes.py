"""Validation of volumes and their mounts: host volumes that an operator offers; what else Nomad has is refused."""

from posixpath import normpath

from shared.jobspec.checks.error_list import ErrorList
from shared.jobspec.drivers.registry import DRIVERS, driver_traits
from shared.jobspec.nomad.job import TaskGroup, TaskSpec
from shared.jobspec.nomad.placement import VolumeMount, VolumeRequest

PROPAGATIONS = ("", "private", "host-to-task", "bidirectional")
SELINUX_LABELS = ("", "z", "Z")
MOUNTS_MAX = 64
_PATH_CHARS_MAX = 1_024
#: What a task has there already, and what is the kernel's.
_TAKEN = ("/", "/alloc", "/local", "/secrets", "/tmp", "/dev", "/proc", "/sys", "/etc")  # noqa: S108
_KERNELS = ("/dev/", "/proc/", "/sys/")


def check_volumes(faults: ErrorList, group: TaskGroup, path: str) -> None:
    """Check the mounts of a group's tasks against its volumes."""
    for name in sorted(group.volumes):
        here = f"{path}.Volumes[{name[:60]}]"
        if group.volumes[name].type == "csi":
            faults.add(f"{here}.Type", "csi is not built yet; use a host volume")
        elif text := _source_error(group.volumes[name]):
            faults.add(f"{here}.Source", text)
    for at, task in enumerate(group.tasks):
        _mounts(faults, group, task, f"{path}.Tasks[{at}]")


def _source_error(volume: VolumeRequest) -> str:
    plain = volume.source.replace("-", "").replace("_", "")
    if volume.source and not (plain.isalnum() and plain.isascii() and len(volume.source) <= 128):
        return "the name of a host volume must be 1 to 128 letters, digits, - and _"
    return ""


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


def destination_error(text: str) -> str:
    """Say why nothing can be mounted there; empty: it can."""
    if not text:
        return "is required"
    if len(text) > _PATH_CHARS_MAX or not text.isprintable() or "${" in text:
        return f"at most {_PATH_CHARS_MAX} printable characters are allowed, and no ${{…}}"
    if ".." in text.split("/"):
        return f"{text[:80]!r} must not contain .."
    place = mount_place(text)
    if place in _TAKEN or place.startswith(_KERNELS):
        return f"{place[:80]!r} is reserved for the task's own directories or the kernel"
    return ""


def mount_place(destination: str) -> str:
    """Where a mount is in the task: always from its root."""
    return normpath("/" + destination.lstrip("/"))
