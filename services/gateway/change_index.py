"""The indexes of blocking queries: the seq of the last record about a table, and what waits for a job or a node.

Decides which queries a record wakes. The index of an object is read from the state (`modify_seq`); where the object no
longer exists, the index of its table is used, so that no index ever goes back. Independent of HTTP and of the loop:
what waits is a callback.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from schemas.base import Event
from schemas.envelope import LogRecord
from shared.core.state.state import State
from shared.query.event_scope import event_scope


class Topic(NamedTuple):
    """What a query waits for: a table, or all that concerns one job or node."""

    kind: str
    #: empty: the whole table.
    id: str = ""


def table(name: str) -> Topic:
    """The topic of a table: jobs, fleet, allocations, evaluations, deployments, policy, variables, volumes, …."""
    return Topic("table", name)


def job(job_id: str) -> Topic:
    """The topic of a job, its allocations, evaluations and deployments."""
    return Topic("job", job_id)


def node(node_id: str) -> Topic:
    """The topic of a node and its allocations."""
    return Topic("node", node_id)


class ChangeIndex:
    """Table indexes and waiters. `before` and `after` are called around each record that is applied."""

    def __init__(self, state: State) -> None:
        self._tables_of: dict[type[Event], tuple[str, ...]] = {}
        for name, one in state.tables().items():
            for kind in one.handlers():
                self._tables_of[kind] = (*self._tables_of.get(kind, ()), name)
        self._names = tuple(state.tables())
        self._of_table: dict[str, int] = {}
        self._begin_seq = 1
        self._waiters: dict[Topic, dict[int, Callable[[], None]]] = {}
        self._number = 0
        #: what the record being applied is about.
        self._scope: list[Topic] = []

    @property
    def waiting(self) -> int:
        """Number of callbacks that wait."""
        return sum(len(found) for found in self._waiters.values())

    def begin_at(self, seq: int, known: Mapping[str, int] = MappingProxyType({})) -> None:
        """Begin at a snapshot: a table whose index is not known counts as changed there.

        So a query may wake too early, never too late.
        """
        self._begin_seq = max(seq, 1)
        self._of_table.update(known)

    def of_table(self, name: str) -> int:
        """Seq of the last record that changed a table; at least 1."""
        return self._of_table.get(name, self._begin_seq)

    def tables(self) -> dict[str, int]:
        """The index of each table. At two moments of one log where it is the same, so is all that the table holds."""
        return {name: self.of_table(name) for name in self._names}

    def newest(self, names: Iterable[str]) -> int:
        """The highest index of some tables."""
        return max(self.of_table(name) for name in names)

    def before(self, state: State, record: LogRecord) -> None:
        """Note the jobs and nodes of a record; only where something waits for one."""
        self._scope.clear()
        if not self._waiters:
            return
        for event in record.events:
            found = event_scope(state, event)
            self._scope += [job(one) for one in found.jobs]
            self._scope += [node(one) for one in found.nodes]

    def after(self, record: LogRecord, seq: int) -> None:
        """Index an applied record and wake the queries that wait for it."""
        changed = {name for event in record.events for name in self._tables_of.get(type(event), ())}
        for name in changed:
            self._of_table[name] = seq
        if self._waiters:
            for topic in dict.fromkeys([*map(table, sorted(changed)), *self._scope]):
                for wake in tuple(self._waiters.get(topic, {}).values()):
                    wake()

    def wait(self, topics: Iterable[Topic], wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` at each record about one of the topics; returns what ends that."""
        self._number += 1
        number, chosen = self._number, tuple(topics)
        for topic in chosen:
            self._waiters.setdefault(topic, {})[number] = wake

        def forget() -> None:
            for topic in chosen:
                found = self._waiters.get(topic)
                if found is not None and found.pop(number, None) is not None and not found:
                    del self._waiters[topic]

        return forget
