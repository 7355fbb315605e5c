"""Questions of nodes where the data of an allocation comes from (`ask.<node>.disk_source`), answered from the state.

Both nodes ask: the one that fetches, and the one that is asked for the data, before it gives any.
"""

import msgspec
import numpy as np

from schemas.allocations import CLIENT_STATUSES
from schemas.base import NodeId
from schemas.bounds import bounded_decoder
from schemas.disks import DiskSourceAnswer, DiskSourceAsk
from schemas.envelope import ENCODER
from schemas.jobs import ErrorDetail
from schemas.nodes import NODE_STATUSES
from shared.core.runtime.messages import Ack, Effect, Message, Reply
from shared.core.state.ids import ALLOC_SALT, alloc_id, shown_ids
from shared.core.state.state import State
from shared.errors import CommandInvalid
from shared.jobspec.strict_json import require_unique_keys
from shared.protocol.id_tokens import token_id

#: Name of the source of these questions.
DISK_SOURCE = "disk_source"
_DECODER = bounded_decoder(DiskSourceAsk)


def answer_disk_source(message: Message, state: State, *, is_open: bool) -> Effect:
    """Answer one question. `is_open`: the log was replayed."""
    if not message.reply:
        return Ack(message.token)
    try:
        if not is_open:
            return _refused(message, "unavailable", "the log is still being replayed; retry")
        require_unique_keys(message.data)
        ask = _DECODER.decode(message.data)
        found = disk_source(state, token_id(message.subject.split(".")[1]), ask.alloc_id)
    except CommandInvalid as err:
        return _refused(message, err.code, err.message)
    except (ValueError, msgspec.MsgspecError, RecursionError) as err:
        return _refused(message, "invalid", str(err))
    return Reply(message.token, ENCODER.encode(found))


def _refused(message: Message, code: str, text: str) -> Reply:
    found = DiskSourceAnswer(error=ErrorDetail(code=code, message=text))
    return Reply(message.token, ENCODER.encode(found))


def disk_source(state: State, asker: str, wanted: str) -> DiskSourceAnswer:
    """Say what an allocation replaces, to its node and to that of the one that it replaces. Raises CommandInvalid."""
    table, fleet = state.allocations, state.fleet
    here = fleet.row_of.get(NodeId(asker), -1)
    rows = _candidates(state, here)
    shown = shown_ids(table.key[np.array(rows, dtype=np.int64)], ALLOC_SALT)
    if wanted in shown:
        row = rows[shown.index(wanted)]
        key = table.previous.get(row, 0)
        before = _row_of(state, key)
        return DiskSourceAnswer(
            node_id=fleet.ids[table.node[row]],
            previous=alloc_id(key) if key else "",
            previous_node="" if before < 0 else fleet.ids[table.node[before]],
            previous_status="" if before < 0 else CLIENT_STATUSES[table.client[before]],
            previous_node_status=""
            if before < 0
            else NODE_STATUSES[fleet.status[table.node[before]]],
        )
    # The same for one that exists: what runs elsewhere is not for this node to know.
    text = f"the log has no allocation {wanted[:64]!r} with data on node {asker!r}, or for it"
    raise CommandInvalid("not_found", text)


def _candidates(state: State, here: int) -> list[int]:
    """List the rows that the question may mean: those of the node, and those that replace one of it."""
    table = state.allocations
    if here < 0:
        return []
    rows = np.flatnonzero((table.key[: table.size] != 0) & (table.node[: table.size] == here))
    keys = set(table.key[rows].tolist())
    return [*rows.tolist(), *(row for row, key in table.previous.items() if key in keys)]


def _row_of(state: State, key: int) -> int:
    """Find an allocation by its key; -1: the state does not have it."""
    table = state.allocations
    rows = np.flatnonzero(table.key[: table.size] == key)
    return int(rows[0]) if key and len(rows) else -1
