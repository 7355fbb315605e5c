"""The header `traceparent` of W3C Trace Context: which span of which trace sent a message."""

import re

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")


def parent_span(text: str) -> tuple[str, str] | None:
    """Ids of the trace and of the span that a header names; None: it names none."""
    found = _TRACEPARENT.fullmatch(text)
    if found is None or not found[1].strip("0") or not found[2].strip("0"):
        return None
    return found[1], found[2]
