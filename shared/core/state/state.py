"""The state: a record of tables and the routing of events to them; nothing else.

A role builds only the tables it needs; a table applies each fact without looking at another, so that every replica
which has a table has the same rows and the same hash at the same seq.
"""

from collections.abc import Callable, Iterable
from typing import Any

from schemas.base import Event
from schemas.envelope import LogRecord
from shared.core.state.tables.allocations import AllocationTable
from shared.core.state.tables.claims import ClaimTable
from shared.core.state.tables.deployments import DeploymentTable
from shared.core.state.tables.evaluations import EvaluationTable
from shared.core.state.tables.fleet import FleetTable
from shared.core.state.tables.host_volumes import VolumeTable
from shared.core.state.tables.jobs import JobTable
from shared.core.state.tables.launches import LaunchTable
from shared.core.state.tables.policy import PolicyTable
from shared.core.state.tables.remotes import RemoteTable
from shared.core.state.tables.reservations import ReservationTable
from shared.core.state.tables.rollouts import RolloutTable
from shared.core.state.tables.signing_keys import SigningKeyTable
from shared.core.state.tables.variable_locks import LockTable
from shared.core.state.tables.variables import VariableTable

Table = (
    PolicyTable
    | JobTable
    | FleetTable
    | EvaluationTable
    | AllocationTable
    | ReservationTable
    | DeploymentTable
    | LaunchTable
    | RolloutTable
    | VariableTable
    | LockTable
    | SigningKeyTable
    | ClaimTable
    | VolumeTable
    | RemoteTable
)
TABLES = frozenset(
    {
        "policy",
        "jobs",
        "fleet",
        "evaluations",
        "allocations",
        "reservations",
        "deployments",
        "launches",
        "rollouts",
        "variables",
        "variable_locks",
        "signing_keys",
        "claims",
        "volumes",
        "remotes",
    }
)


class State:
    """Tables by name. A table that was not asked for exists, and stays empty."""

    def __init__(self, tables: frozenset[str] = TABLES) -> None:
        assert tables <= TABLES, tables - TABLES
        self.policy = PolicyTable()
        self.jobs = JobTable()
        self.fleet = FleetTable()
        self.evaluations = EvaluationTable()
        self.allocations = AllocationTable()
        self.reservations = ReservationTable()
        self.deployments = DeploymentTable()
        self.launches = LaunchTable()
        self.rollouts = RolloutTable()
        self.variables = VariableTable()
        self.variable_locks = LockTable()
        self.signing_keys = SigningKeyTable()
        self.claims = ClaimTable()
        self.volumes = VolumeTable()
        self.remotes = RemoteTable()
        #: seq of the last transaction applied.
        self.seq = 0
        #: its log time.
        self.t_ns = 0
        self._tables: dict[str, Table] = {
            name: getattr(self, name) for name in sorted(tables | {"policy"})
        }
        #: what a fact does, table by table: found by its type alone.
        self._routes: dict[type[Event], tuple[Callable[[Any, int], None], ...]] = {}
        for table in self._tables.values():
            for kind, handler in table.handlers().items():
                self._routes[kind] = (*self._routes.get(kind, ()), handler)

    def apply(self, record: LogRecord, seq: int) -> None:
        """Apply all events of a transaction, in order. `seq` must not be lower than any before."""
        self.begin(seq, record.t_ns)
        # A batch that was decided and not written may have taken it ahead of the log.
        self.t_ns = self.deployments.log_ns = record.t_ns
        self.evolve_all(record.events, seq)

    def evolve_all(self, events: Iterable[Event], seq: int) -> None:
        """Apply facts, in order."""
        routes = self._routes
        for event in events:
            for handler in routes.get(type(event), ()):
                handler(event, seq)

    def begin(self, seq: int, t_ns: int) -> None:
        """Enter the transaction at `seq`; again, when nothing came of it the last time."""
        assert seq >= self.seq, (seq, self.seq)
        self.seq = seq
        self.t_ns = self.deployments.log_ns = max(self.t_ns, t_ns)

    def evolve(self, event: Event, seq: int) -> None:
        """Apply one fact. Never refuses."""
        for handler in self._routes.get(type(event), ()):
            handler(event, seq)

    def tables(self) -> dict[str, Table]:
        """Return every table that this state has, by name, sorted."""
        return dict(self._tables)

    def put(self, name: str, table: Table) -> None:
        """Take over what a table of the same kind holds; ours stays the same object, for all who know it."""
        self._tables[name].__dict__.update(table.__dict__)
        # Only the policy's part of a snapshot says it.
        newest = self.policy.incarnations.newest
        self.evaluations.incarnation = self.allocations.incarnation = newest

    def empty_hash(self, name: str) -> str:
        """Return the hash that a table has before its first fact."""
        return type(self._tables[name])().digest()

    def hashes(self) -> dict[str, str]:
        """Return the hash of every table that this state has, by name."""
        return {name: table.digest() for name, table in self._tables.items()}
