"""What the words of this run chose for all of it: context, moment (--at), log (--from-file). Imports nothing."""

#: Name of the context; empty: none was named.
_context = [""]
#: The moment that is asked about; empty: now.
_at = [""]
#: Folder of an export that is read instead of the bus; empty: none.
_from_file = [""]


def choose(context: str, at: str = "", from_file: str = "") -> None:
    """Note what --context, --at and --from-file say."""
    _context[0] = context
    _at[0] = at
    _from_file[0] = from_file


def context() -> str:
    """Say what --context said."""
    return _context[0]


def at() -> str:
    """Say what --at said."""
    return _at[0]


def from_file() -> str:
    """Say what --from-file said."""
    return _from_file[0]
