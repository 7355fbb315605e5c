"""Tasks that log in with the token of their default identity: what they may read, and over which connection (ADR 38).

A token is judged anew whenever something is answered: its key may have been removed, its allocation may have ended. A
task has no login of the bus, so that the gateway asks the keeper with its own, which may read variables for that alone.
"""

import time
from collections.abc import Mapping
from typing import cast

import numpy as np

from schemas.base import JobId
from schemas.envelope import ENCODER
from schemas.projections import Query
from services.gateway.edge.callers import Caller, token_of
from services.gateway.edge.context import ServerContext
from services.gateway.edge.faults import HttpFault, permission_denied
from shared.bus.connection.public_client import Client
from shared.core.state.ids import ALLOC_SALT, match_prefix, shown_ids
from shared.core.state.state import State
from shared.core.state.tables.allocations import RUN, TERMINAL
from shared.identity_tokens import TokenInvalid, looks_like_token, verify_token
from shared.protocol import subjects
from shared.protocol.identity_names import DEFAULT_AUDIENCE
from shared.protocol.task_variables import task_paths


class TaskCaller(Caller):
    """A task of an allocation that runs."""

    def __init__(self, server: ServerContext, token: str) -> None:
        super().__init__("a task", cast("Client", _OwnConnection(server)))
        self._server = server
        self._token = token

    def readable(self) -> tuple[str, ...]:
        """Return the paths of variables that the task may read now. Raises HttpFault 403, 503."""
        server = self._server
        if not server.is_ready:
            raise HttpFault(503, server.why_not_ready(), {"Retry-After": "1"})
        state = server.role.state
        keys = {key_id: row.public for key_id, row in state.signing_keys.by_id.items()}
        try:
            claims = verify_token(self._token, keys, now_s=time.time(), audience=DEFAULT_AUDIENCE)
        except TokenInvalid as err:
            raise permission_denied(f"the token of the task: {err}") from err
        task = claims.get("nomad_task")
        if not isinstance(task, str) or not task:
            raise permission_denied("the token is not one of a task")
        row = _live_row(state, str(claims.get("nomad_allocation_id", "")))
        if row < 0:
            raise permission_denied("the allocation of the token does not run")
        groups, ref = state.allocations.groups, int(state.allocations.group[row])
        job_id: str = groups.job_ids[ref]
        job_id = state.launches.parent_of.get(JobId(job_id), job_id)
        return task_paths(job_id, groups.names[ref], task)


def task_caller(server: ServerContext, headers: Mapping[str, str]) -> TaskCaller | None:
    """The task of a request; None: it has another login, or none. Raises HttpFault 403, 503."""
    token = token_of(headers)
    if not looks_like_token(token) or server.archive is not None:
        return None
    caller = TaskCaller(server, token)
    caller.readable()
    return caller


def _live_row(state: State, alloc_id: str) -> int:
    """Find an allocation that is wanted and has not ended; -1: there is none of this id."""
    table = state.allocations
    rows = table.live_rows()
    rows = rows[(table.desired[rows] == RUN) & ~TERMINAL[table.client[rows]]]
    try:
        found = rows[match_prefix(table.key[rows], alloc_id, ALLOC_SALT)] if alloc_id else rows[:0]
    except ValueError:
        return -1
    ids = shown_ids(np.asarray(table.key[found], dtype=np.int64), ALLOC_SALT)
    return int(found[ids.index(alloc_id)]) if alloc_id in ids else -1


class _OwnConnection:
    """The connection of the gateway, as far as it asks for a task. The public keys are those of its replica."""

    #: nothing that is asked here is refused by the bus.
    denied = 0

    def __init__(self, server: ServerContext) -> None:
        self._server = server

    async def request_bytes(
        self, subject: str, body: bytes, *, timeout_s: float, traceparent: str = ""
    ) -> bytes:
        """Ask the keeper. Raises BusUnavailable; HttpFault 503."""
        del traceparent
        if subject == subjects.query("keys"):
            return ENCODER.encode(self._server.role.answers.answer("keys", Query(limit=1)))
        return (await self._server.bus.request_raw(subject, body, timeout_s=timeout_s))[1]
