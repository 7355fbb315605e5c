"""Arrival of jobs: from submitters that wait for their verdicts, or on a fixed schedule, regardless of the answers.

A latency counts from the moment a job was *due*, so that a slow answer cannot hide the delay of later jobs. Answers are
handled by callbacks instead of tasks, so that the generator is not the bottleneck.
"""

import asyncio
import time
from collections.abc import Callable, Sequence

import msgspec

from schemas.base import JobId
from schemas.jobs import Verdict
from shared.bus.connection.nats_client import BusClient, status
from shared.errors import BusUnavailable
from shared.protocol import subjects

#: A whole job as Nomad's JSON, by its number.
Body = Callable[[int], bytes]
_ANSWER_S = 60.0
_VERDICT = msgspec.json.Decoder(Verdict)


def body_template(job: dict[str, object], mark: str = "@@") -> Body:
    """Encode a job once; `mark` stands where its number goes, in the submission's id, too."""
    return numbered({"Job": job, "SubmissionID": f"s-{mark}"}, mark)


def numbered(request: dict[str, object], mark: str = "@@") -> Body:
    """Encode a request once; `mark` stands where its number goes."""
    parts = msgspec.json.encode(request).split(mark.encode())
    return lambda number: (b"%d" % number).join(parts)


class LoadGenerator:
    """Sends `api.jobs.VERB` and keeps the verdicts. Times: time.perf_counter."""

    def __init__(self, bus: BusClient, body: Body, verb: str = "submit") -> None:
        self._bus = bus
        self._subject = subjects.api_jobs(verb)
        self._body = body
        #: number -> when it was due.
        self.due: dict[int, float] = {}
        self.verdicts: list[Verdict] = []
        #: number -> the job that its verdict names.
        self.job_of: dict[int, JobId] = {}
        self.unanswered = 0
        self._open = 0
        self._numbers: range = range(0)
        self._at = 0
        self._all = asyncio.Event()

    async def closed(self, numbers: range, submitters: int) -> None:
        """Send each number once, never more than `submitters` unanswered; returns when all are answered."""
        self._numbers, self._at = numbers, 0
        self._all.clear()
        for _ in range(min(submitters, len(numbers))):
            self._next()
        await self._all.wait()

    async def open(self, numbers: range, rate_per_s: float) -> float:
        """Send each number when it is due, regardless of the answers; returns the delay of the last one, s."""
        loop_start = time.perf_counter() + 0.01
        sent, late = 0, 0.0
        while sent < len(numbers):
            now = time.perf_counter()
            while sent < len(numbers) and loop_start + sent / rate_per_s <= now:
                due = loop_start + sent / rate_per_s
                self._send(numbers[sent], due, again=False)
                late = now - due
                sent += 1
            await asyncio.sleep(0.001)
        return late

    def _next(self) -> None:
        number = self._numbers[self._at]
        self._at += 1
        self._send(number, time.perf_counter(), again=True)

    def _send(self, number: int, due: float, *, again: bool) -> None:
        self.due[number] = due
        self._open += 1
        self._ask(number, again=again)

    def _ask(self, number: int, *, again: bool) -> None:
        def done(headers: bytes, answer: bytes | None) -> None:
            self._answered(number, answer if not status(headers) else None, again=again)

        self._bus.call(self._subject, self._body(number), done, timeout_s=_ANSWER_S)

    def _answered(self, number: int, answer: bytes | None, *, again: bool) -> None:
        verdict = _VERDICT.decode(answer) if answer is not None else None
        if verdict is not None and verdict.status == "pending":
            # Not yet in the log: requested again under the same id.
            self._ask(number, again=again)
            return
        self._open -= 1
        if verdict is None:
            self.unanswered += 1
        else:
            self.verdicts.append(verdict)
            self.job_of[number] = JobId(verdict.job_id)
        if again and self._at < len(self._numbers):
            self._next()
        elif not self._open:
            self._all.set()

    async def answered(self, within_s: float = _ANSWER_S) -> None:
        """Wait until nothing is unanswered. Raises BusUnavailable."""
        deadline = time.monotonic() + within_s
        while self._open:
            if time.monotonic() > deadline:
                raise BusUnavailable(f"{self._open} submissions had no answer in {within_s} s")
            await asyncio.sleep(0.005)


def quantile(ordered: Sequence[float], part: float) -> float:
    """Value at a part of an ordered sequence; the next higher one."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]
