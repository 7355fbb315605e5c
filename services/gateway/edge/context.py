"""What all requests of a gateway share: role, connections, callers, one-time codes, past states, the live feed."""

from pathlib import Path

import msgspec

from services.gateway.edge.bus.lifespan import BusEdge
from services.gateway.edge.callers import Callers
from services.gateway.edge.encoded import EncodedAnswers
from services.gateway.edge.faults import unavailable
from services.gateway.edge.live_feed import LiveFeed
from services.gateway.edge.one_time_codes import OneTimeCodes
from services.gateway.edge.outgoing import Outgoing
from services.gateway.edge.past_states import BusSource, PastStates, RecordReader
from services.gateway.edge.what_if_runs import WhatIfRuns
from services.gateway.role import Gateway
from shared.bus.connection.nats_client import BusClient, Login
from shared.bus.log.log_reader import LogReader
from shared.bus.shell.problems import BUS
from shared.bus.shell.shell import Shell
from shared.query.fleet_columns import FleetMembers


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """`CARAVAN_GATEWAY_*`."""

    host: str = "127.0.0.1"
    #: 0: a free one.
    port: int = 4646
    #: take a free port where that one is in use.
    any_port: bool = False
    #: where the address is written.
    url_file: str = ""
    #: further names, separated by commas, under which browsers may reach it; loopback names are known.
    names: str = ""
    #: file of webhooks and of the export of traces (docs/events-out.md).
    events_out: str = ""
    #: where the positions of what is sent out are kept.
    state_dir: str = ""
    #: open connections of all clients together.
    connections: int = 12_000
    #: time for a request to arrive, its body included, seconds.
    request_s: float = 10.0
    #: address under which others reach `/.well-known/`, as CARAVAN_KEEPER_OIDC_ISSUER; empty: no discovery.
    oidc_issuer: str = ""


class ServerContext:
    """What the requests of one gateway share."""

    def __init__(
        self,
        role: Gateway,
        shell: Shell,
        settings: GatewaySettings,
        login: Login | None,
        *,
        outgoing: Outgoing | None = None,
    ) -> None:
        self.role = role
        self.shell = shell
        self.settings = settings
        #: address of the bus; empty: an archive is served in place of a cluster.
        self.nats_url = "" if login is None else login.url
        self.callers = Callers(self.nats_url)
        self.bus_edge = BusEdge(login)
        self.codes = OneTimeCodes()
        self.encoded = EncodedAnswers()
        self.past = PastStates(BusSource(lambda: (self.bus, self.bus_log)))
        #: of the fleet's picture that was asked for last, at whichever moment of the log.
        self.members: FleetMembers | None = None
        self.feed = LiveFeed(role, lambda: "" if self.is_ready else self.why_not_ready())
        #: sends events out; None: nothing is to be sent.
        self.outgoing = outgoing
        self.what_ifs = WhatIfRuns()
        #: highest seq of a verdict that was answered: reads wait for it.
        self.promised_seq = 0
        #: folder of the archive that is served in place of a cluster.
        self.archive: Path | None = None
        self._log: LogReader | None = None

    @property
    def is_ready(self) -> bool:
        """Connected, and the log replayed once."""
        return self.role.is_caught_up and self.shell.is_ready

    @property
    def has_leader(self) -> bool:
        """Whether anything can be committed, as far as the shell saw of the bus."""
        return BUS not in self.shell.problems.by_name

    def why_not_ready(self) -> str:
        """Explain to a client why nothing can be read."""
        if not self.role.is_caught_up:
            return f"the log is still being replayed, at seq {self.role.seq}"
        return "the bus is unreachable"

    def promise(self, seq: int) -> None:
        """Let later reads wait for a seq."""
        self.promised_seq = max(self.promised_seq, seq)

    @property
    def bus(self) -> BusClient:
        """The gateway's own connection. Raises HttpFault 503 without one."""
        if self.shell.bus is None:
            raise unavailable("the bus is unreachable")
        return self.shell.bus

    @property
    def log(self) -> RecordReader:
        """The log. Raises HttpFault 503 where it cannot be reached."""
        return self.bus_log

    @property
    def bus_log(self) -> LogReader:
        """Reads the stored log with the gateway's own login. Raises HttpFault 503 without a connection."""
        bus = self.bus
        if self._log is None:
            self._log = LogReader(bus)
        return self._log
