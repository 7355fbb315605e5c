"""What keeps a service from its work though it runs: logged when it begins and ends, shown by `/health`.

Independent of what a role does about it.
"""

import structlog

log = structlog.get_logger()

#: Name of the problem of a bus that cannot write.
STORAGE = "storage"


class Problems:
    """Problems by name, each with a sentence for people."""

    def __init__(self) -> None:
        self.by_name: dict[str, str] = {}

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
