"""Says on stderr what a command waits for: a bus that is away or cannot commit, or a service that has not answered.

Decides when: within two seconds of the start of the command, or of what it waits for, once for each reason. Looks at
the cluster only while a request waits, or where the command waits for commits.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import Iterator, Sequence

import msgspec

from schemas.bus_answers import BusStatus
from schemas.projections import Query
from services.cli import global_options
from services.cli.runtime.output import strip_control_chars
from shared.bus.connection.nats_client import redacted_url
from shared.bus.connection.public_client import Client
from shared.bus.connection.server_probe import probe
from shared.errors import BusUnavailable
from shared.protocol import subjects

#: Pause between two looks at the cluster, and how long its answer may take: together less than LATE_S.
_LOOK_EVERY_S, _ANSWER_S = 0.7, 0.5
_STEP_S = 0.1
#: What has taken so long is said. A request that began with its command is said SAID_S after the command began: it has
#: connected before, and may have asked which cluster this is.
_LATE_S, _SAID_S, _LEAST_S = 1.3, 1.6, 0.3


class _Probe(msgspec.Struct):
    bus: BusStatus = BusStatus()


class BusNotices:
    """What one connection of a command waits for. `follows_commits`: the command waits for the log, asked or not."""

    def __init__(self, client: Client, where: str, *, follows_commits: bool) -> None:
        self._client = client
        self._where = where
        self._follows_commits = follows_commits
        #: requests without an answer, oldest first, and when each is late; else the same of a lost connection.
        self._asked: list[tuple[str, float]] = []
        self._lost: tuple[str, float] | None = None
        self._said = ""
        #: why nothing can be committed; empty: commits are possible, or that is not known.
        self.reason = ""

    @contextlib.contextmanager
    def request(self, service: str, subject: str) -> Iterator[None]:
        """Between a request and its answer."""
        text = f"no answer of {service} to {subject} at {self._where} yet"
        one = (text, _late_at(time.monotonic(), global_options.began_s()))
        self._asked.append(one)
        try:
            yield
        finally:
            self._asked.remove(one)

    async def run(self) -> None:
        """Look until cancelled."""
        commits = asyncio.create_task(self._follow_reason())
        try:
            while True:
                await asyncio.sleep(_STEP_S)
                self.look(time.monotonic())
        finally:
            commits.cancel()

    async def _follow_reason(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            if self._asked or self._follows_commits:
                self.reason = await self._why_blocked()

    def look(self, now_s: float) -> None:
        """Print what is waited for, unless the last line says so: a blocked bus, one that is away, a late request."""
        if self._client.bus.is_connected:
            self._lost = None
        elif self._lost is None:
            text = f"the connection to the bus at {self._where} is lost"
            self._lost = (text, now_s + _LATE_S)
        waits = [self._lost] if self._lost is not None else self._asked
        late = [text for text, late_at_s in waits if late_at_s <= now_s]
        text = self.reason or (late[0] if late else "")
        if text and text != self._said:
            self._said = text
            print(strip_control_chars(f"waiting: {text}"), file=sys.stderr, flush=True)

    async def _why_blocked(self) -> str:
        body = msgspec.json.encode(Query())
        try:
            raw = await self._client.request_bytes(subjects.query("cluster"), body, _ANSWER_S)
            return msgspec.json.decode(raw, type=_Probe).bus.reason
        except (BusUnavailable, msgspec.MsgspecError):
            # The view may be what the command waits for.
            return ""


def _late_at(start_s: float, began_s: float) -> float:
    """When a request that began at `start_s` is late, in a command that began at `began_s`."""
    late_s = start_s + _LATE_S
    said_s = began_s + _SAID_S
    return late_s if start_s > said_s else min(late_s, max(said_s, start_s + _LEAST_S))


async def which_answer(url: str) -> str:
    """Say which servers answer at the addresses of a bus; empty: it has one address, or all do."""
    urls = url.split(",")
    names = await asyncio.gather(*(probe(one) for one in urls))
    if len(urls) == 1 or all(names):
        return ""
    return describe_answers([redacted_url(one) for one in urls], names)


def describe_answers(urls: Sequence[str], names: Sequence[str]) -> str:
    """Name the servers that answer and the addresses without one. `names`: empty for a server that does not answer."""
    up = [f"{name} at {url}" for url, name in zip(urls, names, strict=True) if name]
    away = [url for url, name in zip(urls, names, strict=True) if not name]
    head = f"{len(up)} of {len(urls)} servers of the bus answer"
    head += f" ({', '.join(up)})" if up else ""
    return f"{head}; start {'the one' if len(away) == 1 else 'those'} at {', '.join(away)}"
