"""The vault: performs what the keeper's role asks for with keys and plain items, which never leave it.

Decides nothing about variables. Each effect is a task of its own, so that requests wait for none but their own keys,
and is answered once, also after errors (shared/core/runtime/keeper_messages.py has the promises). Nothing of a key, an
item or its name is in an answer, an error or a log line; of an error that is not expected only its type is logged,
since a traceback may show values.

    cipher = nonce (12) ‖ AES-256-GCM(data key of the life, canonical items) ‖ tag (16)
    its additional data: cluster_id, path, incarnation, request_id, each behind its length (shared/sealed_box.py)
    digest = HMAC-SHA-256(digest key, canonical items), the first 32 hex digits

A token of an identity exists here and on its node alone: it leaves the vault sealed (shared/identity_tokens.py).
"""

import asyncio
import hashlib
import hmac
import os
import uuid
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

import msgspec
import structlog
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from schemas.variables import VariableLife
from services.keeper.kek import KeyStoreFault, KeyStoreReplaced
from services.keeper.key_store import OpenedKeys, SealingPair
from services.keeper.signing_keys import lost_key
from shared.bus.shell.shell import EffectHandler
from shared.core.runtime import keeper_messages as k
from shared.errors import BusUnavailable, CommandInvalid
from shared.identity_tokens import sign_token
from shared.protocol.identity_names import identity_context
from shared.protocol.variable_items import decode_items, encode_items, items_size
from shared.sealed_box import NONCE_BYTES, SealedBoxInvalid, context_bytes, open_box, seal

_PAUSE_S, _PAUSE_S_MAX = 0.2, 5.0
_DIGEST_DIGITS = 32
log = structlog.get_logger()

Report = k.VaultAnswer


class Keys(Protocol):
    """The key store, as `key_store.KeyStore` has it."""

    async def open(self, cluster_id: str, *, may_create: bool) -> OpenedKeys:
        """Raises KeyStoreFault; BusUnavailable: try again."""
        ...

    async def data_key(self, life: VariableLife, *, may_create: bool) -> bytes | None:
        """Return the key of a life, durable; None: there is none. Raises KeyStoreFault, BusUnavailable."""
        ...

    async def erase(self, lives: tuple[VariableLife, ...]) -> None:
        """Erase the keys of lives. Raises BusUnavailable: perhaps some are left."""
        ...

    async def make_signing_key(self, known: tuple[str, ...]) -> k.StoredSigningKey:
        """Return a key that signs identities and is not `known`, durable. Raises KeyStoreFault, BusUnavailable."""
        ...

    async def signing_key(self, key_id: str) -> RSAPrivateKey | None:
        """Return a key that signs; None: there is none. Raises KeyStoreFault, BusUnavailable."""
        ...

    async def erase_signing_keys(self, key_ids: tuple[str, ...]) -> None:
        """Erase keys that signed. Raises BusUnavailable: perhaps some are left."""
        ...

    async def new_sealing_key(self, known: tuple[str, ...]) -> SealingPair:
        """Return a sealing key that is not `known`, durable. Raises KeyStoreFault, BusUnavailable."""
        ...

    async def check(
        self, superseded: tuple[str, ...]
    ) -> tuple[tuple[str, ...], tuple[VariableLife, ...]]:
        """Erase old sealing keys; return those that are left, and whose data keys there are. Raises as above."""
        ...


class Refused(Exception):
    """What was asked for is answered by VaultFailed."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


class KeyVault:
    """Performs the effects of one keeper.

    `inject` hands its role an answer; `note` takes what keeps the vault from opening, empty once it is open.
    """

    def __init__(
        self,
        keys: Keys,
        inject: Callable[[Report], None],
        note: Callable[[str], None] = lambda _: None,
        *,
        pause_s: float = _PAUSE_S,
    ) -> None:
        self._keys = keys
        self._inject = inject
        self._note = note
        self._pause_s = pause_s
        self._opened: OpenedKeys | None = None
        #: the key that signed last, so that not every token reads it.
        self._signer: tuple[str, RSAPrivateKey] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def performers(self) -> Mapping[type, EffectHandler]:
        """Return what performs each effect; none is awaited by the shell."""
        return {
            k.OpenKeyStore: lambda one: self._spawn(self._open(one)),
            k.SealItems: lambda one: self._spawn(self._answer(one.token, self._seal(one))),
            k.OpenItems: lambda one: self._spawn(self._answer(one.token, self._unseal(one))),
            k.EraseKeys: lambda one: self._spawn(self._erase(one)),
            k.MakeSigningKey: lambda one: self._spawn(
                self._answer(one.token, self._make_signing(one))
            ),
            k.SignIdentity: lambda one: self._spawn(self._answer(one.token, self._sign(one))),
            k.EraseSigningKeys: lambda one: self._spawn(self._erase_signing(one)),
            k.MakeSealingKey: lambda one: self._spawn(self._answer(one.token, self._make(one))),
            k.CheckKeys: lambda one: self._spawn(self._check(one)),
        }

    async def settle(self) -> None:
        """Wait for everything that was asked for."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- effects ----

    async def _open(self, asked: k.OpenKeyStore) -> None:
        def opening() -> Coroutine[Any, Any, OpenedKeys]:
            return self._keys.open(asked.cluster_id, may_create=asked.may_create)

        try:
            opened = await self._until_reached(opening)
        except KeyStoreFault as err:
            self._give_up(err)
            return
        self._opened = opened
        others = tuple(k.SealingKey(one.key_id, one.public) for one in opened.doors[:-1])
        self._inject(
            k.KeyStoreOpened(
                key_id=opened.door_id,
                public=opened.door_public,
                lives=opened.lives,
                signing=opened.signing,
                others=others,
            )
        )

    async def _erase(self, asked: k.EraseKeys) -> None:
        await self._until_reached(lambda: self._keys.erase(asked.lives))
        self._inject(k.KeysErased(lives=asked.lives))

    async def _make(self, asked: k.MakeSealingKey) -> Report:
        self._ready()
        pair = await self._keys.new_sealing_key(asked.known)
        opened = self._ready()
        if all(one.key_id != pair.key_id for one in opened.doors):
            self._opened = msgspec.structs.replace(opened, doors=(*opened.doors, pair))
        return k.SealingKeyMade(token=asked.token, key=k.SealingKey(pair.key_id, pair.public))

    async def _check(self, asked: k.CheckKeys) -> None:
        try:
            left, lives = await self._until_reached(lambda: self._keys.check(asked.superseded))
        except KeyStoreFault as err:
            self._give_up(err)
            return
        gone = set(asked.superseded) - set(left)
        if self._opened is not None and gone:
            doors = tuple(one for one in self._opened.doors if one.key_id not in gone)
            self._opened = msgspec.structs.replace(self._opened, doors=doors)
        self._inject(k.KeysChecked(superseded=left, lives=lives))

    async def _seal(self, asked: k.SealItems) -> Report:
        opened = self._ready()
        doors = {one.key_id: one.private for one in opened.doors}
        if asked.key_id not in doors:
            raise Refused(
                "conflict",
                "the items are sealed for a key that is not in force: ask for the present key and seal them again",
            )
        context = ("put", opened.cluster_id, asked.life.path, asked.request_id)
        items = decode_items(open_box(asked.sealed, doors[asked.key_id], context))
        plain = encode_items(items)
        key = await self._keys.data_key(asked.life, may_create=True)
        assert key is not None
        nonce = os.urandom(NONCE_BYTES)
        aad = _data_context(opened.cluster_id, asked.life, asked.request_id)
        digest = hmac.new(opened.digest, plain, hashlib.sha256).hexdigest()
        return k.ItemsSealed(
            token=asked.token,
            life=asked.life,
            cipher=nonce + AESGCM(key).encrypt(nonce, plain, aad),
            digest=digest[:_DIGEST_DIGITS],
            items=len(items),
            size=items_size(items),
        )

    async def _unseal(self, asked: k.OpenItems) -> Report:
        opened = self._ready()
        key = await self._keys.data_key(asked.life, may_create=False)
        if key is None:
            raise Refused(
                "not_found", "the key of this variable is erased: it cannot be read any more"
            )
        nonce, cipher = asked.cipher[:NONCE_BYTES], asked.cipher[NONCE_BYTES:]
        aad = _data_context(opened.cluster_id, asked.life, asked.request_id)
        try:
            plain = AESGCM(key).decrypt(nonce, cipher, aad)
        except (InvalidTag, ValueError):
            raise Refused(
                "failed", "the stored items do not open with the key of this variable"
            ) from None
        context = ("get", opened.cluster_id, asked.life.path, str(asked.revision))
        return k.ItemsOpened(token=asked.token, sealed=seal(plain, asked.public, context))

    async def _make_signing(self, asked: k.MakeSigningKey) -> Report:
        self._ready()
        made = await self._keys.make_signing_key(asked.known)
        return k.SigningKeyMade(token=asked.token, key_id=made.key_id, public=made.public)

    async def _sign(self, asked: k.SignIdentity) -> Report:
        opened = self._ready()
        private = await self._signing_key(asked.key_id)
        claims = {
            **msgspec.json.decode(asked.claims, type=dict[str, Any]),
            "jti": str(uuid.uuid4()),
        }
        token = sign_token(private, asked.key_id, msgspec.json.encode(claims))
        context = identity_context(opened.cluster_id, asked.alloc_id, asked.task, asked.name)
        sealed = seal(token.encode(), asked.public, context)
        return k.IdentitySigned(token=asked.token, sealed=sealed, key_id=asked.key_id)

    async def _signing_key(self, key_id: str) -> RSAPrivateKey:
        """Return a key that signs. Raises Refused, KeyStoreFault, BusUnavailable."""
        if self._signer is not None and self._signer[0] == key_id:
            return self._signer[1]
        private = await self._keys.signing_key(key_id)
        if private is None:
            raise Refused("unavailable", lost_key(key_id))
        self._signer = (key_id, private)
        return private

    async def _erase_signing(self, asked: k.EraseSigningKeys) -> None:
        if self._signer is not None and self._signer[0] in asked.key_ids:
            self._signer = None
        await self._until_reached(lambda: self._keys.erase_signing_keys(asked.key_ids))
        self._inject(k.SigningKeysErased(key_ids=asked.key_ids))

    # ---- answers ----

    def _ready(self) -> OpenedKeys:
        if self._opened is None:
            raise Refused("unavailable", "the key store is not open yet")
        return self._opened

    async def _answer(self, token: int, work: Coroutine[Any, Any, Report]) -> None:
        """Report what a request came to."""
        try:
            found = await work
        except Refused as err:
            found = k.VaultFailed(token=token, code=err.code, reason=err.reason)
        except CommandInvalid as err:
            found = k.VaultFailed(token=token, code=err.code, reason=err.message)
        except SealedBoxInvalid as err:
            found = k.VaultFailed(token=token, code="invalid", reason=str(err))
        except KeyStoreReplaced as err:
            self._give_up(err)
            found = k.VaultFailed(token=token, code="unavailable", reason=str(err))
        except KeyStoreFault as err:
            found = k.VaultFailed(token=token, code="failed", reason=str(err))
        except BusUnavailable as err:
            found = k.VaultFailed(token=token, code="unavailable", reason=f"the key store: {err}")
        except Exception as err:  # noqa: BLE001 - each request is answered; the traceback could show items.
            log.error("vault.failed", error=type(err).__name__)  # noqa: TRY400 - as above.
            found = k.VaultFailed(token=token, code="failed", reason="the vault failed")
        self._inject(found)

    def _give_up(self, err: KeyStoreFault) -> None:
        """Have the store opened again, once what it needs is there."""
        self._opened = self._signer = None
        self._inject(k.KeyStoreUnusable(reason=str(err)))

    async def _until_reached(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Try until the store is reached. Raises KeyStoreFault."""
        pause_s = self._pause_s
        while True:
            try:
                found = await work()
            except KeyStoreFault:
                raise
            except BusUnavailable as err:
                self._note(f"the key store cannot be used: {err}")
            except Exception as err:  # noqa: BLE001 - as in `_answer`.
                log.error("vault.failed", error=type(err).__name__)  # noqa: TRY400
                self._note(f"the key store cannot be used: {type(err).__name__}")
            else:
                self._note("")
                return found
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)


def _data_context(cluster_id: str, life: VariableLife, request_id: str) -> bytes:
    return context_bytes((cluster_id, life.path, str(life.incarnation), request_id))
