"""Wiring of the keeper: settings, role, vault and key store. Run by `caravan run keeper`."""

import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from services.keeper.kek import (
    KekCommand,
    KekFile,
    KekSource,
    NextKek,
    NextKekCommand,
    NextKekFile,
)
from services.keeper.key_entries import BusEntries
from services.keeper.key_store import KeyStore
from services.keeper.role import Keeper
from services.keeper.vault import KeyVault
from shared.bus.process.runner import RoleSpec, run_services
from shared.bus.process.settings import RunSettings, new_instance, settings_from
from shared.bus.shell.shell import EffectHandler, Shell
from shared.errors import ConfigInvalid
from shared.protocol.identity_names import VAULT_AUDIENCE, VAULT_LIFE_S

_PREFIX = "CARAVAN_KEEPER_"
#: Name of the problem of a key store that cannot be used, in `/health`.
PROBLEM = "key_store"


class KeeperSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What only a keeper reads, from `CARAVAN_KEEPER_*`."""

    #: its folder, where the file `kek` is, and is made with a new cluster.
    dir: str = ""
    #: a command that prints the key-encryption key instead, such as a client of a key management service.
    kek_command: str = ""
    #: claim `iss` of identities: the address of a gateway that serves `/.well-known/openid-configuration`.
    oidc_issuer: str = ""
    #: of the identity with which tasks log in at Vault, where the job has none of its own.
    vault_aud: str = VAULT_AUDIENCE
    vault_ttl_s: int = VAULT_LIFE_S
    #: a command that prints the next key-encryption key, while one takes the place of the other.
    next_kek_command: str = ""


def kek_source(own: KeeperSettings) -> KekSource:
    """Say where the key-encryption key is. Raises ConfigInvalid."""
    if own.kek_command:
        return KekCommand(own.kek_command)
    if not own.dir:
        raise ConfigInvalid(
            f"{_PREFIX}DIR must be set: the key-encryption key is kept there; or {_PREFIX}KEK_COMMAND"
        )
    return KekFile(Path(own.dir))


def next_kek_source(own: KeeperSettings) -> NextKek | None:
    """Say where the next key-encryption key would be. Raises ConfigInvalid."""
    if own.next_kek_command:
        return NextKekCommand(own.next_kek_command)
    return NextKekFile(Path(own.dir)) if own.dir and not own.kek_command else None


def build(settings: RunSettings) -> RoleSpec:
    """Make the role from the environment. Raises ConfigInvalid."""
    own = settings_from(KeeperSettings, prefix=_PREFIX)
    kek, next_kek = kek_source(own), next_kek_source(own)

    def performers_of(shell: Shell) -> Mapping[type, EffectHandler]:
        entries = BusEntries(lambda: shell.bus, replicas=settings.replicas)
        vault = KeyVault(
            KeyStore(entries, kek, next_kek),
            lambda one: shell.inject([one]),
            lambda text: shell.problems.note(PROBLEM, text),
        )
        return vault.performers()

    return RoleSpec(
        role=Keeper(
            instance=new_instance("keeper"),
            issuer=own.oidc_issuer,
            vault_audience=own.vault_aud,
            vault_life_s=own.vault_ttl_s,
        ),
        performers_of=performers_of,
        settings=own,
        given={
            "issuer": own.oidc_issuer,
            "vault_audience": own.vault_aud,
            "vault_life_s": own.vault_ttl_s,
        },
    )


if __name__ == "__main__":
    sys.exit(run_services([build]))
