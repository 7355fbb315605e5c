"""A line of the table of endpoints: routing, docs and tests are made from it."""

import msgspec

from services.gateway.edge.call import Handler


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One endpoint. `pattern`: as Starlette reads it; a job's id is `{job:path}`, since it may contain slashes."""

    pattern: str
    summary: str
    read: Handler | None = None
    #: for PUT and POST, which Nomad does not tell apart.
    write: Handler | None = None
    delete: Handler | None = None
    #: answers without a login: pages of the console, which hold no data.
    is_public: bool = False
    #: its reads answer tasks that log in with their token, too; the handler keeps to what the task may read.
    for_tasks: bool = False
    #: speaks websocket; the handler is `read` and gets a Call on a WebSocket.
    is_socket: bool = False
    #: waits for no promised seq, and works before the log is replayed.
    is_stateless: bool = False
    #: differs from Nomad's: what a reader of docs should know.
    note: str = ""
