"""Short forms that users of Nomad type: words that stand for those of a command, before anything else reads them."""

import re
from collections.abc import Sequence

#: First word -> the words of the command.
SHORT_FORMS: dict[str, tuple[str, ...]] = {
    "plan": ("job", "plan"),
    "stop": ("job", "stop"),
    "validate": ("job", "validate"),
    "inspect": ("job", "inspect"),
    "init": ("job", "init"),
    "logs": ("job", "logs"),
    "exec": ("alloc", "exec"),
    "action": ("job", "action"),
    "fs": ("alloc", "fs"),
    "alloc-status": ("alloc", "status"),
    "eval-status": ("eval", "status"),
    "node-status": ("node", "status"),
    "node-drain": ("node", "drain"),
}
_RUN, _RUN_JOB = "run", ("job", "run")
#: What `caravan run` starts; anything else behind it is a job file or an option of `job run`.
_ROLES = re.compile(r"[a-z_]+(,[a-z_]+)*")
_HELP = frozenset(("-h", "--help"))


def expand(words: Sequence[str]) -> list[str]:
    """Put the words of the command in place of a short form."""
    if not words:
        return []
    first, rest = words[0], list(words[1:])
    if first == _RUN and rest and rest[0] not in _HELP and not _ROLES.fullmatch(rest[0]):
        return [*_RUN_JOB, *rest]
    return [*SHORT_FORMS.get(first, (first,)), *rest]
