"""Checks of dispatches: one child for each parent and token, with its whole payload and the meta that it must have.

Reads the log alone, and shares no code with the tables.
"""

import msgspec

from schemas import jobs, launches
from schemas.envelope import LogRecord
from shared.sim.environment.dispatcher import META_REQUIRED, payload_of
from shared.sim.oracle.invariants import InvariantChecks


class DispatchChecks:
    """What the dispatches of all parameterized jobs must keep to."""

    def __init__(self, ledger: InvariantChecks) -> None:
        self._ledger = ledger
        self._parents: set[str] = set()
        #: children that are known, by parent and token.
        self._child_of: dict[tuple[str, str], str] = {}
        self._children: set[str] = set()

    def is_pattern(self, job_id: str) -> bool:
        """Tell whether a job is dispatched, and runs nothing itself."""
        return job_id in self._parents

    def apply(self, event: object, record: LogRecord) -> None:
        """Check one event. Raises InvariantBroken."""
        match event:
            case jobs.JobRegistered() if event.parameterized is not None:
                self._parents.add(event.job_id)
            case jobs.JobRegistered() if event.parent in self._parents:
                self._dispatched(event, record)
            case jobs.JobsCollected():
                gone = set(event.job_ids)
                self._children -= gone
                self._parents -= gone
                kept = self._child_of.items()
                self._child_of = {key: child for key, child in kept if child not in gone}
            case _:
                pass

    def _dispatched(self, event: jobs.JobRegistered, record: LogRecord) -> None:
        hold, child = self._ledger.hold, event.job_id
        if event.dispatch_token:
            known = self._child_of.setdefault((event.parent, event.dispatch_token), child)
            hold("dispatched_once", known == child, event.dispatch_token, "has", known, child)
        if child in self._children:
            # Said again: the token's child.
            return
        self._children.add(child)
        given = [
            one.data
            for one in record.events
            if isinstance(one, launches.JobPayload) and one.job_id == child
        ]
        payload = payload_of(event.submission_id)
        hold("dispatched_once", given == ([payload] if payload else []), child, "payload", given)
        meta = msgspec.json.decode(event.spec).get("Meta") or {}
        hold("dispatched_once", meta.get(META_REQUIRED) == event.submission_id, child, meta)
