"""What the words of this run chose for all of it: the context of --context. Imports nothing."""

#: Name of the context; empty: none was named.
_context = [""]


def choose(context: str) -> None:
    """Note what --context says."""
    _context[0] = context


def context() -> str:
    """Say what --context said."""
    return _context[0]
