"""Dead letters: what could not be understood, kept for seven days so that a person can look and try again."""

from schemas.base import Wire

#: Of a longer body only the beginning is kept.
BODY_BYTES_MAX = 65_536


class DeadLetter(Wire, frozen=True, kw_only=True):
    """A message that did not decode or validate."""

    subject: str
    reason: str
    #: wall clock of the role that gave it up.
    at_ns: int
    #: the first BODY_BYTES_MAX bytes.
    body_base64: str = ""
    #: who gave it up: role and instance.
    role: str = ""
    instance: str = ""
