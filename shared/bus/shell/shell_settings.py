"""The settings of a shell: logins, replicas, and how long a start may take."""

import msgspec

from shared.bus.connection.nats_client import Login


class ShellSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a shell for its bus."""

    login: Login
    #: the system account's user, for the plan applier only: it checks whether the server fsyncs.
    sys_login: Login | None = None
    replicas: int = 1
    #: False for agents: NODES has no streams.
    in_core: bool = True
    #: begin at a snapshot, where there is one that the log proves.
    snapshots: bool = True
    start_timeout_s: float = 10.0
