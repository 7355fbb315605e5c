"""What keeps a service from its work though it runs: logged when it begins and ends, shown by `/health`.

Independent of what a role does about it.
"""

import structlog

log = structlog.get_logger()

#: Name of the problem of a bus that cannot write.
STORAGE = "storage"
#: Name of the problem of a bus on which nothing can be committed.
BUS = "bus"


def bus_gauges(servers: int, current: int, blocked_s: float) -> dict[str, float]:
    """Servers of the bus, those that hold everything, and for how long nothing can be committed."""
    return {
        "caravan_shell_bus_servers": float(servers),
        "caravan_shell_bus_servers_current": float(current),
        "caravan_shell_bus_blocked_seconds": blocked_s,
    }


class Problems:
    """Problems by name, each with a sentence for people."""

    def __init__(self) -> None:
        self.by_name: dict[str, str] = {}
        #: what an operator should know although the service works, a sentence each.
        self.alarms: tuple[str, ...] = ()
        #: of the bus, as last looked at (`shared/bus/log/bus_watch.py`).
        self.bus_gauges = bus_gauges(0, 0, 0.0)

    def note(self, name: str, text: str) -> None:
        """Begin, change or, with an empty text, end a problem."""
        if text == self.by_name.get(name, ""):
            return
        if text:
            self.by_name[name] = text
            log.error("problem.began", problem=name, reason=text)
        else:
            del self.by_name[name]
            log.info("problem.ended", problem=name)
