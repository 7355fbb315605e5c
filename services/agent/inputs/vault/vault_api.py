"""What the agent asks of Vault, and the answers: the interface of `client.py`."""

from typing import NamedTuple, Protocol

from services.agent.inputs.vault.settings import VaultSettings
from shared.errors import CaravanError
from shared.gotemplate.data import VaultSecret


class VaultUnavailable(CaravanError):
    """There is no answer now: no connection, sealed, a standby, overloaded."""


class VaultRefused(CaravanError):
    """Vault says no: `status` is that of HTTP."""

    def __init__(self, reason: str, status: int) -> None:
        super().__init__(reason)
        self.status = status


class VaultToken(NamedTuple):
    """A token as its task gets it. `life_s` 0: it does not expire."""

    token: str
    life_s: int
    is_renewable: bool


class TaskLogin(NamedTuple):
    """What a task reads secrets with."""

    token: str
    namespace: str


class VaultLease(NamedTuple):
    """How long a secret is still worth something."""

    life_s: int
    is_renewable: bool


class VaultServer(Protocol):
    """Vault, as its client offers it. Each method raises VaultUnavailable and VaultRefused."""

    settings: VaultSettings

    async def login(self, jwt: str, *, role: str, namespace: str) -> VaultToken:
        """Log in with an identity."""
        ...

    async def renew(self, token: str, *, namespace: str, increment_s: int) -> VaultToken:
        """Lengthen the life of a token."""
        ...

    async def read(self, token: str, path: str, *, namespace: str) -> VaultSecret | None:
        """Read a secret; None: there is none."""
        ...

    async def list(self, token: str, path: str, *, namespace: str) -> tuple[str, ...]:
        """List the names below a path."""
        ...

    async def renew_lease(
        self, token: str, lease_id: str, *, namespace: str, increment_s: int
    ) -> VaultLease:
        """Lengthen the lease of a secret."""
        ...

    def close(self) -> None:
        """End the connections."""
        ...
