"""The options of driver qemu: a virtual machine as an isolated process. An allow-list, as in `exec.py`.

Decides what a job may ask for at all. Arguments of the emulator can open any file and device: only those that the
operator names pass, on the node (services/agent/drivers/exec_settings.py). The image is a file of the allocation.
"""

import posixpath
import re
from typing import Any

import msgspec

from shared.jobspec.drivers.options import Json, Option, OptionFault, by_name, nearest, read_options

#: Every option that is acted on.
OPTIONS = by_name(
    Option("image_path", "text", "the disk image, below the task's or the allocation's directory"),
    Option("accelerator", "text", "tcg (default), or kvm where the node has it"),
    Option("drive_interface", "text", "ide (default), scsi, sd, mtd, floppy, pflash, virtio, none"),
    Option("args", "list", "arguments of the emulator, of those the operator allows"),
    Option("port_map", "numbers", "label = port inside, forwarded from the group's port"),
)
NEVER = {
    "emulator": "the operator's choice, not a job's",
    "guest_agent": "is not given to a task yet",
    "graceful_shutdown": "is not given to a task yet: the emulator gets the kill signal",
}
ACCELERATORS = ("tcg", "kvm")
DRIVES = ("ide", "scsi", "sd", "mtd", "floppy", "pflash", "virtio", "none")
_NO_OPTION = re.compile(r"[,\0]")


class QemuOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a task asks for."""

    image_path: str = ""
    accelerator: str = "tcg"
    drive_interface: str = "ide"
    args: tuple[str, ...] = ()
    port_map: dict[str, int] = {}


def read_qemu(config: Json) -> tuple[QemuOptions, tuple[OptionFault, ...]]:
    """Read the options. Faults, if any, stand beside what could be read."""
    values, faults = read_options(config, OPTIONS, NEVER)
    faults += _image(config, values)
    for name, known in (("accelerator", ACCELERATORS), ("drive_interface", DRIVES)):
        value = values.get(name, known[0])
        if "${" not in value and value not in known:
            text = f"must be one of {', '.join(known)}, was {value[:40]!r}"
            faults.append(OptionFault(name, text + nearest(value, list(known))))
    for label, port in sorted(values.get("port_map", {}).items()):
        if not 0 < port < 65_536:
            faults.append(OptionFault(f"port_map.{label[:40]}", f"must be a port, was {port}"))
    return QemuOptions(**values), tuple(faults)


def _image(config: Json, values: dict[str, Any]) -> list[OptionFault]:
    if not config.get("image_path"):
        return [OptionFault("image_path", "must name a disk image")]
    path = values.get("image_path", "")
    if _NO_OPTION.search(path):
        # A comma begins an option of -drive.
        return [OptionFault("image_path", "must hold no comma")]
    if ".." in path.split("/") or posixpath.normpath(path).startswith("-"):
        return [OptionFault("image_path", "must be below the task's directory")]
    return []
