"""A reader of the log that shares no code with the product: it has its own idea of a record, and of what was promised.

Decides from the bytes alone whether the log is sound, and whether each job was registered and placed once. Written from
docs/events.md, with the standard library.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from hashlib import blake2b
from typing import Any

#: `,"sum":"<32 hex>"}` ends a record; the sum is over all before it.
_TAIL = len(',"sum":""}') + 32


class LogFacts:
    """What a log says of jobs; `faults`: why it is not sound."""

    def __init__(self, records: Iterable[tuple[int, bytes]]) -> None:
        self.faults: list[str] = []
        self.registered: Counter[str] = Counter()
        #: allocations of each (job, group, index) that replace no other.
        self.first: Counter[tuple[str, str, int]] = Counter()
        #: how often each allocation was replaced.
        self.replaced: Counter[int] = Counter()
        #: replacements of each job.
        self.again: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self._head = ""
        self._seq = 0
        for seq, data in records:
            self._take(seq, data)

    def _take(self, seq: int, data: bytes) -> None:
        if seq != self._seq + 1:
            self.faults.append(f"record {seq} follows {self._seq}")
        self._seq = seq
        record: dict[str, Any] = json.loads(data)
        if record["sum"] != blake2b(data[:-_TAIL], digest_size=16).hexdigest():
            self.faults.append(f"record {seq}: wrong sum")
        if record["prev"] != self._head:
            self.faults.append(f"record {seq} links to {record['prev']}, not to {self._head}")
        self._head = record["sum"]
        for event in record.get("events", ()):
            self.kinds[event["type"]] += 1
            if event["type"] == "job.registered" and event.get("version", 0) == 0:
                self.registered[event["job_id"]] += 1
            elif event["type"] == "plan.committed":
                for placement in event.get("placements", ()):
                    self._place(event["job_id"], placement)

    def _place(self, job: str, placement: dict[str, Any]) -> None:
        indexes = list(_spread(placement.get("names", ())))
        previous = placement.get("previous") or [0] * len(indexes)
        for index, former in zip(indexes, previous, strict=True):
            if former:
                self.replaced[former] += 1
                self.again[job] += 1
            else:
                self.first[job, placement["group"], index] += 1

    def problems(self, accepted: AbstractSet[str], tried: AbstractSet[str]) -> list[str]:
        """What was promised and is not so. `accepted`: jobs with a verdict; `tried`: those and all others."""
        found = list(self.faults)
        found += [
            f"{job} was accepted and is lost" for job in sorted(accepted - set(self.registered))
        ]
        found += [f"{job} was never submitted" for job in sorted(set(self.registered) - tried)]
        found += [f"{job} is registered {n} times" for job, n in self.registered.items() if n > 1]
        found += [f"{name} is placed {n} times" for name, n in self.first.items() if n > 1]
        found += [f"{key} is replaced {n} times" for key, n in self.replaced.items() if n > 1]
        placed = {job for job, _, _ in self.first}
        found += [f"{job} was never placed" for job in sorted(accepted - placed)]
        found += [
            f"{job} is placed, not registered" for job in sorted(placed - set(self.registered))
        ]
        return found


def _spread(runs: Iterable[int]) -> Iterator[int]:
    """Read runs: a start, its length, the next start and so on."""
    each = iter(runs)
    for start, length in zip(each, each, strict=True):
        yield from range(start, start + length)
