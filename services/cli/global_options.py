"""Options of every command: --context, --at and --from-file; when it began. Imports nothing of this tree."""

import time

#: Name of the context; empty: none given.
_context = [""]
#: The moment of the state; empty: now.
_at = [""]
#: Folder of an export to read instead of the bus; empty: none.
_from_file = [""]


def set_global_options(context: str, at: str = "", from_file: str = "") -> None:
    """Set the values for this run."""
    _context[0] = context
    _at[0] = at
    _from_file[0] = from_file


def context_name() -> str:
    """Value of --context."""
    return _context[0]


def at_position() -> str:
    """Value of --at."""
    return _at[0]


def export_dir() -> str:
    """Value of --from-file."""
    return _from_file[0]


#: The command waits for commits.
_follows_commits = [False]


def set_follows_commits(value: bool) -> None:  # noqa: FBT001 - a fact about the command.
    """Set whether the command of this run waits for commits."""
    _follows_commits[0] = value


def follows_commits() -> bool:
    """Whether the command of this run waits for commits."""
    return _follows_commits[0]


#: When the command of this run began, of the monotonic clock.
_began_s = [time.monotonic()]


def begin() -> None:
    """Note that a command begins."""
    _began_s[0] = time.monotonic()


def began_s() -> float:
    """When the command of this run began, of the monotonic clock."""
    return _began_s[0]
