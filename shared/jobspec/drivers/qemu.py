"""The options of driver qemu: a virtual machine as an isolated process. An allow-list, as in `exec.py`.

Arguments of the emulator can open any file and device: the node passes only those that its operator names
(services/agent/drivers/exec/settings.py). The image is a file of the allocation.
"""

import posixpath
import re
from typing import Any

import msgspec

from shared.jobspec.drivers.options import (
    PORT_BOUNDS,
    Option,
    OptionDiagnostic,
    OptionValues,
    option_table,
    read_options,
)

#: Every option that is acted on.
OPTIONS = option_table(
    Option("image_path", "text", "the disk image, below the task's or the allocation's directory"),
    Option("accelerator", "text", "tcg (default), or kvm where the node has it", ("tcg", "kvm")),
    Option(
        "drive_interface",
        "text",
        "ide (default), scsi, sd, mtd, floppy, pflash, virtio, none",
        ("ide", "scsi", "sd", "mtd", "floppy", "pflash", "virtio", "none"),
    ),
    Option("args", "list", "arguments of the emulator, of those the operator allows"),
    Option(
        "port_map",
        "numbers",
        "label = port inside, forwarded from the group's port",
        bounds=PORT_BOUNDS,
    ),
)
REFUSED_OPTIONS = {
    "emulator": "is the node operator's setting, not a job's",
    "guest_agent": "is not supported yet",
    "graceful_shutdown": "is not supported yet; the emulator gets the kill signal",
}
_OPTION_SEPARATOR = re.compile(r"[,\0]")


class QemuOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a task."""

    image_path: str = ""
    accelerator: str = "tcg"
    drive_interface: str = "ide"
    args: tuple[str, ...] = ()
    port_map: dict[str, int] = {}


def read_qemu(config: OptionValues) -> tuple[QemuOptions, tuple[OptionDiagnostic, ...]]:
    """Read the options: those that are valid, and all errors."""
    values, faults = read_options(config, OPTIONS, REFUSED_OPTIONS)
    faults += _image(config, values)
    return QemuOptions(**values), tuple(faults)


def _image(config: OptionValues, values: dict[str, Any]) -> list[OptionDiagnostic]:
    if not config.get("image_path"):
        return [OptionDiagnostic("image_path", "must name a disk image")]
    path = values.get("image_path", "")
    if _OPTION_SEPARATOR.search(path):
        # A comma begins an option of -drive.
        return [OptionDiagnostic("image_path", "must not contain a comma")]
    if ".." in path.split("/") or posixpath.normpath(path).startswith("-"):
        return [OptionDiagnostic("image_path", "must be below the task's directory")]
    return []
