"""The drivers that stand on driver exec: what works on this node is found out once, and one starter serves all.

Decides which of them there are. A driver that is off stays in the list: what it runs from an earlier life is adopted.
"""

from pathlib import Path

import structlog

from services.agent.drivers.driver import Driver
from services.agent.drivers.exec import Exec
from services.agent.drivers.exec_settings import ExecSettings
from services.agent.drivers.java import Java
from services.agent.drivers.qemu import Qemu

_log = structlog.get_logger()


def isolated(home: Path, kernel_boot: str, settings: ExecSettings) -> list[Driver]:
    """Make them; none when the operator turned them off."""
    if not settings.enabled:
        return []
    first = Exec(home=home, kernel_boot=kernel_boot, settings=settings)
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
        for kind in (Java, Qemu)
    ]
    return [first, *others]
