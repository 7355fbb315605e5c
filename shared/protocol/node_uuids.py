"""The UUID of a node for clients of Nomad, whose ids of nodes are UUIDs: of the gateway and of the task API.

Ours are free text. The UUID is a hash of the id, so it never changes.
"""

from functools import lru_cache
from hashlib import blake2b

_NODES_MAX = 200_000


@lru_cache(maxsize=_NODES_MAX)
def node_uuid(node_id: str) -> str:
    """The UUID under which a node is shown."""
    text = blake2b(node_id.encode(), digest_size=16, person=b"caravan.node").hexdigest()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
