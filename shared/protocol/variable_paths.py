"""Paths of variables, and how much one may hold: what clients, the keeper and the plan applier check alike.

The rule of paths is Nomad's: the top level `nomad` is reserved, but for what tasks read by their names.
"""

import re

PATH_CHARS_MAX = 128
REQUEST_ID_CHARS_MAX = 128
#: Names and texts of the items of one variable.
SIZE_BYTES_MAX = 65_536
#: The same encrypted, as JSON.
CIPHER_BYTES_MAX = 70_000
#: Names and texts of all variables together.
TOTAL_SIZE_BYTES_MAX = 64 << 20
#: Puts of one path within a span: each stays in the log.
PUTS_MAX = 10
PUTS_SPAN_NS = 60_000_000_000
#: Paths that are locked, or may not be locked yet.
LOCKS_MAX = 10_000
#: How long a lock may live without a renewal, and how long a path stays free behind one that has expired.
TTL_NS = (10_000_000_000, 86_400_000_000_000)
DELAY_NS = (0, 86_400_000_000_000)
#: Of an X25519 key.
PUBLIC_KEY_BYTES = 32
#: Lives that one fact tells to be shredded.
LIVES_MAX = 500
_PATH = re.compile(rf"[A-Za-z0-9\-_~/]{{1,{PATH_CHARS_MAX}}}")
_JOBS, _TEMPLATES = "jobs", "job-templates"


def path_fault(path: str) -> str:
    """Say why a path cannot name a variable; empty: it can."""
    if not path:
        return "a variable requires a path"
    if not _PATH.fullmatch(path):
        shown = f"path {path[:80]!r}: "
        if len(path) > PATH_CHARS_MAX:
            return f"{shown}{len(path)} characters, at most {PATH_CHARS_MAX} are allowed"
        return f"{shown}only letters of ASCII, digits and -_~/ are allowed"
    parts = path.split("/")
    if "" in parts:
        return f"path {path!r}: no segment may be empty, no slash may begin or end it"
    if parts[0] != "nomad" or (len(parts) > 1 and parts[1] == _JOBS):
        return ""
    if len(parts) > 1 and parts[1] == _TEMPLATES:
        return "" if len(parts) == 3 else f"path {path!r}: only nomad/job-templates/NAME is allowed"
    return f"path {path!r} is reserved: below nomad only jobs and job-templates are allowed"
