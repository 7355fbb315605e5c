"""`caravan operator keyring list`, `rotate` and `remove`: requests over the bus, which the leading keeper answers."""

import msgspec

from schemas.base import Wire
from schemas.identities import KeyringVerdict, RemoveKeyRequest, RotateKeyRequest
from schemas.projections import Query
from schemas.variable_answers import KeysAnswer
from services.cli.runtime.bus_client import query_view, request_until_decided, with_bus
from services.cli.runtime.output import CliError, CommandOutput, TableColumn
from shared.bus.connection.public_client import Client
from shared.protocol import subjects

_WAIT_S, _VERDICT_S = 30.0, 8.0
_KEYS_MAX = 1_000


class SealingKeyLine(msgspec.Struct, frozen=True, kw_only=True):
    """One key of `operator keyring list`."""

    key_id: str
    public: bytes
    create_seq: int
    in_force: bool


class KeyringListResult(msgspec.Struct, frozen=True, kw_only=True):
    """`operator keyring list --json`, newest first."""

    seq: int
    cluster_id: str
    total: int
    keys: tuple[SealingKeyLine, ...]


class KeyringChangeResult(msgspec.Struct, frozen=True, kw_only=True):
    """`operator keyring rotate --json` and `remove --json`: the key that is in force now."""

    key_id: str


def list_all(out: CommandOutput) -> int:
    """List the keys that clients seal for."""

    async def work(client: Client) -> KeysAnswer:
        return await query_view(client, "keys", KeysAnswer, Query(limit=_KEYS_MAX))

    found = with_bus(work)
    lines = tuple(
        SealingKeyLine(
            key_id=one.key_id, public=one.public, create_seq=one.create_seq, in_force=at == 0
        )
        for at, one in enumerate(found.keys)
    )
    out.result(
        KeyringListResult(seq=found.seq, cluster_id=found.cluster_id, total=found.total, keys=lines)
    )
    columns = [TableColumn("sealing key"), TableColumn("created at seq"), TableColumn("status")]
    rows = [
        (one.key_id, str(one.create_seq), "in force" if one.in_force else "replaced")
        for one in lines
    ]
    out.table(columns, rows)
    return 0


def rotate(out: CommandOutput, *, signing: bool, in_force: str) -> int:
    """Make another key, and wait until it is in force."""

    async def work(client: Client) -> str:
        found = await query_view(client, "keys", KeysAnswer, Query(limit=1))
        present = found.keys[0].key_id if found.keys and not signing else ""
        kind = "signing" if signing else "sealing"
        body = RotateKeyRequest(kind=kind, in_force=in_force or present)
        try:
            return (await _decided(client, "rotate", body)).key_id
        except CliError as err:
            if err.code != "conflict" or in_force:
                raise
            # This command's own first attempt, or another one, has replaced the key that was in force.
            newer = await query_view(client, "keys", KeysAnswer, Query(limit=1))
            if not newer.keys or newer.keys[0].key_id == present:
                raise
            return newer.keys[0].key_id

    key_id = with_bus(work)
    out.result(KeyringChangeResult(key_id=key_id))
    out.line(f"key {key_id} is in force", "green")
    return 0


def remove(out: CommandOutput, *, key_id: str) -> int:
    """Take away a signing key."""

    async def work(client: Client) -> KeyringVerdict:
        return await _decided(client, "remove", RemoveKeyRequest(key_id=key_id))

    verdict = with_bus(work)
    out.result(KeyringChangeResult(key_id=verdict.key_id))
    out.line(f"key {key_id} is removed", "green")
    return 0


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
