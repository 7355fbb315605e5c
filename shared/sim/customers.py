"""Scripted customers: each owns one job and changes it, through either door, with retries under the same id.

Decides what is asked for and remembers what was promised. Must not know how the cluster answers, only verdicts. One
request at a time: the next begins when the last one has its verdict. Next: `chaos.py`.
"""

from collections.abc import Callable

import msgspec

from schemas.jobs import Verdict
from shared.bus import subjects
from shared.sim.lives import with_life
from shared.sim.loop import MS, SECOND, Draws
from shared.sim.pools import asked_by
from shared.sim.process import Site

_RETRY_NS = 900 * MS
_VERDICT = msgspec.json.Decoder(Verdict)


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """One wish: what a job shall be. `run_ms` 0: until it is stopped."""

    job_id: str
    job_type: str
    count: int
    cpu_mhz: int
    run_ms: int = 0
    #: changes the text so that running allocations have to be replaced.
    edition: int = 0
    #: MHz beside which nothing else counts.
    memory_mib: int = 64
    priority: int = 50
    #: what else its task asks for: a number of `pools.asked_by`; None: nothing.
    extras: int | None = None
    #: with a task of every hook around the main one.
    has_life: bool = False
    #: how long its allocations may be away; None: its group has no disconnect block.
    lost_after_ms: int | None = None
    replace: bool = True
    strategy: str = "best_score"

    def body(self, submission_id: str, index: int = 0) -> bytes:
        """Write the submission in Nomad's JSON; with `index`, only for a job that stands there."""
        task = {
            "Name": "main",
            "Driver": "raw_exec",
            "Config": {"command": "/bin/simulated", "args": [str(self.run_ms)]},
            "Env": {"EDITION": str(self.edition)},
            "Resources": self._resources(),
            "KillTimeout": SECOND,
        }
        group = {
            "Name": "web",
            "Count": self.count,
            "Tasks": [task],
            "EphemeralDisk": {"SizeMB": 10},
            "RestartPolicy": {
                "Attempts": 1,
                "Interval": 10 * SECOND,
                "Delay": SECOND // 5,
                "Mode": "fail",
            },
            **self._policies(),
        }
        if self.has_life:
            group = with_life(group)
        job = {
            "ID": self.job_id,
            "Name": self.job_id,
            "Type": self.job_type,
            "Priority": self.priority,
            "Datacenters": ["*"],
            "TaskGroups": [group],
        }
        fence = {"EnforceIndex": True, "JobModifyIndex": index} if index else {}
        return msgspec.json.encode({"Job": job, "SubmissionID": submission_id, **fence})

    def _resources(self) -> dict[str, object]:
        found = {} if self.extras is None else asked_by(self.extras)
        # Who has cores of its own has all their MHz.
        share = {} if "Cores" in found else {"CPU": self.cpu_mhz}
        return {**share, "MemoryMB": self.memory_mib, **found}

    def _policies(self) -> dict[str, object]:
        """What becomes of failed allocations, and of those whose node is away."""
        found: dict[str, object] = {}
        if self.job_type in {"service", "batch"}:
            found["ReschedulePolicy"] = {
                "Unlimited": True,
                "Attempts": 0,
                "Delay": 5 * SECOND,
                "MaxDelay": 5 * SECOND,
                "DelayFunction": "constant",
            }
        if self.lost_after_ms is not None:
            found["Disconnect"] = {
                "LostAfter": self.lost_after_ms * MS,
                "Replace": self.replace,
                "Reconcile": self.strategy,
            }
        return found


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """One request: `shape` of a submit, None of a stop or an evaluate."""

    verb: str
    body: bytes
    submission_id: str
    by_box: bool
    shape: Shape | None = None
    #: the same id with other content: must be refused.
    is_conflict: bool = False


class Customer:
    """Owner of one job. `promised` is its last accepted wish: what must hold in the end."""

    def __init__(
        self, site: Site, draws: Draws, first: Shape, counts: tuple[int, int] = (1, 6)
    ) -> None:
        self.site = site
        self.shape = first
        self.promised: Wish | None = None
        self.accepted: list[Wish] = []
        self.is_closing = False
        self.is_idle = False
        self.retries = 0
        #: hears every final verdict; asks whether a drop box's submission has one.
        self.on_verdict: Callable[[Wish, Verdict], None] | None = None
        self.verdict_of: Callable[[str], str] | None = None
        self._draws = draws
        self._counts = counts
        self._number = 0
        self._stops_last = False
        #: modify index of the job, as far as the last verdict told.
        self._index = 0
        self._open: Wish | None = None
        self._tries = 0

    def begin(self, after_ns: int) -> None:
        """Submit the job for the first time."""
        self.site.loop.after(after_ns, self._next)

    def close(self, *, stop: bool) -> None:
        """Begin nothing new; with `stop`, end with a stop of the job."""
        self.is_closing = True
        self._stops_last = stop

    # ---- the script ----

    def _next(self) -> None:
        if self._open is not None:
            return
        if not self.is_closing or not self._number:
            self._ask(self._wish())
        elif self._stops_last:
            self._stops_last = False
            self._ask(self._stop_wish())
        else:
            self.is_idle = True

    def _wish(self) -> Wish:
        what = self._draws.below(100)
        shape = self.shape
        if self._number == 0 or what < 12:
            return self._submit(shape)
        if what < 52:
            count = self._draws.between(*self._counts)
            return self._submit(msgspec.structs.replace(shape, count=count))
        if what < 68:
            return self._submit(msgspec.structs.replace(shape, edition=shape.edition + 1))
        if what < 78 and self.accepted and self.accepted[-1].shape is not None:
            return self._conflict(self.accepted[-1])
        if what < 86:
            return self._named("evaluate")
        return self._stop_wish()

    def _submit(self, shape: Shape) -> Wish:
        self.shape = shape
        name = self._fresh()
        # Nobody else changes this job: where it stood at the last verdict it stands now.
        index = self._index if self._draws.hit(300) else 0
        body = shape.body(name, index)
        by_box = self._draws.hit(350)
        return Wish(verb="submit", body=body, submission_id=name, by_box=by_box, shape=shape)

    def _conflict(self, old: Wish) -> Wish:
        assert old.shape is not None
        other = msgspec.structs.replace(old.shape, count=old.shape.count + 1)
        body = other.body(old.submission_id)
        return Wish(
            verb="submit",
            body=body,
            submission_id=old.submission_id,
            by_box=False,
            shape=other,
            is_conflict=True,
        )

    def _stop_wish(self) -> Wish:
        return self._named("stop", purges=self._draws.hit(300))

    def _named(self, verb: str, *, purges: bool = False) -> Wish:
        name = self._fresh()
        more = {"Purge": True} if purges else {}
        body = msgspec.json.encode({"JobID": self.shape.job_id, "SubmissionID": name, **more})
        return Wish(verb=verb, body=body, submission_id=name, by_box=self._draws.hit(350))

    def _fresh(self) -> str:
        self._number += 1
        return f"{self.shape.job_id}-{self._number}"

    # ---- asking ----

    def _ask(self, wish: Wish) -> None:
        self._open = wish
        self._tries = 0
        self._try(wish)

    def _try(self, wish: Wish) -> None:
        if self._open is not wish:
            return
        self._tries += 1
        self.retries += self._tries > 1
        site = self.site
        if wish.by_box:
            for delay in site.weather.hop():
                site.loop.after(delay, self._drop, wish)
        else:
            subject = subjects.api_jobs(wish.verb)
            for delay in site.weather.hop():
                site.loop.after(delay, site.bus.publish, subject, wish.body, self._answer(wish))
        site.loop.after(_RETRY_NS, self._try, wish)

    def _drop(self, wish: Wish) -> None:
        kept = self.site.bus.store_job(subjects.jobs(wish.verb), wish.body, wish.submission_id)
        if kept and self._open is wish:
            self._watch(wish)

    def _watch(self, wish: Wish) -> None:
        """Wait for the verdict of what the drop box kept, as whoever reads `view.submission.<id>` would."""
        assert self.verdict_of is not None
        status = self.verdict_of(wish.submission_id)
        if self._open is wish and status:
            self._finish(wish, Verdict(submission_id=wish.submission_id, status=status))
        elif self._open is wish:
            self.site.loop.after(300 * MS, self._watch, wish)

    def _answer(self, wish: Wish) -> Callable[[bytes], None]:
        def answered(data: bytes) -> None:
            verdict = _VERDICT.decode(data)
            if self._open is wish and verdict.status != "pending":
                self._finish(wish, verdict)

        return answered

    def _finish(self, wish: Wish, verdict: Verdict) -> None:
        self._open = None
        if self.on_verdict is not None:
            self.on_verdict(wish, verdict)
        if verdict.status == "accepted":
            self.accepted.append(wish)
            is_live = wish.shape is not None and wish.shape.job_type in {"service", "system"}
            self._index = verdict.modify_index if is_live else 0
            if wish.verb != "evaluate":
                self.promised = wish
        pause = self._draws.between(200 * MS, 4 * SECOND)
        self.site.loop.after(pause, self._next)
