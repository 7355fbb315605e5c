"""An operator at work: allocations stopped by hand, nodes drained and drained no longer, words said about nodes.

In every other world there is none: each of these has jobs looked at again, which would cover up what was forgotten.
Decides what is asked of the operators' door, one wish at a time, until it has its verdict. What a verdict promises must
stand in the books. Must not know how the cluster does it. In the end every drain is over but one, in some worlds.
"""

from collections.abc import Callable

import msgspec

from schemas.operator import OperatorVerdict
from shared.bus import subjects
from shared.core.ids import alloc_id
from shared.sim.books import Books
from shared.sim.loop import MS, SECOND, Draws
from shared.sim.process import Site

_RETRY_NS = 1_100 * MS
#: Nodes that are drained at the same time at the most.
_DRAINED_MAX = 2
_VERDICT = msgspec.json.Decoder(OperatorVerdict)
_RACKS = ("r1", "r2", None)


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """One request; `holds` asks the books whether it is as was wished."""

    subject: str
    body: bytes
    holds: Callable[[], bool]


class Hands:
    """The one operator of a world."""

    def __init__(self, site: Site, draws: Draws, books: Books) -> None:
        self.site = site
        self.wishes = 0
        self.is_idle = False
        #: hears of each promise that is not in the books.
        self.on_verdict: Callable[[bool, object], None] | None = None
        self._draws = draws
        self._books = books
        self._drained: list[str] = []
        self._is_closing = False
        #: one drain stays for good.
        self._leaves_one = draws.hit(400)
        self._open: Wish | None = None

    def begin(self, after_ns: int) -> None:
        """Wish for the first time, in a world that has an operator."""
        self.is_idle = self._draws.hit(500)
        self.site.loop.after(after_ns, self._next)

    def close(self) -> None:
        """Wish nothing new, and end what must not last."""
        self._is_closing = True

    # ---- wishes ----

    def _next(self) -> None:
        if self._open is not None or self.is_idle:
            return
        wish = self._last() if self._is_closing else self._any()
        if wish is not None:
            self._open = wish
            self.wishes += 1
            self._try(wish)
        elif self._is_closing:
            self.is_idle = True
        else:
            self.site.loop.after(500 * MS, self._next)

    def _last(self) -> Wish | None:
        keep = 1 if self._leaves_one else 0
        return self._drain(self._drained[-1], draining=False) if len(self._drained) > keep else None

    def _any(self) -> Wish | None:
        what = self._draws.below(100)
        if what < 45:
            return self._stop()
        nodes = sorted(one.id for one in self._books.nodes.values())
        if not nodes:
            return None
        if what < 65 and len(self._drained) < _DRAINED_MAX:
            name = nodes[self._draws.below(len(nodes))]
            return self._drain(name, draining=True) if name not in self._drained else None
        if what < 85 and self._drained:
            return self._drain(self._drained[0], draining=False)
        return self._say(nodes[self._draws.below(len(nodes))])

    def _stop(self) -> Wish | None:
        rows = sorted(row for row, one in self._books.allocs.items() if one.is_wanted)
        if not rows:
            return None
        alloc = self._books.allocs[rows[self._draws.below(len(rows))]]
        body = {"alloc_id": alloc_id(alloc.key)}
        return Wish(
            subject=subjects.api("alloc", "stop"),
            body=msgspec.json.encode(body),
            holds=lambda: alloc.is_displaced or not alloc.is_wanted or self._ends(alloc.job_id),
        )

    def _ends(self, job_id: str) -> bool:
        """Say whether a job is stopped, so that all of it ends without another word."""
        job = self._books.jobs.get(job_id)
        return job is None or job.is_stopped

    def _drain(self, name: str, *, draining: bool) -> Wish:
        # At once, soon, or in one case of ten never.
        deadline_ns = -1 if self._draws.hit(100) else self._draws.below(4) * SECOND
        body = {"node_id": name, "draining": draining, "deadline_ns": deadline_ns}
        if not draining:
            self._drained.remove(name)
        elif name not in self._drained:
            self._drained.append(name)
        return Wish(
            subject=subjects.api("node", "drain"),
            body=msgspec.json.encode(body),
            holds=lambda: self._books.is_drained(name) == draining,
        )

    def _say(self, name: str) -> Wish:
        rack = _RACKS[self._draws.below(len(_RACKS))]
        body = {"node_id": name, "change": {"rack": rack}}
        return Wish(
            subject=subjects.api("node", "set_meta"),
            body=msgspec.json.encode(body),
            holds=lambda: self._books.meta.get(name, {}).get("rack") == rack,
        )

    # ---- asking ----

    def _try(self, wish: Wish) -> None:
        if self._open is not wish:
            return
        site = self.site
        for delay in site.weather.hop():
            site.loop.after(delay, site.bus.publish, wish.subject, wish.body, self._answer(wish))
        site.loop.after(_RETRY_NS, self._try, wish)

    def _answer(self, wish: Wish) -> Callable[[bytes], None]:
        def answered(data: bytes) -> None:
            verdict = _VERDICT.decode(data)
            if self._open is not wish or verdict.status == "pending":
                return
            if verdict.status == "accepted" and self.on_verdict is not None:
                self.on_verdict(wish.holds(), wish)
            self._open = None
            self.site.loop.after(self._draws.between(200 * MS, 2 * SECOND), self._next)

        return answered
