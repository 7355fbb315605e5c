"""What `query.cluster` tells about the servers of the bus: which are there, who leads, and what cannot be committed."""

from schemas.base import ExactWire


class BusServer(ExactWire, frozen=True, kw_only=True, omit_defaults=False):
    """One server. `status`: current, behind, away, or up: it answers, while no server leads the log.

    From the first look on at which the log's leader does not answer none leads; the status stays that of its last
    answer, until after 4 s the servers are tried themselves.
    """

    name: str
    status: str = "current"
    #: it leads the log.
    leads: bool = False
    #: entries that it lacks of the stream of which it lacks most.
    lag: int = 0
    #: streams of which it does not hold everything.
    behind: tuple[str, ...] = ()
    #: how long before `looked_ns` it was last heard of by the leader of a stream; -1: unknown.
    silent_ms: int = 0
    #: how long before `looked_ns` it was last known to hold everything, in the worst of its streams; -1: never.
    current_ms: int = 0


class BusStatus(ExactWire, frozen=True, kw_only=True, omit_defaults=False):
    """The bus, as it was at `looked_ns`. Times are of the service that answers, ns since 1970; 0: never."""

    #: by name; empty: not looked at, as for a past moment.
    servers: tuple[BusServer, ...] = ()
    #: when the service last looked, with or without an answer.
    looked_ns: int = 0
    #: when the leader of the log last answered.
    confirmed_ns: int = 0
    #: when this answer was made.
    answered_ns: int = 0
    #: since when nothing can be committed; 0: commits are possible, unless no server leads the log.
    blocked_since_ns: int = 0
    #: why, for people; empty while commits are possible.
    reason: str = ""
    #: streams that no server leads.
    leaderless: tuple[str, ...] = ()
    #: the times as text where they exceed 2^53; else empty.
    looked_ns_text: str = ""
    confirmed_ns_text: str = ""
    answered_ns_text: str = ""
    blocked_since_ns_text: str = ""
