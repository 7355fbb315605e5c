"""Claims that an identity block adds to its tokens, with references to what the allocation is.

They stand in a token below one claim, `extra_claims`: who binds rights to a token sees which claims the job's author
chose.
"""

import re
from collections.abc import Mapping

#: Names of references; `service.name` is empty but in identities of services, `task.name` in these.
REFERENCES = (
    *("job.region", "job.namespace", "job.id", "job.node_pool", "group.name", "task.name"),
    *("service.name", "alloc.id", "node.id", "node.datacenter", "node.pool", "node.class"),
)
CLAIM = "extra_claims"
CLAIMS_MAX = 16
#: Of all claims of a block as JSON, before references are filled in.
CLAIMS_BYTES_MAX = 2 * 1024
#: In all claims of a block: each is at most the name of a job.
REFERENCES_MAX = 16
_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,64}")
_REFERENCE = re.compile(r"\$\{\s*([^}]*?)\s*\}")
#: One that does not end is a slip.
_OPEN = "${"


def claim_name_error(name: str) -> str:
    """Say what is wrong with the name of a claim; empty: nothing."""
    if _NAME.fullmatch(name):
        return ""
    return f"the name of a claim must be 1 to 64 letters, digits and _.:/-, was {name[:80]!r}"


def claim_text_error(text: str) -> str:
    """Say what is wrong with the text of a claim; empty: nothing."""
    if not text.isprintable():
        return "must have printable characters alone"
    for name in _REFERENCE.findall(text):
        if name not in REFERENCES:
            return f"${{{name[:80]}}} is none of {', '.join(REFERENCES)}"
    if _OPEN in _REFERENCE.sub("", text):
        return "a reference does not end"
    return ""


def count_references(text: str) -> int:
    """Count the references of a text."""
    return len(_REFERENCE.findall(text))


def filled_claims(claims: Mapping[str, str], values: Mapping[str, str]) -> dict[str, str]:
    """Return claims with their references filled in; an unknown one is empty."""
    return {
        name: _REFERENCE.sub(lambda found: values.get(found.group(1), ""), text)
        for name, text in claims.items()
    }
