r"""Export of a keyring: every key of the store, unwrapped, in a file that a passphrase opens.

    caravan keyring 1\n
    {"n":131072,"r":8,"p":1,"salt":"…","nonce":"…"}\n
    AES-256-GCM(scrypt(passphrase, salt, n, r, p), JSON of `ExportedKeyring`) ‖ tag (16)

Additional data are the two lines. Who has the file and the passphrase has every value whose ciphertext it finds, so
it is made and read where the key-encryption key is, never over the bus. Nothing of a key is in an error.
"""

import hashlib
import os

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from schemas.variables import VariableLife
from services.keeper.kek import KekSource, KeyStoreFault, NextKek
from services.keeper.key_entries import KeyEntries
from services.keeper.wrapped_keys import (
    CHECK,
    DamagedEntry,
    PlainKey,
    WrappedKeys,
    all_entries,
    plain_name,
    unwrap,
    wrap,
)
from shared.errors import CaravanError
from shared.sealed_box import KEY_BYTES, NONCE_BYTES

_MAGIC = b"caravan keyring 1\n"
_SALT_BYTES = 16
#: 128 MiB and a tenth of a second or more for each guess.
_N, _R, _P = 1 << 17, 8, 1
#: What a file may ask for.
_N_MAX, _R_MAX, _P_MAX = 1 << 20, 16, 4
PASSPHRASE_CHARS_MIN = 12


class KeyringFileInvalid(CaravanError):
    """A file is no export of a keyring, or does not open with this passphrase; or the passphrase is too short."""


class ExportedKey(msgspec.Struct, frozen=True, omit_defaults=True):
    """One key by the name of its entry; of a data key also whose it is."""

    name: str
    key: bytes
    path: str = ""
    incarnation: int = 0

    def __repr__(self) -> str:
        """Show no key: the text may get into a traceback."""
        return f"ExportedKey({self.name!r})"


class ExportedKeyring(msgspec.Struct, frozen=True):
    """Every key of a cluster."""

    cluster_id: str
    keys: tuple[ExportedKey, ...]


class _Header(msgspec.Struct, frozen=True):
    n: int
    r: int
    p: int
    salt: bytes
    nonce: bytes


def seal_keyring(keyring: ExportedKeyring, passphrase: str, *, n: int = _N) -> bytes:
    """Content of the file. Raises KeyringFileInvalid: the passphrase is too short."""
    if len(passphrase) < PASSPHRASE_CHARS_MIN:
        text = f"the passphrase has {len(passphrase)} characters, at least {PASSPHRASE_CHARS_MIN} are required"
        raise KeyringFileInvalid(text)
    header = _Header(n, _R, _P, os.urandom(_SALT_BYTES), os.urandom(NONCE_BYTES))
    head = _MAGIC + msgspec.json.encode(header) + b"\n"
    cipher = AESGCM(_file_key(header, passphrase))
    return head + cipher.encrypt(header.nonce, msgspec.json.encode(keyring), head)


def open_keyring(content: bytes, passphrase: str) -> ExportedKeyring:
    """Open the content of a file. Raises KeyringFileInvalid."""
    if not content.startswith(_MAGIC):
        raise KeyringFileInvalid("this is no export of a keyring, or one of another release")
    line = content[len(_MAGIC) :].partition(b"\n")[0]
    head = _MAGIC + line + b"\n"
    try:
        header = msgspec.json.decode(line, type=_Header)
    except msgspec.MsgspecError:
        raise KeyringFileInvalid("the export of the keyring is damaged") from None
    is_bound = 1 < header.n <= _N_MAX and header.n & (header.n - 1) == 0
    if not is_bound or not 1 <= header.r <= _R_MAX or not 1 <= header.p <= _P_MAX:
        raise KeyringFileInvalid("the export of the keyring is damaged")
    try:
        cipher = AESGCM(_file_key(header, passphrase))
        plain = cipher.decrypt(header.nonce, content[len(head) :], head)
        return msgspec.json.decode(plain, type=ExportedKeyring)
    except (InvalidTag, ValueError, msgspec.MsgspecError):
        raise KeyringFileInvalid(
            "the passphrase is wrong, or the export of the keyring is damaged"
        ) from None


def _file_key(header: _Header, passphrase: str) -> bytes:
    n, r, p = header.n, header.r, header.p
    return hashlib.scrypt(
        passphrase.encode(),
        salt=header.salt,
        n=n,
        r=r,
        p=p,
        maxmem=256 * r * (n + p) + (1 << 20),
        dklen=KEY_BYTES,
    )


async def export_keys(
    entries: KeyEntries, kek: KekSource, next_kek: NextKek | None, cluster_id: str
) -> tuple[ExportedKeyring, int]:
    """Unwrap every key; also how many entries do not open. Raises KeyStoreFault, BusUnavailable."""
    store = WrappedKeys(entries, kek, next_kek)
    await store.open(cluster_id, may_create=False)
    names = sorted({plain_name(one.name) for one in await store.all()} - {CHECK})
    found: list[ExportedKey] = []
    damaged = 0
    for name in names:
        try:
            plain = await store.read(name)
        except DamagedEntry:
            damaged += 1
            continue
        if plain is not None:
            life = plain.life
            found.append(ExportedKey(name, plain.key, life.path, life.incarnation))
    return ExportedKeyring(cluster_id, tuple(found)), damaged


async def import_keys(
    entries: KeyEntries, kek: KekSource, keyring: ExportedKeyring, cluster_id: str
) -> int:
    """Write the keys of an export into a store that is missing or empty; returns how many they are.

    A run that was cut is begun again: the entry that makes the store one is written last. Raises KeyStoreFault,
    BusUnavailable.
    """
    if keyring.cluster_id != cluster_id:
        text = f"the export is of cluster {keyring.cluster_id}, this is cluster {cluster_id}"
        raise KeyStoreFault(text)
    is_there = await entries.is_there()
    known = await all_entries(entries) if is_there else []
    cipher = AESGCM(await kek.read(may_create=not known))
    wanted = {one.name: one for one in keyring.keys}
    for one in known:
        if one.name not in wanted or not _is_same(cipher, wanted[one.name], one.body):
            raise KeyStoreFault(
                "stream KEYS has keys: an export is only imported into an empty one"
            )
    if not is_there:
        await entries.make()
    for key in keyring.keys:
        plain = PlainKey(key.key, VariableLife(path=key.path, incarnation=key.incarnation))
        await _written(entries, cipher, key.name, plain)
    await _written(entries, cipher, CHECK, PlainKey(cluster_id.encode()))
    return len(keyring.keys)


async def _written(entries: KeyEntries, cipher: AESGCM, name: str, plain: PlainKey) -> None:
    """Write an entry, or find the same. Raises KeyStoreFault: another keeper wrote one."""
    if await entries.create(name, wrap(cipher, name, plain)):
        return
    found = await entries.find(name)
    try:
        is_same = found is not None and unwrap((cipher,), name, found.body) == plain
    except DamagedEntry:
        is_same = False
    if not is_same:
        raise KeyStoreFault("stream KEYS has got other keys meanwhile: stop the keepers first")


def _is_same(cipher: AESGCM, wanted: ExportedKey, body: bytes) -> bool:
    try:
        return unwrap((cipher,), wanted.name, body).key == wanted.key
    except DamagedEntry:
        return False
