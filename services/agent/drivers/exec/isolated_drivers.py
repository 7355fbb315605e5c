"""Drivers built on driver exec: the node's isolation is probed once, and one starter serves all.

A driver that is off stays in the list: what it runs from an earlier life is adopted.
"""

from pathlib import Path

import structlog

from services.agent.drivers.driver import Driver
from services.agent.drivers.exec.driver import ExecDriver
from services.agent.drivers.exec.java import JavaDriver
from services.agent.drivers.exec.qemu import QemuDriver
from services.agent.drivers.exec.settings import ExecSettings

_log = structlog.get_logger()


def isolated_drivers(home: Path, kernel_boot: str, settings: ExecSettings) -> list[Driver]:
    """Make them; none when the operator turned them off."""
    if not settings.enabled:
        return []
    first = ExecDriver(home=home, kernel_boot=kernel_boot, settings=settings)
    if why := first.offer.off():
        _log.info("exec.off", reason=why)
    others = [
        kind(
            home=home,
            kernel_boot=kernel_boot,
            settings=settings,
            found=first.found,
            starter=first.starter,
        )
        for kind in (JavaDriver, QemuDriver)
    ]
    return [first, *others]
