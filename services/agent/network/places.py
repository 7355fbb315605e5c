"""Where the network of an allocation is, and how its link is called.

Decides names alone. The bind mount `netns/<alloc>/net` below the data directory keeps the namespace alive without a
process in it, so that a killed agent loses nothing.
"""

from hashlib import blake2b
from pathlib import Path

from services.agent.tasks.task_resources import INTERFACE as INTERFACE  # noqa: PLC0414 - one name for both.
from shared.protocol.id_tokens import id_token

#: Of the links of groups on the node; the kernel takes 15 characters.
LINK_PREFIX = "cv"
_LINK_DIGITS = 12


class NetworkPlaces:
    """Paths of one allocation's network."""

    def __init__(self, top: Path, alloc_id: str) -> None:
        self.directory = top / "netns" / id_token(alloc_id)
        self.namespace = self.directory / "net"
        self.resolv_conf = self.directory / "resolv.conf"
        self.hosts = self.directory / "hosts"

    def etc(self) -> dict[str, str]:
        """Files of the group that its tasks see below /etc, by name there."""
        return {"resolv.conf": str(self.resolv_conf), "hosts": str(self.hosts)}


def namespace_of(run: Path) -> Path:
    """Path of the namespace that the group of a run has, by the run's directory: `runs/<alloc>/<task>/<run>`."""
    return run.parents[3] / "netns" / run.parents[1].name / "net"


def link_name(host_id: str, token: str) -> str:
    """Name of the node's end of a group's link, by the token of the allocation; two agents have other host ids."""
    digest = blake2b(f"{host_id} {token}".encode(), digest_size=_LINK_DIGITS // 2).hexdigest()
    return f"{LINK_PREFIX}{digest}"
