"""Numbered reports: states of this node that the log has not seen, sent until it has.

Decides what goes into which number and when it is sent again. Each report carries every state that is not seen, so
the newest accepted one makes all earlier ones unneeded; numbers count from 1 within a boot. A resend repeats a number
with the states that it carried, a state that changed since waits for the next number. Must not know how states come
about. Next: `role.py`.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from schemas.allocations import CLIENT_STATUSES
from schemas.base import NodeId
from schemas.envelope import ENCODER
from schemas.nodes import AllocReport, BriefStates, NodeSpec, ReportNode
from services.agent.backoff import Backoff
from services.agent.volume_reports import VolumeReports

#: The first goes at once; more states that come within this time travel together. After a big report it is longer.
GATHER_NS = 20_000_000
#: A node says at most 2 MB a second, however much changes while the log sees none of it.
GATHER_NS_PER_BYTE = 500
RESEND_FIRST_NS = 500_000_000
RESEND_MAX_NS = 5_000_000_000
#: A message stays below 512 KiB; what does not fit waits until the log has seen the rest.
STATES_BYTES_MAX = 400 * 1024


class Reports:
    """What was changed, carried and seen."""

    def __init__(
        self, *, node_id: NodeId, host_id: str, boot_id: str, spec: NodeSpec, brief: bool = False
    ) -> None:
        self._node_id = node_id
        self._host_id = host_id
        self._boot_id = boot_id
        self.spec = spec
        #: leave out the tasks where none failed.
        self._is_brief = brief
        #: incarnation and seq that were followed before the newest incarnation, until a registration told the log.
        self._followed = (0, 0)
        #: number that first carried `spec`; 0: none yet, -1: seen.
        self._spec_number = 0
        self.number = 0
        #: keys with a state that no number has carried yet, in order of change.
        self._fresh: dict[int, None] = {}
        #: key -> number that first carried its present state.
        self._carried: dict[int, int] = {}
        #: the last report had no room for all that is fresh.
        self._full = False
        self._gather_ns = GATHER_NS
        self._sent_ns = 0
        self.volumes = VolumeReports()
        self._resend = Backoff(RESEND_FIRST_NS, RESEND_MAX_NS)

    @property
    def unseen(self) -> int:
        """How many states the log has not seen."""
        return len(self._fresh) + len(self._carried)

    def is_seen(self, key: int) -> bool:
        """Say whether the log has seen the present state of an allocation."""
        return key not in self._fresh and key not in self._carried

    def touch(self, key: int) -> None:
        """Note that the state of an allocation changed."""
        self._drop(key)
        self._fresh[key] = None

    def forget(self, key: int) -> None:
        """Drop an allocation."""
        self._drop(key)
        self._fresh.pop(key, None)

    def _drop(self, key: int) -> None:
        if self._carried.pop(key, 0):
            # What it took in the message is free again.
            self._full = False

    def register(
        self, spec: NodeSpec | None = None, *, followed: tuple[int, int] | None = None
    ) -> None:
        """Register (again), with a new fingerprint if there is one.

        `followed`: incarnation and seq of a history that the log may have lost.
        """
        self.spec = spec or self.spec
        self._followed = followed or self._followed
        self._spec_number = 0

    @property
    def is_registered(self) -> bool:
        """Say whether the log has seen this boot's registration."""
        return self._spec_number == -1

    def see(self, number: int) -> None:
        """Take the acknowledgement of all numbers up to `number`."""
        before = self.unseen
        if 0 < self._spec_number <= number:
            self._spec_number, self._followed = -1, (0, 0)
        self._carried = {key: n for key, n in self._carried.items() if n > number}
        self.volumes.see(number)
        if self.unseen < before:
            self._full = False
            self._resend.reset()

    @property
    def _has_new(self) -> bool:
        fresh = bool(self._fresh) and not self._full
        return self._spec_number == 0 or fresh or self.volumes.has_fresh

    def hurry(self) -> None:
        """The bus is back: send again now, since messages may be lost."""
        self._sent_ns = 0
        self._resend.reset()

    @property
    def is_unacknowledged(self) -> bool:
        """Say whether a report was sent three times without an acknowledgement."""
        return self._resend.pause >= 4 * RESEND_FIRST_NS

    def due_ns(self) -> int:
        """Time of the next report; 0: there is none."""
        if self._has_new:
            return max(self._sent_ns + self._gather_ns, 1)
        if self._carried or self._spec_number > 0 or self.volumes.has_carried:
            return self._sent_ns + self._resend.pause
        return 0

    def compose(self, report_of: Callable[[int], AllocReport], now_ns: int) -> ReportNode:
        """Make the report that is due now."""
        states = {key: _bounded(report_of(key)) for key in sorted(self._carried)}
        is_new = self._has_new
        if is_new:
            self.number += 1
            self._resend.reset()
            if self._spec_number == 0:
                self._spec_number = self.number
            self._carry_fresh(states, report_of)
        else:
            self._resend.take()
        self._sent_ns = now_ns
        told = [states[key] for key in sorted(states)]
        short = [one for one in told if self._is_brief and not _has_reasons(one)]
        whole = [one for one in told if _has_reasons(one)] if self._is_brief else told
        incarnation, seq = self._followed if self._spec_number > 0 else (0, 0)
        return ReportNode(
            node_id=self._node_id,
            host_id=self._host_id,
            boot_id=self._boot_id,
            number=self.number,
            spec=self.spec if self._spec_number > 0 else None,
            states=tuple(whole),
            brief=briefly(short),
            followed_incarnation=incarnation,
            followed_seq=seq,
            volumes=self.volumes.carry(self.number, is_new=is_new),
        )

    def _carry_fresh(
        self, states: dict[int, AllocReport], report_of: Callable[[int], AllocReport]
    ) -> None:
        size = sum(len(ENCODER.encode(state)) for state in states.values())
        for key in list(self._fresh):
            state = _bounded(report_of(key))
            more = len(ENCODER.encode(state))
            if size + more > STATES_BYTES_MAX and states:
                self._full = True
                break
            size += more
            states[key] = state
            self._carried[key] = self.number
            del self._fresh[key]
        self._gather_ns = max(GATHER_NS, size * GATHER_NS_PER_BYTE)


def briefly(states: Sequence[AllocReport]) -> BriefStates:
    """Say statuses and healths alone, as columns."""
    healths = [state.health for state in states]
    versions = [state.health_version for state in states]
    return BriefStates(
        keys=tuple(state.key for state in states),
        rows=tuple(state.row for state in states),
        statuses=_runs(CLIENT_STATUSES.index(state.status) for state in states),
        healths=_runs(healths) if any(healths) else (),
        health_versions=_runs(versions) if any(healths) else (),
    )


def _runs(codes: Iterable[int]) -> tuple[int, ...]:
    """Write codes as runs: a code, how many, the next code, how many, and so on."""
    runs: list[int] = []
    for code in codes:
        if runs[-2:-1] == [code]:
            runs[-1] += 1
        else:
            runs += (code, 1)
    return tuple(runs)


def _has_reasons(state: AllocReport) -> bool:
    """Say whether a state needs more than its status: task events, which give the reason, or remote tasks."""
    return state.status == "failed" or bool(state.health_reason or state.remotes)


def _bounded(state: AllocReport) -> AllocReport:
    """Leave the tasks' lives out of a report that would not fit alone: hundreds of tasks with ten lines each."""
    if len(state.tasks) * 10 < STATES_BYTES_MAX // 1024:
        return state
    if len(ENCODER.encode(state)) <= STATES_BYTES_MAX:
        return state
    short = {
        name: msgspec.structs.replace(task, events=task.events[-1:] if task.failed else ())
        for name, task in state.tasks.items()
    }
    return msgspec.structs.replace(state, tasks=short)
