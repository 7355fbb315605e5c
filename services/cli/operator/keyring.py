"""`caravan operator keyring list`, `rotate` and `remove`: requests over the bus, which the leading keeper answers."""

from collections.abc import Sequence

import msgspec

from schemas.base import Wire
from schemas.identities import KeyringVerdict, RemoveKeyRequest, RotateKeyRequest
from schemas.projections import Query
from schemas.variable_answers import KeyLine, KeysAnswer, SigningKeyLine, SigningKeysAnswer
from services.cli.runtime.bus_client import query_view, request_until_decided, with_bus
from services.cli.runtime.output import CliError, CommandOutput, TableColumn
from shared.bus.connection.public_client import Client
from shared.protocol import subjects

_WAIT_S, _VERDICT_S = 30.0, 8.0
_KEYS_MAX = 1_000
_SEALING, _SIGNING = "sealing", "signing"
_Answer = KeysAnswer | SigningKeysAnswer


class KeyringKeyLine(msgspec.Struct, frozen=True, kw_only=True):
    """One key of `operator keyring list`. `kind`: sealing (clients seal variables with it) or signing (identities)."""

    kind: str
    key_id: str
    public: bytes
    create_seq: int
    in_force: bool


class KeyringListResult(msgspec.Struct, frozen=True, kw_only=True):
    """`operator keyring list --json`: the sealing keys, then the signing keys, each kind newest first."""

    seq: int
    cluster_id: str
    total: int
    keys: tuple[KeyringKeyLine, ...]


class KeyringChangeResult(msgspec.Struct, frozen=True, kw_only=True):
    """`operator keyring rotate --json` and `remove --json`: the key that is in force now."""

    key_id: str


def list_all(out: CommandOutput) -> int:
    """List the keys that clients seal for, and those that sign identities."""

    async def work(client: Client) -> tuple[_Answer, _Answer]:
        return await _keys(client, _SEALING, _KEYS_MAX), await _keys(client, _SIGNING, _KEYS_MAX)

    sealing, signing = with_bus(work)
    lines = (*_lines(_SEALING, sealing), *_lines(_SIGNING, signing))
    out.result(
        KeyringListResult(
            seq=min(sealing.seq, signing.seq),
            cluster_id=sealing.cluster_id,
            total=sealing.total + signing.total,
            keys=lines,
        )
    )
    names = ("kind", "key", "created at seq", "status")
    rows = [(one.kind, one.key_id, str(one.create_seq), _status(one)) for one in lines]
    out.table([TableColumn(name) for name in names], rows)
    return 0


def rotate(out: CommandOutput, *, signing: bool, in_force: str) -> int:
    """Make another key, and wait until it is in force."""
    kind = _SIGNING if signing else _SEALING

    async def work(client: Client) -> str:
        found = await _keys(client, kind, 1)
        present = found.keys[0].key_id if found.keys else ""
        body = RotateKeyRequest(kind=kind, in_force=in_force or present)
        try:
            return (await _decided(client, "rotate", body)).key_id
        except CliError as err:
            if err.code != "conflict" or in_force:
                raise
            # This command's own first attempt, or another one, has replaced the key that was in force.
            newer = await _keys(client, kind, 1)
            if not newer.keys or newer.keys[0].key_id == present:
                raise
            return newer.keys[0].key_id

    key_id = with_bus(work)
    out.result(KeyringChangeResult(key_id=key_id))
    out.line(f"{kind} key {key_id} is in force", "green")
    return 0


def remove(out: CommandOutput, *, key_id: str) -> int:
    """Take away a signing key."""

    async def work(client: Client) -> KeyringVerdict:
        return await _decided(client, "remove", RemoveKeyRequest(key_id=key_id))

    verdict = with_bus(work)
    out.result(KeyringChangeResult(key_id=verdict.key_id))
    out.line(f"signing key {key_id} is removed", "green")
    return 0


def _lines(kind: str, answer: _Answer) -> tuple[KeyringKeyLine, ...]:
    keys: Sequence[KeyLine | SigningKeyLine] = answer.keys
    return tuple(
        KeyringKeyLine(
            kind=kind,
            key_id=one.key_id,
            public=one.public,
            create_seq=one.create_seq,
            in_force=at == 0,
        )
        for at, one in enumerate(keys)
    )


def _status(one: KeyringKeyLine) -> str:
    if one.in_force:
        return "in force"
    return "verifies" if one.kind == _SIGNING else "replaced"


async def _keys(client: Client, kind: str, limit: int) -> _Answer:
    """Ask for the keys of a kind, newest first."""
    query = Query(limit=limit)
    if kind == _SIGNING:
        return await query_view(client, "signing_keys", SigningKeysAnswer, query)
    return await query_view(client, "keys", KeysAnswer, query)


async def _decided(client: Client, verb: str, body: Wire) -> KeyringVerdict:
    verdicts = await request_until_decided(
        client,
        subjects.api("keyring", verb),
        msgspec.json.encode(body),
        KeyringVerdict,
        service="keeper",
        wait_s=_WAIT_S,
        verdict_s=_VERDICT_S,
    )
    return verdicts[-1]
