"""Names in identities of tasks, as in Nomad: `keeper` signs them, the gateway and agents know them."""

#: Of the block without a name; its audience is this cluster.
DEFAULT_IDENTITY = "default"
DEFAULT_AUDIENCE = "nomadproject.io"
#: What the name of a service's identity begins with, where its block has none: service and port follow.
SERVICE_PREFIX = "service_"
#: With which a task logs in at Vault; the keeper's settings give its audience and life where the job does not.
VAULT_IDENTITY = "vault_default"
VAULT_AUDIENCE = "vault.io"
VAULT_LIFE_S = 3_600
REGION = "global"
NAMESPACE = "default"


def identity_context(cluster_id: str, alloc_id: str, task: str, name: str) -> tuple[str, ...]:
    """Return the context in which a token is sealed for its node (shared/sealed_box.py)."""
    return ("identity", cluster_id, alloc_id, task, name)
