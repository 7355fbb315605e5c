"""Names in identities of tasks, as in Nomad: `keeper` signs them, the gateway and agents know them."""

#: Of the block without a name; its audience is this cluster.
DEFAULT_IDENTITY = "default"
DEFAULT_AUDIENCE = "nomadproject.io"
REGION = "global"
NAMESPACE = "default"


def identity_context(cluster_id: str, alloc_id: str, task: str, name: str) -> tuple[str, ...]:
    """Return the context in which a token is sealed for its node (shared/sealed_box.py)."""
    return ("identity", cluster_id, alloc_id, task, name)
