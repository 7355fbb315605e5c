"""Validation of the volumes that a group requests: their names, access modes, and volumes of single allocations.

Mounts of them: `volumes.py`. Types, and canaries beside per_alloc: `policies.py`.
"""

from schemas.jobs import SYSTEM_JOB_TYPES
from shared.jobspec.checks.error_list import ErrorList
from shared.jobspec.nomad.job import JobSpec, TaskGroup
from shared.jobspec.nomad.placement import VolumeRequest

READER = "single-node-reader-only"
WRITER = "single-node-writer"
SINGLE_WRITER = "single-node-single-writer"
MULTI_WRITER = "single-node-multi-writer"
ACCESS_MODES = (READER, WRITER, SINGLE_WRITER, MULTI_WRITER)
NAME_MAX = 128


def check_requests(faults: ErrorList, job: JobSpec, group: TaskGroup, path: str) -> None:
    """Check the volume blocks of a group."""
    for name in sorted(group.volumes):
        volume, here = group.volumes[name], f"{path}.Volumes[{name[:60]}]"
        if volume.type == "csi":
            faults.add(f"{here}.Type", "csi is not built yet; use a host volume")
            continue
        if text := _source_error(volume):
            faults.add(f"{here}.Source", text)
        _access(faults, volume, here)
        _of_one_allocation(faults, job, volume, here)


def volume_name_error(name: str) -> str:
    """Say what is wrong with the name of a host volume; empty: nothing."""
    plain = name.replace("-", "").replace("_", "")
    if plain.isalnum() and plain.isascii() and len(name) <= NAME_MAX:
        return ""
    return f"the name of a host volume must be 1 to {NAME_MAX} letters, digits, - and _"


def _source_error(volume: VolumeRequest) -> str:
    base, bracket, index = volume.source.partition("[")
    is_indexed = bracket and index[-1:] == "]" and index[:-1].isdecimal() and index.isascii()
    if is_indexed and volume.per_alloc:
        return "per_alloc adds the index itself; give the source without it"
    return volume_name_error(base if is_indexed else volume.source) if volume.source else ""


def _access(faults: ErrorList, volume: VolumeRequest, here: str) -> None:
    mode = volume.access_mode
    if mode and mode not in ACCESS_MODES:
        known = ", ".join(ACCESS_MODES)
        text = f"must be one of {known} for a host volume, was {mode[:40]!r}"
        faults.add(f"{here}.AccessMode", text)
    if mode == READER and not volume.read_only:
        faults.add(f"{here}.AccessMode", f"{READER} needs read_only = true")
    if mode in (WRITER, SINGLE_WRITER) and volume.read_only:
        faults.add(f"{here}.AccessMode", f"{mode} contradicts read_only = true")
    if volume.attachment_mode == "block-device":
        text = "block-device is not built for host volumes; use file-system"
        faults.add(f"{here}.AttachmentMode", text)
    elif volume.attachment_mode not in ("", "file-system"):
        text = f"must be file-system, was {volume.attachment_mode[:40]!r}"
        faults.add(f"{here}.AttachmentMode", text)


def _of_one_allocation(faults: ErrorList, job: JobSpec, volume: VolumeRequest, here: str) -> None:
    """Check what cannot be where the volume depends on the index of an allocation."""
    for field, is_set in (("PerAlloc", volume.per_alloc), ("Sticky", volume.sticky)):
        if is_set and job.type in SYSTEM_JOB_TYPES:
            faults.add(f"{here}.{field}", f"a {job.type} job has no indexes of its own")
    if not volume.per_alloc:
        return
    if volume.sticky:
        faults.add(f"{here}.PerAlloc", "cannot be combined with sticky")
    if volume.access_mode == SINGLE_WRITER:
        faults.add(f"{here}.PerAlloc", f"is not built with access_mode {SINGLE_WRITER}")
