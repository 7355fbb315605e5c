"""Checks of claims: an index with a sticky volume is placed on the node of its claim, which only a release moves.

Reads the log alone, and shares no code with the tables.
"""

from collections.abc import Mapping

from schemas import jobs, volumes
from schemas.envelope import LogRecord
from schemas.plans import PlanCommitted
from shared.core.state.name_runs import expand_runs
from shared.sim.oracle.invariants import InvariantChecks

_Index = tuple[str, str, int]


class ClaimChecks:
    """What the claims of all jobs must keep to."""

    def __init__(self, ledger: InvariantChecks) -> None:
        self._ledger = ledger
        #: names of sticky volumes, by job, version and group.
        self._sticky: dict[tuple[str, int, str], tuple[str, ...]] = {}
        #: node and whether it is exclusive, by index and volume.
        self._claims: dict[tuple[_Index, str], tuple[str, bool]] = {}

    def apply(self, record: LogRecord, ids: Mapping[int, str]) -> None:
        """Check one record; `ids` are the nodes by row, after it. Raises InvariantBroken."""
        for event in record.events:
            match event:
                case jobs.JobRegistered():
                    self._registered(event)
                case volumes.ClaimMade():
                    self._made(event)
                case volumes.ClaimReleased():
                    self._drop({(str(event.job_id), event.group, event.index)})
                case jobs.JobsCollected():
                    self._drop({key for key, _ in self._claims if key[0] in event.job_ids})
                case _:
                    pass
        for event in record.events:
            if isinstance(event, PlanCommitted):
                self._placed(event, ids)

    def _registered(self, event: jobs.JobRegistered) -> None:
        for group in event.groups:
            names = tuple(one.source for one in group.volumes if one.sticky)
            if names:
                self._sticky[event.job_id, event.version, group.name] = names

    def _made(self, event: volumes.ClaimMade) -> None:
        index = (str(event.job_id), event.group, event.index)
        is_new = (index, event.volume) not in self._claims
        self._ledger.hold("claim_kept", is_new, event, "is claimed already")
        others = [
            (other, exclusive)
            for (other, volume), (node, exclusive) in self._claims.items()
            if (volume, node) == (event.volume, event.node_id)
        ]
        shares = not others or not (event.is_exclusive or any(one for _, one in others))
        self._ledger.hold("claim_kept", shares, event, "beside", others)
        self._claims[index, event.volume] = (str(event.node_id), event.is_exclusive)

    def _placed(self, event: PlanCommitted, ids: Mapping[int, str]) -> None:
        for one in event.placements:
            names = self._sticky.get((event.job_id, one.version, one.group), ())
            if not names:
                continue
            rows = [
                row for row, count in zip(one.rows, one.counts, strict=True) for _ in range(count)
            ]
            for row, number in zip(rows, expand_runs(one.names).tolist(), strict=True):
                index = (str(event.job_id), one.group, number)
                for volume in names:
                    node = self._claims.get((index, volume), ("", False))[0]
                    self._ledger.hold("claim_kept", node == ids[row], index, "on", ids[row], node)

    def _drop(self, gone: set[_Index]) -> None:
        self._claims = {key: one for key, one in self._claims.items() if key[0] not in gone}
