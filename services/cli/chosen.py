"""What the words of this run chose for all of it: the context of --context, the moment of --at. Imports nothing."""

#: Name of the context; empty: none was named.
_context = [""]
#: The moment that is asked about; empty: now.
_at = [""]


def choose(context: str, at: str = "") -> None:
    """Note what --context and --at say."""
    _context[0] = context
    _at[0] = at


def context() -> str:
    """Say what --context said."""
    return _context[0]


def at() -> str:
    """Say what --at said."""
    return _at[0]
