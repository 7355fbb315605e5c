"""Submitters of jobs: each waits for its verdict before it sends the next job."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from schemas.jobs import Verdict
from shared.bus.connection.nats_client import BusClient
from shared.errors import BusUnavailable
from shared.protocol import subjects

SUBMITTERS = 64
PATIENCE_S = 120.0
#: Timeout of one request, and the pause before a retry.
_ANSWER_S, _PAUSE_S = 0.25, 0.02
_VERDICT = msgspec.json.Decoder(Verdict)


async def submit_job(bus: BusClient, body: bytes, timeout_s: float = 30.0) -> Verdict:
    """Submit one job by api.jobs.submit."""
    _, answer = await bus.request_raw(subjects.api_jobs("submit"), body, timeout_s=timeout_s)
    return _VERDICT.decode(answer)


async def submit_accepted(bus: BusClient, body: bytes) -> Verdict:
    """Submit one job; a pending verdict is requested again. Raises RuntimeError for a refused job."""
    while (answer := await submit_job(bus, body)).status == "pending":
        pass
    if answer.error is not None:
        raise RuntimeError(f"a job was refused: {answer.error}")
    return answer


async def submit_with_retries(
    bus: BusClient, body: bytes, patience_s: float = PATIENCE_S
) -> Verdict:
    """Submit one job until its verdict is final, while services fail and return. Raises TimeoutError."""
    async with asyncio.timeout(patience_s):
        while True:
            with contextlib.suppress(BusUnavailable):
                verdict = await submit_job(bus, body, _ANSWER_S)
                busy = verdict.error is not None and verdict.error.code == "unavailable"
                if verdict.status != "pending" and not busy:
                    return verdict
            await asyncio.sleep(_PAUSE_S)


async def submit_all(
    bus: BusClient,
    bodies: Iterable[bytes],
    submitters: int = SUBMITTERS,
    submit: Callable[[BusClient, bytes], Awaitable[Verdict]] = submit_accepted,
) -> list[Verdict]:
    """Submit jobs by several submitters at once."""
    verdicts: list[Verdict] = []
    queue = iter(bodies)

    async def submitter() -> None:
        for body in queue:
            verdicts.append(await submit(bus, body))  # noqa: PERF401 - several append to it

    await asyncio.gather(*(submitter() for _ in range(submitters)))
    return verdicts
