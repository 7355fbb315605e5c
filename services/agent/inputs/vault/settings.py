"""What an operator says of Vault, from `CARAVAN_AGENT_VAULT_*`."""

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from shared.bus.process.settings import settings_from
from shared.errors import ConfigInvalid
from shared.jobspec.drivers.switches import VAULT_ATTRIBUTE

PREFIX = "CARAVAN_AGENT_VAULT_"


class VaultSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where tasks of this node log in; without an address no task that needs Vault is placed here."""

    #: `https://vault.example:8200`; jobs cannot choose another one.
    addr: str = ""
    #: of blocks that name none; empty: the root namespace.
    namespace: str = ""
    #: PEM file with the authorities that may sign the server's certificate; empty: those of the machine.
    cacert: str = ""
    #: mount of the auth method that accepts identities of tasks.
    jwt_path: str = "jwt-nomad"
    #: of blocks that name none; empty: the default role of the auth method.
    role: str = ""

    def attributes(self) -> dict[str, str]:
        """Node attributes: that tasks can use Vault here."""
        return {VAULT_ATTRIBUTE: "true"} if self.addr else {}


def vault_settings(environ: Mapping[str, str]) -> VaultSettings:
    """Read the settings. Raises ConfigInvalid."""
    found = settings_from(VaultSettings, environ, prefix=PREFIX)
    if not found.addr:
        return found
    _check_address(found.addr)
    if found.cacert and not Path(found.cacert).is_file():
        raise ConfigInvalid(f"{PREFIX}CACERT is {found.cacert!r}, which is not a file")
    path = found.jwt_path.strip("/")
    if not path or not path.isprintable() or any(one in path for one in " ?#%"):
        text = f"{PREFIX}JWT_PATH is {found.jwt_path!r}, it must be the path of an auth mount"
        raise ConfigInvalid(text)
    return msgspec.structs.replace(found, addr=found.addr.rstrip("/"), jwt_path=path)


def _check_address(text: str) -> None:
    try:
        parts = urlsplit(text)
        is_valid = parts.scheme in {"http", "https"} and bool(parts.hostname)
        is_bare = parts.path in {"", "/"} and not (parts.query or parts.fragment or parts.username)
        _ = parts.port
    except ValueError:
        is_valid = is_bare = False
    if not (is_valid and is_bare and text.isprintable()):
        raise ConfigInvalid(f"{PREFIX}ADDR is {text!r}, it must be like https://vault.example:8200")
