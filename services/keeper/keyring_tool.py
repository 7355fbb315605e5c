"""Work on the key store beside the keeper, on its machine: with its settings, its login and its folder.

`caravan operator keyring rewrap`, `export` and `import` run this; nothing of a key is in what it returns.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from services.keeper.__main__ import KeeperSettings, kek_source, next_kek_source
from services.keeper.kek import NEXT_NAME, KeyStoreFault, NextKekFile
from services.keeper.key_entries import BusEntries
from services.keeper.keyring_file import (
    KeyringFileInvalid,
    export_keys,
    import_keys,
    open_keyring,
    seal_keyring,
)
from services.keeper.rewrap import Rewrapped, rewrap
from shared.bus.connection.nats_client import Login, connect
from shared.bus.process.settings import RunSettings
from shared.bus.server import accounts
from shared.errors import ConfigInvalid

T = TypeVar("T")
_USER = "keeper"
FILE_BYTES_MAX = 512 << 20


class KeyringPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a keyring is: the settings of its keeper. `cluster_id`: whose it must be."""

    run: RunSettings
    keeper: KeeperSettings
    cluster_id: str


class ExportedFile(msgspec.Struct, frozen=True):
    """What an export has. `damaged`: entries that do not open, and are not in it."""

    keys: int
    damaged: int


def rewrap_keyring(place: KeyringPlace) -> Rewrapped:
    """Wrap every key by the next KEK, which then takes over. Raises KeyStoreFault, BusUnavailable, ConfigInvalid."""

    async def work(entries: BusEntries) -> Rewrapped:
        following = next_kek_source(place.keeper)
        if following is None:
            text = "CARAVAN_KEEPER_NEXT_KEK_COMMAND must be set beside CARAVAN_KEEPER_KEK_COMMAND"
            raise ConfigInvalid(text)
        key = await following.read_next()
        if key is None:
            text = f"{Path(place.keeper.dir) / NEXT_NAME} is missing: `keyring rewrap --prepare` makes it"
            raise KeyStoreFault(text)
        present = await kek_source(place.keeper).read(may_create=False)
        done = await rewrap(entries, present, key)
        following.take_over()
        return done

    return asyncio.run(_with_entries(place, work))


def prepare_next_kek(place: KeyringPlace) -> Path:
    """Make the next KEK, unless it is there; returns its file. Raises KeyStoreFault, ConfigInvalid."""
    if place.keeper.kek_command or place.keeper.next_kek_command:
        raise ConfigInvalid("the key-encryption key comes from a command: have that make the next")
    kek_source(place.keeper)
    folder = Path(place.keeper.dir)
    asyncio.run(NextKekFile(folder).make())
    return folder / NEXT_NAME


def export_keyring(place: KeyringPlace, file: Path, passphrase: str) -> ExportedFile:
    """Write every key into a new file of its owner alone.

    Raises KeyStoreFault, BusUnavailable, ConfigInvalid, KeyringFileInvalid, OSError.
    """

    async def work(entries: BusEntries) -> ExportedFile:
        kek, following = kek_source(place.keeper), next_kek_source(place.keeper)
        keyring, damaged = await export_keys(entries, kek, following, place.cluster_id)
        _write_new(file, seal_keyring(keyring, passphrase))
        return ExportedFile(len(keyring.keys), damaged)

    return asyncio.run(_with_entries(place, work))


def import_keyring(place: KeyringPlace, file: Path, passphrase: str) -> int:
    """Write the keys of a file into an empty key store; returns how many.

    Raises KeyStoreFault, BusUnavailable, ConfigInvalid, KeyringFileInvalid, OSError.
    """
    if file.stat().st_size > FILE_BYTES_MAX:
        raise KeyringFileInvalid("this is no export of a keyring: it is too large")
    keyring = open_keyring(file.read_bytes(), passphrase)

    async def work(entries: BusEntries) -> int:
        return await import_keys(entries, kek_source(place.keeper), keyring, place.cluster_id)

    return asyncio.run(_with_entries(place, work))


async def _with_entries(place: KeyringPlace, work: Callable[[BusEntries], Awaitable[T]]) -> T:
    """Connect with the keeper's login and do the work."""
    run = place.run
    user, password = run.nats_user, run.nats_password
    if run.credentials:
        user, password = accounts.read_credentials(Path(run.credentials)).login(_USER)
    client = await connect(Login(url=run.nats_url, user=user, password=password))
    try:
        return await work(BusEntries(lambda: client, replicas=run.replicas))
    finally:
        await client.end()


def _write_new(file: Path, content: bytes) -> None:
    """Write a file, durable, that must not exist."""
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
